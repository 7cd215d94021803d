"""Many prompts through the rows of a batch: refilled, waiting, or one by one.

  python -m experiments.continuous_batching \\
    --config configs/continuous_batching.py

The texts end at lengths drawn with the seed, so that rows finish at different
times. The same prompts, keys and lengths are decoded

  alone       one at a time, in the layout of weights that is the fastest
  static      in batches that wait for their longest text
  continuous  with rows that are refilled (`specjax.requests.continuous`)

and with `--config.by_load`, where rows are refilled, with a draft length that
`specjax.requests.goodput` chooses among `gammas` and 0.

ideal       seconds if every step were full: target calls of all texts over the
            rows, times the seconds of a step in which every row is live
efficiency  ideal over the seconds of decoding: all but reading the prompts,
            with what the host does between two chunks
The seconds of a full step are measured before every pass. Each drafter has its
rows, and so has plain decoding; a run that was stopped goes on with the next.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from experiments import continuous_batching_report, lengths
from experiments.batches import Pass, Side
from specjax import prompts
from specjax.bench import results
from specjax.bench.config import ManyPrompts
from specjax.bench.load import load_experiment
from specjax.bench.loading.checks import need_least, need_one_turn
from specjax.bench.methods import Method
from specjax.bench.plan import Plan, plan
from specjax.cli import command
from specjax.errors import need
from specjax.stats import metrics

BY_LOAD = continuous_batching_report.BY_LOAD
_ALONE, _STATIC, _CONTINUOUS = 'alone', 'static', 'continuous'


def shrink(x: ManyPrompts) -> None:
  """The quick version: few and short texts."""
  x.prompts.count = min(x.prompts.count, 12)
  x.max_new_tokens = min(x.max_new_tokens, 32)
  x.shortest = min(x.shortest, 4)
  x.repeats = 1


def prepare(x: ManyPrompts) -> Plan:
  """The plan; fields that only this program has are checked, too.

  Raises:
    UserError: names the field and the remedy.
  """
  need_least(x, 1, 'shortest', 'group', 'repeats')
  need(
    x.shortest <= x.max_new_tokens,
    f'shortest is {x.shortest}, but max_new_tokens {x.max_new_tokens}: lower '
    'one or raise the other',
  )
  need(
    x.chunks and min(x.chunks) >= 1,
    f'chunks must be integers of at least 1, such as 4, got {x.chunks}',
  )
  need_one_turn(x.prompts)
  planned = plan(x)
  for name, several in (
    ('temperatures', planned.temperatures),
    ('verifiers', planned.rules),
  ):
    need(len(several) == 1, f'{name} must be a single one here, got {several}')
  return planned


class Measured(NamedTuple):
  """The passes of one way to decode."""

  way: str
  chunk: int | None
  passes: list[Pass]

  def totals(self) -> list[float]:
    """Seconds of each pass, reading included."""
    return [(p.seconds + p.reading).sum() for p in self.passes]


def begin(side: Side, bar) -> list[Measured]:
  """All ways of a side; prompts one at a time are decoded only once.

  Draft lengths by load are for rows that are refilled.
  """
  side.warm_up()
  bar.update()
  refilled = [Measured(_CONTINUOUS, chunk, []) for chunk in side.x.chunks]
  if side.by_load is not None:
    return refilled
  alone = side.batches(side.one, 1)
  bar.update()
  ways = [Measured(_ALONE, None, [alone]), Measured(_STATIC, None, [])]
  return ways + refilled


def take_turn(side: Side, ways: list[Measured], bar) -> None:
  """One more pass of each way of a side, but one at a time."""
  for measured in ways:
    if measured.way == _ALONE:
      continue
    if measured.chunk is None:
      made = side.batches(side.many, side.x.batch)
    else:
      made = side.continuous(measured.chunk, side.full_steps())
    measured.passes.append(made)
    bar.update()


def _ideal(x: ManyPrompts, passes: list[Pass]) -> dict:
  """How far refilled rows are from full steps; see the head of this file."""
  pairs = [(p, p.step) for p in passes if p.step is not None]
  if not pairs:
    return dict.fromkeys(('step_seconds', 'efficiency', 'efficiency_ci'))
  ideal = np.concatenate([p.calls * step / x.batch for p, step in pairs])
  seconds = np.concatenate([p.seconds for p, _ in pairs])
  reading = np.concatenate([p.reading for p, _ in pairs])
  efficiency = metrics.ratio(ideal, seconds)
  return {
    'step_seconds': [step for _, step in pairs],
    'ideal_seconds': ideal.sum() / len(pairs),
    'efficiency': efficiency.value,
    'efficiency_ci': efficiency.interval,
    'efficiency_by_pass': [
      p.calls.sum() * step / x.batch / p.seconds.sum() for p, step in pairs
    ],
    'ideal_over_all_seconds': ideal.sum() / (seconds + reading).sum(),
  }


def _beside(measured: Measured, others: dict[str, Measured]) -> dict:
  """Fields of a comparison with texts of the same draft length."""
  names = (_ALONE, _STATIC)
  if not others:
    same = None
  else:
    alone = others[_ALONE].passes[0].texts
    same = float(
      np.mean(
        [
          a == b
          for p in measured.passes
          for a, b in zip(alone, p.texts, strict=True)
        ]
      )
    )
  times = {
    f'times_{name}': np.mean(others[name].totals()) / np.mean(measured.totals())
    if others
    else None
    for name in names
  }
  return times | {'same_text_as_alone': same}


def row(x: ManyPrompts, cell: dict, measured: Measured, others) -> dict:
  """The row of one way; `others` are those it is compared with, by name."""
  passes = measured.passes
  tokens, calls, seconds, reading = (
    np.concatenate([getattr(p, name) for p in passes])
    for name in ('tokens', 'calls', 'seconds', 'reading')
  )
  speed = metrics.ratio(tokens, seconds)
  whole = metrics.ratio(tokens, seconds + reading)
  return {
    **cell,
    'way': measured.way,
    'chunk': measured.chunk,
    'passes': len(passes),
    'tokens': int(passes[0].tokens.sum()),
    'target_calls': int(passes[0].calls.sum()),
    'tau': tokens.sum() / calls.sum(),
    'seconds': seconds.sum() / len(passes),
    'reading_seconds': reading.sum() / len(passes),
    'all_seconds_by_pass': measured.totals(),
    'seconds_by_pass': [p.seconds.sum() for p in passes],
    'tokens_by_pass': [p.tokens.sum() for p in passes],
    'tokens_per_second': speed.value,
    'tokens_per_second_ci': speed.interval,
    'tokens_per_second_with_reading': whole.value,
    'tokens_per_second_with_reading_ci': whole.interval,
    **_beside(measured, others),
    **_ideal(x, passes),
    'shares': [p.shares for p in passes if p.shares],
    **(
      {'lengths': [p.by_length for p in passes if p.by_length]}
      if any(p.by_length for p in passes)
      else {}
    ),
  }


def _gamma(method: Method) -> int:
  return method.gamma


def sides(
  x: ManyPrompts, plan: Plan
) -> dict[str, tuple[dict, Callable[[], Side]]]:
  """What identifies each side's rows, and what makes it ready."""
  built = {
    rows: load_experiment(dataclasses.replace(plan, batch=rows))
    for rows in {x.batch, 1}
  }
  many, one = (built[rows].race() for rows in (x.batch, 1))
  texts = [t for chosen in many.prompts.values() for t in chosen.texts]
  slots = many.slots(x.max_new_tokens)
  common = {
    'program': 'continuous_batching',
    'config': x.name,
    'target': many.target_name,
    'dtype': many.target.dtype,
    'temperature': x.temperatures[0],
    'batch': x.batch,
    'group': x.group,
    'prompts': len(texts),
    'prompts_hash': prompts.digest(texts),
    'new_tokens': [x.shortest, x.max_new_tokens],
    'seed': x.seed,
    'baseline': one.baseline.fields(),
    **results.conditions(),
  }

  def prepare(name, gamma, draft, dtype, *ways):
    cell = common | {'drafter': name, 'gamma': gamma, 'draft': draft}
    cell['draft_dtype'] = dtype
    return cell, functools.partial(Side, x, plan.sampling, *ways, texts, slots)

  by_name = {'plain': prepare('plain', 0, None, None, many.base, one.base)}
  for m, other in zip(many.methods, one.methods, strict=True):
    name = f'{m.drafter}, gamma {m.gamma}'
    ways = m.way, other.way
    by_name[name] = prepare(m.drafter, m.gamma, m.draft, m.draft_dtype, *ways)
  if x.by_load:
    for m in {m.drafter: m for m in sorted(many.methods, key=_gamma)}.values():
      label = m.drafter + BY_LOAD
      cell, _ = prepare(label, m.gamma, m.draft, m.draft_dtype)

      def by_load(drafter=m.drafter):
        found = lengths.of(many, drafter)
        own = found.longest
        alike = (o for o in one.methods if o.cell('', 0) == own.cell('', 0))
        both = own.way, next(alike).way
        return Side(x, plan.sampling, *both, texts, slots, by_load=found.ways)

      by_name[label] = cell, by_load
  return by_name


def run(x: ManyPrompts, plan: Plan, folder: results.Folder) -> None:
  """Makes the rows that are missing, one side after another.

  With draft lengths by load the sides take turns, pass by pass: what is asked
  there are a few percent, and a machine is slower or faster for minutes. Each
  turn has an order of its own: what ran before leaves its traces.
  """
  missing = {
    name: side
    for name, side in sides(x, plan).items()
    if not folder.has(drafter=side[0]['drafter'], gamma=side[0]['gamma'])
  }
  each = 2 + x.repeats * (1 + len(x.chunks))
  less = (1 + x.repeats) * sum(name.endswith(BY_LOAD) for name in missing)
  with tqdm(total=each * len(missing) - less, file=sys.stderr) as bar:
    for group in [[*missing]] if x.by_load else [[name] for name in missing]:
      made = {name: missing[name][1]() for name in group}
      ways = {}
      for name, side in made.items():
        bar.set_description(name)
        ways[name] = begin(side, bar)
      random = np.random.default_rng(x.seed)
      for _ in range(x.repeats):
        for name in random.permutation([*made]).tolist():
          bar.set_description(name)
          take_turn(made[name], ways[name], bar)
      for name, own in ways.items():
        others = {m.way: m for m in own if m.way != _CONTINUOUS}
        for measured in own:
          one = row(x, missing[name][0], measured, others)
          folder.add(results.plain(one))


def summary(rows: list[dict]) -> dict:
  """The numbers that matter, for scripts."""
  return {
    f'{r["drafter"]} {r["way"]} {r["chunk"] or ""}'.strip(): {
      'tokens_per_second': r['tokens_per_second'],
      'efficiency': r['efficiency'],
    }
    for r in rows
  }


def main(x: ManyPrompts) -> None:
  if x.quick:
    shrink(x)
  planned = prepare(x)
  folder = results.Folder(planned.results, planned.settings)
  run(x, planned, folder)
  text = continuous_batching_report.summary(folder.rows)
  folder.write('summary.md', text)
  print(text)
  outcome = {'results': str(folder.path), **summary(folder.rows)}
  print(json.dumps(outcome))


if __name__ == '__main__':
  command.run(main, ManyPrompts, resumes=True)
