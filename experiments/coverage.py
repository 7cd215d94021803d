"""Whether 95% intervals hold the truth in 95% of the cases.

  python -m experiments.coverage results

draws prompts anew from the committed rows of a folder, as `populations` says,
computes every kind of interval that the project prints, and writes how often
each holds the truth to the folder coverage beside the rows, next to the same of
the middle 95% of resampled values (the percentile bootstrap). Nothing of a
machine is in it: two runs give the same. A run that was cut short is continued.
"""

import contextlib
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np
from tqdm import tqdm

from experiments import coverage_report
from experiments.populations import KINDS, Case
from specjax import reports
from specjax.bench import results
from specjax.bench.plan import portable
from specjax.cli import command
from specjax.errors import UserError
from specjax.stats import estimates, folders, metrics

SIZES = (5, 6, 8, 16, 30, 100)
# Of all populations of a kind together; fewer where one takes long.
_DRAWS = {'new': 6000, 'old': 600}
_LONG = {
  'phase of a step (turns)': 12,
  'pooled effect of a claim': 4,
  'measured over predicted': 2,
  'predicted speed-up': 2,
}
_RESAMPLES = 1000


def percentile(statistic, *samples, **unused) -> metrics.Estimate:
  """In place of `estimates.combine`: the middle 95% of resampled values."""
  del unused
  rng = np.random.default_rng(0)
  numbers, value = [], statistic(*(x for s in samples for x in s.values))
  count = min(_RESAMPLES, metrics.RESAMPLES)  # as many as medians have
  for sample in samples:
    if isinstance(sample, metrics.Sums):
      table = sample.values[:, None] - sample.variants
      chosen = rng.integers(sample.size, size=(count, sample.size))
      numbers += list(table[:, chosen].sum(2))
    else:
      numbers += [x[:count] for x in sample.variants]
  with np.errstate(all='ignore'):
    resampled = np.asarray(statistic(*numbers))
  resampled = resampled[np.isfinite(resampled)]
  if not np.isfinite(value) or not len(resampled):
    return metrics.Estimate(float(value))
  return metrics.Estimate(float(value), *np.percentile(resampled, [2.5, 97.5]))


@contextlib.contextmanager
def method(name: str) -> Iterator[None]:
  """Makes every interval by the new or the old method."""
  with contextlib.ExitStack() as stack:
    if name == 'old':
      for module in (estimates, metrics):
        stack.enter_context(mock.patch.object(module, 'combine', percentile))
    yield


class Held(NamedTuple):
  """How often intervals held the truth; None where there were none."""

  share: float | None = None
  error: float | None = None  # of the simulation
  silent: float = 1.0  # share of estimates without an interval
  worst: float | None = None  # least share of a population
  where: str | None = None  # which that is


def tally(cases: list[Case], n: int, draws: int) -> Held:
  """Draws so often from each population.

  Args:
    cases: populations of one kind.
    n: units that are drawn.
    draws: of each.
  """
  shares, silent = {}, 0
  for place, case in enumerate(cases):
    rng = np.random.default_rng((place, n))
    held = []
    for _ in range(draws):
      for estimate, truth in zip(case.draw(rng, n), case.truth, strict=True):
        if estimate.interval is None:
          silent += 1
        else:
          # Sums in another order differ in their last digits.
          near = 1e-9 * abs(truth)
          held.append(estimate.low - near <= truth <= estimate.high + near)
    if held:
      shares[case.name] = float(np.mean(held))
  if not shares:
    return Held()
  share = float(np.mean(list(shares.values())))
  where = min(shares, key=shares.__getitem__)
  error = np.sqrt(share * (1 - share) / (draws * len(cases)))
  every = draws * sum(len(case.truth) for case in cases)
  return Held(share, float(error), silent / every, shares[where], where)


def row(kind: str, cases: list[Case], n: int) -> dict:
  """The row of a kind of interval at a number of units."""
  fields = {'kind': kind, 'units': n, 'populations': len(cases)}
  for name, prefix in (('new', 'coverage'), ('old', 'percentile_coverage')):
    draws = max(_DRAWS[name] // _LONG.get(kind, 1) // len(cases), 1)
    with method(name):
      held = tally(cases, n, draws)
    fields[prefix], fields[f'{prefix}_error'] = held.share, held.error
    if name == 'new':
      fields |= {
        'draws': draws,
        'without_interval': held.silent,
        'least_coverage': held.worst,
        'least_population': held.where,
      }
  return fields


def _digest(rows: dict[str, list[dict]]) -> str:
  """A hash of the rows that are drawn from; those of this program are not."""
  rest = {name: r for name, r in rows.items() if name != 'coverage'}
  text = json.dumps(rest, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def simulate(root: pathlib.Path) -> None:
  """Writes the folder coverage of a folder of results.

  Raises:
    UserError: it is none, or lacks rows that are drawn from.
  """
  rows, _ = folders.read_folders(root, reports.fault)
  try:
    cases = {kind: list(make(rows)) for kind, make in KINDS.items()}
  except KeyError as error:
    raise UserError(
      f'{root}: no rows of {error.args[0]!r}: name the folder of committed '
      'results'
    ) from error
  settings = {'sizes': SIZES, 'draws': _DRAWS, 'kinds': list(KINDS)}
  folder = results.Folder(str(root / 'coverage'), portable(settings))
  todo = [(kind, n) for kind in cases for n in SIZES]
  drawn_from = _digest(rows)
  if any(r.get('drawn_from') != drawn_from for r in folder.rows):
    folder.clear()  # They say nothing of other rows.
  todo = [(k, n) for k, n in todo if not folder.has(kind=k, units=n)]
  made = {'program': 'coverage', 'config': 'coverage'}
  for kind, n in (bar := tqdm(todo, file=sys.stderr)):
    bar.set_description(f'{kind}, {n} units')
    fields = row(kind, cases[kind], n)
    folder.add(made | {'drawn_from': drawn_from} | fields)
  folder.write('summary.md', coverage_report.summary(folder.rows))
  shares = [r['coverage'] for r in folder.rows if r['coverage']]
  last = {'least': min(shares), 'most': max(shares)}
  print(json.dumps({'results': str(folder.path), **last}))


def _from_command_line() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument(
    'root', nargs='?', default='results', help='folder of the rows'
  )
  simulate(pathlib.Path(parser.parse_args().root))


if __name__ == '__main__':
  command.guard(_from_command_line, resumes=True)
