"""Explains where greedy texts part: at a tie of the logits, or by a bug.

  specjax parity

Every drafter's text is compared with that of another way to decode the same
prompts: the config names a function of `against`. `ties` says what is measured
and what a tie is. The exit status is 1 where there are bugs.
"""

import functools
import json
import sys
from collections.abc import Iterator

import jax
import numpy as np
from tqdm import tqdm

from specjax import prompts, sampling
from specjax.bench import measure, results, ties, turns
from specjax.bench.comparisons import Other, Setup, Side
from specjax.bench.config import Parity
from specjax.bench.load import load_experiment
from specjax.bench.loading.checks import values
from specjax.bench.methods import Method
from specjax.bench.plan import Plan, plan
from specjax.cli import command, names
from specjax.errors import need
from specjax.prompts import Chosen
from specjax.reports import parity as parity_report

_AGAINST = names.Names('specjax.bench.comparisons.{}', 'plain')


def prepare(x: Parity) -> tuple[Plan, Other]:
  """The plan, and what makes the other side of a method.

  Raises:
    UserError: names the field, its value and the remedy.
  """
  need(
    x.temperatures and not any(x.temperatures),
    f'temperatures must be (0.0,): only greedy texts are compared, got '
    f'{tuple(x.temperatures)}',
  )
  x.against = _AGAINST.full(x.against)
  return plan(x), names.resolve_function('against', x.against, _AGAINST)(x)


def shrink(x: Parity) -> None:
  """The quick version: one draft length, few and short texts."""
  x.gammas = x.gammas[:1]
  x.prompts.count = max(x.batch, min(x.prompts.count, 2))
  x.max_new_tokens = min(x.max_new_tokens, 32)


def _batches(rows: range, batch: int) -> Iterator[range]:
  """Rows in batches; the last one overlaps, for all have one shape."""
  for i in rows[::batch]:
    begin = min(i, rows.stop - batch)
    yield range(begin, begin + batch)


class Comparison:
  """One config in one process."""

  def __init__(self, plan: Plan, other: Other):
    """Checks and loads everything, and only then opens the folder.

    Args:
      plan: of the experiment.
      other: makes the other side of a method.
    """
    results.check_folder(plan)
    self.plan = plan
    built = load_experiment(plan)
    self.slots, self.source_slots = built.slots(plan.max_new_tokens)
    self.plain = built.plain
    self.domains = {
      d: self.every_turn(built.base, c) for d, c in built.prompts.items()
    }
    self.prompts = [ids for texts in self.domains.values() for ids in texts]
    self.setup = Setup(plan, built, self.prompts)
    self.pairs = []
    for method in self.setup.built.methods:
      mine = Side(method.drafter, method.way, plan.batch)
      self.pairs.append((method, mine, other(self.setup, method)))
    self.known: dict = {}
    self.conditions = results.conditions()
    self.folder = results.Folder(plan.results, plan.settings)
    results.check_prompts(self.folder, self.domains)
    lines = [json.dumps({'prompt': p}) + '\n' for p in self.prompts]
    self.folder.write('prompts.jsonl', ''.join(lines))

  def values(self, count: int) -> sampling.Sampling:
    return values(self.plan.sampling, self.plain, count, 0.0)

  def job(self, texts: list[list[int]], numbers: range) -> measure.Job:
    """Some of the texts in one batch; `numbers` say which."""
    return measure.Job(
      [texts[i] for i in numbers],
      np.asarray(numbers),
      self.values(len(numbers)),
      self.plan.max_new_tokens,
      self.plan.seed,
      self.slots,
      self.source_slots,
    )

  def every_turn(
    self, plain: measure.Decoding, chosen: Chosen
  ) -> list[list[int]]:
    """Prompts of all turns; later ones hold the answers of plain decoding."""
    if not chosen.talks:
      return chosen.texts
    decode = functools.partial(measure.decode, plain, timed=False)
    later: dict[tuple[int, int], list[int]] = {}
    for numbers in _batches(range(len(chosen.texts)), self.plan.batch):
      first = self.job(chosen.texts, numbers)
      run = turns.play(decode, first, chosen.talks)
      for pair in turns.pairs(first, chosen.talks, run, run):
        if pair.where['turn'] > 1:
          later[pair.where['turn'], pair.where['prompt']] = pair.prompt
    return chosen.texts + [later[place] for place in sorted(later)]

  def range_of(self, domain: str) -> range:
    """Numbers of a domain's prompts."""
    lengths = [len(texts) for texts in self.domains.values()]
    place = list(self.domains).index(domain)
    begin = sum(lengths[:place])
    return range(begin, begin + lengths[place])

  def decode(self, side: Side, domain: str) -> list[list[int]]:
    """A side's texts of a domain."""
    rows = self.range_of(domain)
    if side.texts is not None:
      return [side.texts[i] for i in rows]
    key = side.name, side.way.spec, side.batch, domain
    if key not in self.known:
      texts = {}
      for numbers in _batches(rows, side.batch):
        job = self.job(self.prompts, numbers)
        run = measure.decode(side.way, job, timed=False)
        texts.update(zip(numbers, run.texts, strict=True))
      self.known[key] = [texts[i] for i in rows]
    return self.known[key]

  def ways(self, mine: Side, other: Side) -> list[ties.Scoring]:
    """How both sides compute; plain decoding too, where one is only a text."""
    if other.way is None:
      other = Side('plain', self.setup.built.base, mine.batch)
    return [
      ties.way(side.way, side.batch, self.slots, self.source_slots)
      for side in (mine, other)
    ]

  def differences(self, mine: Side, other: Side, domain: str) -> list[dict]:
    """What differs in a domain, explained."""
    explained = []
    for i, a, b in zip(
      self.range_of(domain),
      self.decode(mine, domain),
      self.decode(other, domain),
      strict=True,
    ):
      if a != b:
        ways = self.ways(mine, other)
        difference = ties.explain(ways, self.prompts[i], self.values(1), a, b)
        explained.append({'prompt': i, **difference._asdict()})
    return explained

  def row(self, method: Method, other: str, domain: str, differences) -> dict:
    """The row of one cell."""
    plan = self.plan
    verdicts = [d['verdict'] for d in differences]
    compared = self.domains[domain]
    return {
      'program': 'parity',
      'config': plan.name,
      **self.setup.built.models(method),
      **method.cell(domain, 0.0),
      'against': other,
      'batch': plan.batch,
      'new_tokens': plan.max_new_tokens,
      'compared': len(compared),
      'prompts_hash': prompts.digest(compared),
      'prompts_from': self.setup.built.prompts[domain].facts(),
      'ties': verdicts.count('tie'),
      'bugs': verdicts.count('bug'),
      'differences': differences,
      'seed': plan.seed,
      **self.conditions,
    }

  def run(self) -> None:
    """Makes the rows that are missing."""
    cells = [
      (*pair, domain)
      for domain in self.domains
      for pair in self.pairs
      if not self.folder.has(**pair[0].cell(domain, 0.0))
    ]
    for method, mine, other, domain in tqdm(cells, file=sys.stderr):
      differences = self.differences(mine, other, domain)
      self.folder.add(self.row(method, other.name, domain, differences))


_COUNTS = 'compared', 'ties', 'bugs'


def main(x: Parity) -> None:
  if x.quick:
    shrink(x)
  asked = x.dtype, x.target.dtype, x.draft.dtype, x.other_dtype
  with jax.enable_x64('float64' in asked):
    comparison = Comparison(*prepare(x))
    comparison.run()
  folder = comparison.folder
  summary = parity_report.summary(folder.rows)
  folder.write('summary.md', summary)
  print(summary)
  total = {name: sum(r[name] for r in folder.rows) for name in _COUNTS}
  total['differences'] = total['ties'] + total['bugs']
  print(json.dumps({'results': str(folder.path), **total}))
  if total['bugs']:
    raise SystemExit(1)


def start() -> None:
  command.run(main, Parity, resumes=True)
