"""Paired differences between methods, rules and temperatures.

Two rows are compared prompt by prompt, so what a prompt does to both is no
noise.
"""

import math
from typing import Any

import numpy as np

from specjax.reports import intervals
from specjax.reports.markdown import Table, estimated, number
from specjax.stats import metrics
from specjax.stats.row import KEY, group

# What is compared, what the table calls it, and its heading.
AXES = (
  ('verifier', 'rule', 'Rules on the same prompts'),
  ('drafter', 'drafter', 'Drafters on the same prompts'),
  ('temperature', 'temperature', 'Temperatures on the same prompts'),
)


# A positive number of a row, by columns of sums over its units: the first over
# the second, times the third over the fourth, and so on.
Statistic = tuple[str, ...]
ALPHA: Statistic = ('unit_overlap', 'unit_prefixes')
UNDER_RULE: Statistic = ('unit_overlap_of_rule', 'unit_prefixes')
TAU: Statistic = ('unit_tokens', 'unit_target_calls')
SPEED: Statistic = ('unit_tokens', 'unit_seconds')
# Of a speed-up, as `metrics.speedup` takes them.
TIMES = ('unit_baseline_seconds', 'unit_baseline_tokens')
TIMES += ('unit_seconds', 'unit_tokens')
SPEEDUP: Statistic = (*TIMES[:2], *SPEED)


def of_sums(*sums: Any) -> Any:
  """Returns a statistic from the sums of its columns."""
  quotients = zip(sums[::2], sums[1::2], strict=True)
  return math.prod(a / b for a, b in quotients)


def columns(row: dict, statistic: Statistic) -> np.ndarray | None:
  """Returns the columns of a statistic; None if a row does not have them."""
  found = [row.get(name) for name in statistic]
  if any(c is None for c in found) or len({*map(len, found)}) != 1:
    return None
  return np.array(found, float)


def same_prompts(one: dict, other: dict) -> bool:
  hashes = one.get('prompts_hash'), other.get('prompts_hash')
  same = None not in hashes and hashes[0] == hashes[1]
  return same and one['prompts'] == other['prompts']


def difference(one: dict, other: dict, statistic: Statistic, relative=False):
  """Returns `other` less `one`, or its change in percent.

  None if the prompts are not the same, or a row lacks the columns.
  """
  a, b = (columns(row, statistic) for row in (one, other))
  if a is None or b is None or a.shape != b.shape:
    return None
  if not same_prompts(one, other):
    return None
  if relative:
    change = metrics.estimate(
      lambda n, d, m, e: m / e / (n / d), *a, *b, positive=True
    )
    return change.scaled(100, -100)
  return metrics.estimate(lambda n, d, m, e: m / e - n / d, *a, *b)


def show(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def pairs(rows: list[dict], axis: str) -> list[tuple[dict, dict]]:
  """Pairs every row with the one that has the first value of an axis."""
  others = [k for k in KEY if k != axis]
  if axis == 'drafter':
    # Each may have its own length; where all have several, the same one.
    lengths = group(rows, 'drafter', 'gamma')
    if len(lengths) == len(group(rows, 'drafter')):
      others.remove('gamma')
  first = group([r for r in rows if r[axis] == rows[0][axis]], *others)
  bases = ((first.get(tuple(row[k] for k in others)), row) for row in rows)
  return [
    (base[-1], row) for base, row in bases if base and base[-1] is not row
  ]


def table(rows: list[dict], axis: str, name: str, title: str) -> Table | None:
  """Shows the pairs of one axis; None without pairs."""
  comparable = [p for p in pairs(rows, axis) if columns(p[0], TAU) is not None]
  if not comparable:
    return None
  rest = [k for k in ('domain', 'temperature', 'drafter', 'gamma') if k != axis]
  by_alpha = axis != 'verifier' and all(
    columns(row, ALPHA) is not None for pair in comparable for row in pair
  )
  head = [*rest, name, *(['alpha', 'difference'] if by_alpha else [])]
  head += [f'tau, {show(comparable[0][0][axis])}', 'tau']
  head.append('change, paired on prompts')
  lines = []
  for base, row in comparable:
    lossy = axis == 'verifier' and not row['lossless']
    line = [show(row[k]) for k in rest]
    line.append(show(row[axis]) + (' (lossy)' if lossy else ''))
    if by_alpha:
      line.append(number(row['alpha'], '.3f'))
      line.append(estimated(difference(base, row, ALPHA), '+.3f'))
    line += [intervals.shown(r, 'tau', '.3f') for r in (base, row)]
    change = difference(base, row, TAU, relative=True)
    lines.append([*line, estimated(change, '+.1f', '%')])
  return Table(title, '', head, lines)


def tables(rows: list[dict]) -> list[Table]:
  """Makes a table for each axis that has several values."""
  made = [table(rows, *axis) for axis in AXES]
  return [one for one in made if one]
