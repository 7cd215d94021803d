"""Many prompts through the rows of a batch: refilled, waiting, or one by one.

  python -m benchmarks.continuous_batching \\
    --config configs/continuous_batching.py

The texts end at lengths drawn with the seed, so that rows finish at different
times. The same prompts, keys and lengths are decoded

  alone       one at a time, in the layout of weights that is the fastest
  static      in batches that wait for their longest text
  continuous  with rows that are refilled (`specjax.continuous`)

and with `--config.by_load`, where rows are refilled, with a draft length that
`specjax.goodput` chooses among `gammas` and 0.

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

from benchmarks.batches import Pass, Side
from experiments import prompts
from experiments.errors import need
from experiments.measuring import results
from experiments.measuring.build import Built, build
from experiments.measuring.measure import Decoding
from experiments.reports import (
  continuous_batching as continuous_batching_report,
)
from experiments.settings import ManyPrompts
from experiments.setup import command
from experiments.setup.checks import need_least, need_one_turn
from experiments.setup.plan import Plan, plan
from specjax import layouts, metrics

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
  """The passes of one way to decode, and the full steps before them."""

  way: str
  chunk: int | None
  passes: list[Pass]
  steps: list[float]
  by_length: list[dict[int, float]]  # full steps of each length, by load

  def totals(self) -> list[float]:
    """Seconds of each pass, reading included."""
    return [(p.seconds + p.reading).sum() for p in self.passes]


def begin(side: Side, bar) -> list[Measured]:
  """All ways of a side; prompts one at a time are decoded only once."""
  side.warm_up()
  bar.update()
  alone = side.batches(side.one, 1)
  bar.update()
  ways = [Measured(_ALONE, None, [alone], [], [])]
  ways.append(Measured(_STATIC, None, [], [], []))
  chunks = side.x.chunks
  return ways + [Measured(_CONTINUOUS, chunk, [], [], []) for chunk in chunks]


def take_turn(side: Side, ways: list[Measured], bar) -> None:
  """One more pass of each way of a side, but one at a time."""
  for measured in ways[1:]:
    step = side.full_step()
    if measured.chunk is None:
      made = side.batches(side.many, side.x.batch)
    else:
      made = side.continuous(measured.chunk, step)
    measured.passes.append(made)
    measured.steps.append(step)
    measured.by_length.append(side.full_steps())
    bar.update()


def _mean_step(made: Pass, step: float, by_length: dict[int, float]) -> float:
  """Seconds of a full step, of the lengths that a pass had."""
  if made.by_length is None:
    return step
  rows = sum(made.by_length.values())
  return sum(by_length[n] * k for n, k in made.by_length.items()) / rows


def _ideal(x: ManyPrompts, measured: Measured) -> dict:
  """How far a way is from full steps; see the head of this file."""
  if not measured.steps:
    return dict.fromkeys(('step_seconds', 'efficiency', 'efficiency_ci'))
  pairs = [
    (p, _mean_step(p, step, steps))
    for p, step, steps in zip(
      measured.passes, measured.steps, measured.by_length, strict=True
    )
  ]
  ideal = np.concatenate([p.calls * step / x.batch for p, step in pairs])
  seconds = np.concatenate([p.seconds for p, _ in pairs])
  reading = np.concatenate([p.reading for p, _ in pairs])
  efficiency = metrics.ratio(ideal, seconds)
  return {
    'step_seconds': measured.steps,
    'ideal_seconds': ideal.sum() / len(pairs),
    'efficiency': efficiency.value,
    'efficiency_ci': efficiency.interval,
    'efficiency_by_pass': [
      p.calls.sum() * step / x.batch / p.seconds.sum() for p, step in pairs
    ],
    'ideal_over_all_seconds': ideal.sum() / (seconds + reading).sum(),
  }


def row(x: ManyPrompts, cell: dict, measured: Measured, others) -> dict:
  """The row of one way; `others` are those it is compared with, by name."""
  passes = measured.passes
  tokens, calls, seconds, reading = (
    np.concatenate([getattr(p, name) for p in passes])
    for name in ('tokens', 'calls', 'seconds', 'reading')
  )
  speed = metrics.ratio(tokens, seconds)
  whole = metrics.ratio(tokens, seconds + reading)
  alone = others[_ALONE].passes[0].texts
  same = [a == b for p in passes for a, b in zip(alone, p.texts, strict=True)]
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
    'tokens_per_second': speed.value,
    'tokens_per_second_ci': speed.interval,
    'tokens_per_second_with_reading': whole.value,
    'tokens_per_second_with_reading_ci': whole.interval,
    **{
      f'times_{name}': np.mean(other.totals()) / np.mean(measured.totals())
      for name, other in others.items()
    },
    **_ideal(x, measured),
    'shares': [p.shares for p in passes if p.shares],
    **(
      {'lengths': [p.by_length for p in passes if p.by_length]}
      if any(p.by_length for p in passes)
      else {}
    ),
    'same_text_as_alone': float(np.mean(same)),
  }


def sides(
  x: ManyPrompts, plan: Plan
) -> dict[str, tuple[dict, Callable[[], Side]]]:
  """What identifies each side's rows, and what makes it ready."""
  built = {
    rows: build(dataclasses.replace(plan, batch=rows)) for rows in {x.batch, 1}
  }
  many, one = (built[rows].race() for rows in (x.batch, 1))
  texts = [t for chosen in many.prompts.values() for t in chosen.texts]
  slots = many.slots(x.max_new_tokens)
  common = {
    'program': 'continuous_batching',
    'config': x.name,
    'target': many.target,
    'dtype': many.dtype,
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
    for name, own in _by_drafter(many.methods).items():
      m = max(own, key=lambda m: m.gamma)
      single = next(o for o in one.methods if o.cell('', 0) == m.cell('', 0))
      ways = _together(own, m, many, built[x.batch])
      label = f'{name}, by load'
      cell, make = prepare(
        label, m.gamma, m.draft, m.draft_dtype, m.way, single.way
      )
      by_name[label] = cell, functools.partial(make, by_load=ways)
  return by_name


def _together(own, longest, many: Built, before: Built) -> dict[int, Decoding]:
  """Lengths, each in its layout of weights, that may take turns on one state.

  It lies on one device or on several, and where the longest draft has it.

  Args:
    own: methods of a drafter.
    longest: of these, the one with the longest draft.
    many: what was built, with layouts that were raced.
    before: the same before the race, in all layouts.
  """

  def on_cores(way) -> bool:
    return way.spec.target.placement is not None

  cores = on_cores(longest)
  ways = {o.gamma: o.way for o in own if on_cores(o) == cores}
  if longest.spec.drafter.taps:  # Plain steps would lose what it reads.
    return ways
  plain = many.base
  if on_cores(plain) != cores:
    seconds = many.baseline.measured
    names = [n for n in seconds if (n == layouts.CORES) == cores]
    assert before.loaded is not None
    model, params = before.loaded.forms[min(names, key=seconds.__getitem__)]
    spec = dataclasses.replace(plain.spec, target=model)
    plain = Decoding(spec, plain.params._replace(target=params))
  return {0: plain} | ways


def _by_drafter(methods) -> dict[str, list]:
  """The lengths of each drafter."""
  found: dict[str, list] = {}
  for method in methods:
    found.setdefault(method.drafter, []).append(method)
  return found


def run(x: ManyPrompts, plan: Plan, folder: results.Folder) -> None:
  """Makes the rows that are missing, one side after another.

  With draft lengths by load the sides take turns, pass by pass: what is asked
  there are a few percent, and a machine is slower or faster for minutes.
  """
  missing = {
    name: side
    for name, side in sides(x, plan).items()
    if not folder.has(drafter=side[0]['drafter'], gamma=side[0]['gamma'])
  }
  each = 2 + x.repeats * (1 + len(x.chunks))
  with tqdm(total=each * len(missing), file=sys.stderr) as bar:
    for group in [[*missing]] if x.by_load else [[name] for name in missing]:
      made = {name: missing[name][1]() for name in group}
      ways = {}
      for name, side in made.items():
        bar.set_description(name)
        ways[name] = begin(side, bar)
      for _ in range(x.repeats):
        for name, side in made.items():
          bar.set_description(name)
          take_turn(side, ways[name], bar)
      for name, own in ways.items():
        others = {m.way: m for m in own[:2]}
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
