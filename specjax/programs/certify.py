"""Proves or refutes that the output has the target's distribution.

  specjax certify

Five parts: the distribution of whole texts by enumeration, for every rule; the
compiled float32 loop beside that distribution; what low precision does to each
rule; tokens per step; and planted bugs, each of which one of the tests must
find. The exit status is 1 when anything that should hold does not.

  specjax certify --rule=my_rules.eager

certifies one rule alone. --drafter=my_drafter.load takes a load function of
drafters, and --policy=my_policies.patient a policy.

  specjax certify --foreign=my_module.my_sampler

judges the function that verifies drafts in another system; docs/foreign.md has
its arguments. The last line has the verdict, and the smallest counterexample
that was found:

  verdict                  exit status
  exact                    0
  exact, but breaks law N  2: the output is right; `remedy` says what to do
  lossy                    3: the output has another distribution
  not refuted              0: a foreign sampler that was simulated alone
  undecided                1: a planted bug was not seen, or two ways to judge
                           a foreign sampler disagree

Bad input also ends with 1.
"""

import json
import time

import numpy as np

from specjax.bench import results
from specjax.bench.config import Certificate
from specjax.certify import certificate, trial
from specjax.certify.laws import row_of
from specjax.cli import command, fields, progress
from specjax.errors import need
from specjax.reports import certify as report


def check(x: Certificate) -> None:
  """Raises a UserError that names a field whose value makes no sense."""
  fields.check_fields(x)
  need(0 < x.level < 0.1, f'level must be in (0, 0.1), got {x.level}')
  need(1 < x.boost < np.inf, f'boost must be above 1, got {x.boost}')


def _finish(folder: results.Folder, page: str, last: dict) -> None:
  folder.write('summary.md', page)
  print(page)
  print(json.dumps({'results': str(folder.path), **last}))


def certify(x: Certificate) -> dict:
  """Makes the rows that are not there yet; returns what they amount to."""
  begin, folder = time.monotonic(), results.folder_of(x)
  if not folder.rows or folder.rows[-1]['part'] != 'end':
    folder.clear()
    certificate.make(x, folder.add)
    seconds, conditions = time.monotonic() - begin, results.conditions()
    folder.add(row_of('end', seconds=seconds, boost=x.boost, **conditions))
  verdict = report.verdict(folder.rows)
  _finish(folder, report.summary(folder.rows), verdict)
  return verdict


def try_one(x: Certificate) -> int:
  """Certifies one thing anew, since its code may have changed.

  Returns:
    The exit status.
  """
  begin, one, folder = time.monotonic(), trial.find(x), results.folder_of(x)
  folder.clear()
  with progress.phase(f'certifying {one.name}'):
    verdict = one.run(folder.add)
  end = row_of(
    'verdict',
    kind=one.kind,
    name=one.name,
    exact=verdict.exact,
    verdict=verdict.text,
    why=verdict.why,
    remedy=verdict.remedy,
    counterexample=verdict.counterexample,
    notes=verdict.notes,
    seconds=time.monotonic() - begin,
    **results.conditions(),
  )
  folder.add(results.plain(end))
  _finish(folder, report.page(folder.rows), report.last_line(folder.rows))
  return verdict.status


def main(x: Certificate) -> None:
  if x.quick:
    fields.lower(x, 'rounds', min(x.rounds, 64))
  check(x)
  if trial.given(x):
    status = try_one(x)
  else:
    status = int(certify(x)['failures'] > 0)
  if status:
    raise SystemExit(status)


def start() -> None:
  command.run(main, Certificate)
