"""Verdicts on rows of a run: which of them win, and what others lack.

A drafter wins only where the whole interval of its speed-up lies above 1, and
only with a rule that keeps the distribution of the target.
"""

import collections
import math
from collections.abc import Iterable

import numpy as np

from specjax.reports import intervals
from specjax.reports.markdown import counted
from specjax.stats import metrics, theory
from specjax.stats.row import by_place, group, times_of

WINS, UNDECIDED, UNKNOWN, LOSES = 'wins', 'undecided', 'unknown', 'loses'
_ORDER = (WINS, UNDECIDED, UNKNOWN, LOSES)


def partings(differences: Iterable[dict]) -> str:
  """Says where bits of a row first part; '' where nobody looked."""
  places = collections.Counter(
    d['operation'] + (f' at {counted(d["rows"], "row")}' if d['rows'] else '')
    for d in differences
    if d.get('operation')  # Differences of older rows have none.
  )
  if not places:
    return ''
  texts = (f'in {x} ({counted(n, "text")})' for x, n in places.most_common())
  return f'bits first part {", ".join(texts)}'


def faults(row: dict) -> list[str]:
  """Says why a row decides nothing: impossible values, or wrong texts."""
  reasons = list(row.get('impossible') or ())
  bugs = [d for d in row.get('differences') or () if d['verdict'] == 'bug']
  if bugs and row['lossless']:
    where = partings(bugs)
    reasons.append(
      f'{len(bugs)} of its texts at temperature 0 differ from plain decoding '
      f'by more than a tie{where and f"; {where}"}'
    )
  return reasons


def sound(rows: list[dict]) -> list[dict]:
  return [row for row in rows if not faults(row)]


def timed(rows: list[dict]) -> list[dict]:
  """Returns rows of exact rules that have times and can be believed."""
  return [r for r in sound(rows) if r['lossless'] and r['speedup'] is not None]


def state(row: dict) -> str:
  """Says whether a row with times is faster than plain decoding."""
  ends = intervals.stored(row, 'speedup')
  if ends is None:
    return UNKNOWN
  low, high = ends
  return WINS if low > 1 else LOSES if high < 1 else UNDECIDED


def weightless(row: dict) -> bool:
  """Returns whether a drafter has no weights beside those of the target."""
  if row.get('parameters') is not None:
    return row['parameters'] == 0
  return row.get('draft') is None


def worth(row: dict) -> float:
  """Returns the speed-up of a row, or tau where no time was taken."""
  return row['tau'] if row['speedup'] is None else row['speedup']


def names_best(row: dict) -> bool:
  """Returns whether a row may be called best: it accepts, with an interval.

  A draft that accepts nothing is no faster than plain decoding; where its time
  says so, that is noise.
  """
  return state(row) != UNKNOWN and round(row['tau'], 2) > 1


def ranked(rows: list[dict]) -> list[dict]:
  """Sorts rows by verdict, the best first, and those of one verdict by speed.

  Where a row has no times, the largest tau comes first.
  """
  if any(row['speedup'] is None for row in rows):
    return sorted(rows, key=worth, reverse=True)
  return sorted(rows, key=lambda r: (_ORDER.index(state(r)), -r['speedup']))


def best(rows: list[dict]) -> list[dict]:
  """Returns the best row of every drafter at every place, lossy ones apart."""
  names = ('drafter', 'lossless', 'domain', 'temperature')
  return [max(same, key=worth) for same in group(rows, *names).values()]


def _units(rows: list[dict], numbers) -> np.ndarray:
  """Joins numbers [k, n] of rows over domains, and sums over temperatures.

  A prompt at two temperatures is one unit: it is not a new prompt.
  """
  domains = group(rows, 'domain').values()
  return np.concatenate(
    [np.sum([numbers(r) for r in same], 0) for same in domains], axis=1
  )


def pooled(rows: list[dict]) -> dict:
  """Returns one row for all places of a method.

  Its speed-up, tau and alpha are estimates over the prompts of all domains
  together. c and v are means over target calls. A number that the rows do not
  hold by prompt is the mean of the rows, without an interval.
  """
  if len(rows) == 1:
    return rows[0]
  first = rows[0]
  weights = [r.get('target_calls') or 1 for r in rows]
  row = first | {'domain': 'all', 'temperature': None}
  for name in ('c', 'v', 'tau', 'alpha', 'speedup'):
    values = [r.get(name) for r in rows]
    known = None not in values
    row[name] = float(np.average(values, weights=weights)) if known else None
    row[f'{name}_ci'] = None

  def held(*names):
    return all(r.get(n) and None not in r[n] for r in rows for n in names)

  found = {}
  if held('unit_tokens', 'unit_target_calls'):
    found['tau'] = metrics.ratio(
      *_units(rows, lambda r: (r['unit_tokens'], r['unit_target_calls']))
    ).clipped(1, first['gamma'] + 1)
  if held('unit_overlap', 'unit_prefixes'):
    found['alpha'] = metrics.ratio(
      *_units(rows, lambda r: (r['unit_overlap'], r['unit_prefixes'])), 1.0
    )
  names = ('unit_seconds', 'unit_tokens', 'unit_baseline_seconds')
  if held(*names, 'unit_baseline_tokens'):
    found['speedup'] = metrics.speedup(*_units(rows, times_of))
  for name, one in found.items():
    row |= {name: one.value, f'{name}_ci': one.interval}
  return row


def of_drafters(rows: list[dict]) -> list[dict]:
  """Returns the leading method of each drafter over all places.

  The drafter of the first row, which the run is about, leads. A drafter that
  lacks one of its places is left out.

  Args:
    rows: that can be believed, of exact rules and one batch size.
  """
  leads = []
  for same in group(rows, 'drafter').values():
    methods = group(same, 'verifier', 'gamma').values()
    most = max(len(by_place(one)) for one in methods)
    whole = [one for one in methods if len(by_place(one)) == most]
    leads.append((set(by_place(whole[0])), ranked([*map(pooled, whole)])[0]))
  places, own = leads[0]
  return [own, *ranked([row for where, row in leads[1:] if where == places])]


def rule(row: dict) -> str:
  return row['verifier'] + ('' if row['lossless'] else ' (lossy)')


def named(row: dict) -> str:
  """Returns a drafter with its draft, if that has another name."""
  name, draft = row['drafter'], row.get('draft')
  return f'{name} (draft {draft})' if draft and draft not in name else name


def is_tree(row: dict) -> bool:
  return row['drafted'] > row['gamma'] * sum(row['histogram'])


def step_cost(row: dict) -> float | None:
  """Returns the cost of a speculative step in plain steps, v + gamma c."""
  if row.get('c') is None or row.get('v') is None:
    return None
  return row['v'] + row['gamma'] * row['c']


def to_break_even(row: dict) -> str:
  """Says what v, c, or alpha alone would have to be to break even.

  A step costs v + gamma c plain steps and gives tau tokens; speculation breaks
  even where these are equal. The result is '-' where the costs are unknown, or
  promise a gain that was not measured.
  """
  cost, gamma, alpha = step_cost(row), row['gamma'], row['alpha']
  if cost is None or row['tau'] >= cost:
    return '-'
  v = theory.break_even_v(row['tau'], gamma, row['c'])
  c = theory.break_even_c(row['tau'], gamma, row['v'])
  parts = [] if math.isnan(v) else [f'v < {v:.2f}']
  parts += [] if math.isnan(c) else [f'c < {c:.3f}']
  if cost < gamma + 1:
    even = theory.break_even_alpha(gamma, row['c'], row['v'])
    # The formula is of chains accepted i.i.d.; the row may be of others.
    chain = alpha is not None and not is_tree(row) and alpha < even
    parts.append(f'alpha > {even:.2f}' if chain else f'tau > {cost:.2f}')
  return ', '.join(parts) or 'no one change'


def greedy_texts(rows: list[dict]) -> tuple[int, int, str] | None:
  """Counts greedy texts of exact rules that are those of plain decoding.

  Returns:
    Their number, the number of compared texts, and how the others differ, as a
    clause; None where no text was compared.
  """
  compared = [
    r for r in rows if r['lossless'] and r['identical_to_plain'] is not None
  ]
  if not compared:
    return None
  same = sum(r['identical_to_plain'] for r in compared)
  # A conversation has several texts.
  texts = sum(r.get('texts') or r['prompts'] for r in compared)
  verdicts = [d['verdict'] for r in compared for d in r['differences'] or ()]
  ties, bugs = (counted(verdicts.count(kind), kind) for kind in ('tie', 'bug'))
  return same, texts, f', {ties}, {bugs}' if verdicts else ''
