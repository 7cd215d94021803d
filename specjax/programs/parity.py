"""Explains where greedy texts part: at a tie of the logits, or by a bug.

  specjax parity

Every drafter's text is compared with that of another way to decode the same
prompts: the config names a function of `against`. `ties` says what is measured
and what a tie is, `parting` the operation at which bits part first. The exit
status is 1 where there are bugs.
"""

import functools
import json
from collections.abc import Iterator

import jax

from specjax import prompts
from specjax.bench import measure, results, ties, turns
from specjax.bench.comparisons import Other, Side
from specjax.bench.config import Parity
from specjax.bench.load import load_experiment
from specjax.bench.methods import Method
from specjax.bench.plan import Plan, plan
from specjax.cli import command, names, progress
from specjax.cli.fields import lower
from specjax.errors import need
from specjax.prompts import Chosen

_AGAINST = names.Names('specjax.bench.comparisons.{}', 'plain')


def prepare(x: Parity) -> tuple[Plan, Other]:
  """Returns the plan, and what makes the other side of a method.

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
  lower(x, 'gammas', x.gammas[:1])
  lower(x, 'prompts.count', max(x.batch, min(x.prompts.count, 2)))
  lower(x, 'max_new_tokens', min(x.max_new_tokens or 32, 32))


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
    self.plan, self.built = plan, load_experiment(plan)
    # Prompts of each domain, and their places among all.
    domains = {d: self.every_turn(c) for d, c in self.built.prompts.items()}
    self.prompts = [ids for texts in domains.values() for ids in texts]
    self.places, begin = {}, 0
    for domain, texts in domains.items():
      self.places[domain] = range(begin, begin + len(texts))
      begin += len(texts)
    self.pairs = []
    for method in self.built.methods:
      mine = Side(method.drafter, method.way, plan.batch)
      theirs = other(self.built, self.prompts, method)
      self.pairs.append((method, mine, theirs))
    self.known: dict = {}
    self.conditions = results.conditions()
    self.folder = results.open_folder(plan, domains)
    lines = [json.dumps({'prompt': p}) + '\n' for p in self.prompts]
    self.folder.write('prompts.jsonl', ''.join(lines))

  def job(self, texts: list[list[int]], numbers: range) -> measure.Job:
    """Some of the texts in one batch; `numbers` say which."""
    given = [texts[i] for i in numbers]
    return self.built.job(given, numbers, 0.0)

  def every_turn(self, chosen: Chosen) -> list[list[int]]:
    """Prompts of all turns; later ones hold the answers of plain decoding."""
    if not chosen.talks:
      return chosen.texts
    decode = functools.partial(measure.decode, self.built.base, timed=False)
    later: dict[tuple[int, int], list[int]] = {}
    for numbers in _batches(range(len(chosen.texts)), self.plan.batch):
      first = self.job(chosen.texts, numbers)
      run = turns.play(decode, first, chosen.talks)
      for pair in turns.pairs(first, chosen.talks, run, run):
        if pair.where['turn'] > 1:
          later[pair.where['turn'], pair.where['prompt']] = pair.prompt
    return chosen.texts + [later[place] for place in sorted(later)]

  def decode(self, side: Side, domain: str) -> list[list[int]]:
    """A side's texts of a domain."""
    rows = self.places[domain]
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

  def differences(self, mine: Side, other: Side, domain: str) -> list[dict]:
    """Explains the differences in a domain."""
    mines, others = self.decode(mine, domain), self.decode(other, domain)
    ours = other.way is not None
    if not ours:  # A text alone: as plain decoding computes it.
      other = Side('plain', self.built.base, mine.batch)
    ways = [ties.way(x.way, x.batch, *self.built.slots) for x in (mine, other)]
    explained = []
    for i, a, b in zip(self.places[domain], mines, others, strict=True):
      if a != b:
        values = self.job(self.prompts, range(i, i + 1)).values
        difference = ties.explain(ways, self.prompts[i], values, a, b, ours)
        explained.append({'prompt': i, **difference._asdict()})
    return explained

  def row(self, method: Method, other: str, domain: str, differences) -> dict:
    """The row of one cell."""
    plan = self.plan
    verdicts = [d['verdict'] for d in differences]
    compared = [self.prompts[i] for i in self.places[domain]]
    return {
      'program': 'parity',
      'config': plan.name,
      **self.built.models(method),
      **method.cell(domain, 0.0),
      'against': other,
      'batch': plan.batch,
      'new_tokens': plan.max_new_tokens,
      'compared': len(compared),
      'prompts_hash': prompts.digest(compared),
      'prompts_from': self.built.prompts[domain].facts(),
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
      for domain in self.places
      for pair in self.pairs
      if not self.folder.has(**pair[0].cell(domain, 0.0))
    ]
    for method, mine, other, domain in progress.over('comparing', cells):
      differences = self.differences(mine, other, domain)
      self.folder.add(self.row(method, other.name, domain, differences))


def main(x: Parity) -> None:
  if x.quick:
    shrink(x)
  asked = x.dtype, x.target.dtype, x.draft.dtype, x.other_dtype
  with jax.enable_x64('float64' in asked):
    comparison = Comparison(*prepare(x))
    comparison.run()
  folder = comparison.folder
  results.publish(folder)
  counts = 'compared', 'ties', 'bugs'
  total = {name: sum(r[name] for r in folder.rows) for name in counts}
  total['differences'] = total['ties'] + total['bugs']
  print(json.dumps({'results': str(folder.path), **total}))
  if total['bugs']:
    raise SystemExit(1)


def start() -> None:
  command.run(main, Parity, resumes=True)
