"""Drafters of a run beside one another: the best of each, and its length.

Everything is made from the rows of `specjax run`.
"""

import itertools
from collections.abc import Callable, Iterator

from specjax.reports import intervals
from specjax.reports.markdown import Columns, Table, number
from specjax.stats import metrics, theory
from specjax.stats.row import by_place, group

CONSTANT = 'constant'
_NOTE = """
The rule and the draft length of each drafter that are fastest here (by tau
where no time was taken); a lossy rule has a line of its own. Parameters and
bytes are what a drafter has beside the target, as it is run; training is the
time and the tokens of all that its weights went through, where their files say
it.
""".strip()
_LENGTHS = """
Drafts of several lengths from the same weights; drafted is the mean number of
tokens a step. The oracle drafts just what will be accepted: a step of n such
tokens costs v(n + 1) + c n, where v is 1 for one token, what was measured for
gamma + 1, and on a straight line in between. In brackets it scores gamma + 1
tokens at every step, as all policies here do, whose shapes are fixed: these
save drafting alone.
""".strip()
_NEAR = 0.95  # of the largest speed-up: as good as the fastest
_CHOICES = f"""
Exact rules alone. Near the fastest is a speed-up of {_NEAR:.0%} of it; a cheap
draft takes less than a plain step; where scoring is free, as where weights are
read from slow memory, gamma + 1 tokens are scored in the time of one (v = 1).
""".strip()


def worth(row: dict) -> float:
  """What the best row has most of: speed, or tau where there are no times."""
  return row['tau'] if row['speedup'] is None else row['speedup']


def best(rows: list[dict]) -> list[dict]:
  """The best row of every drafter at every place, lossy ones apart."""
  names = ('drafter', 'lossless', 'domain', 'temperature')
  return [max(same, key=worth) for same in group(rows, *names).values()]


def rule(row: dict) -> str:
  return row['verifier'] + ('' if row['lossless'] else ' (lossy)')


def parameters(row: dict) -> str:
  """Millions of them; rows of older programs do not say."""
  count = row.get('parameters')
  return '-' if count is None else f'{count / 1e6:.2f}M' if count else '0'


def size(row: dict) -> str:
  count = row.get('bytes')
  return '-' if count is None else f'{count / 1e6:.1f} MB' if count else '0'


def training(row: dict) -> str:
  """Minutes and tokens; nothing to train is no cost, and not unknown."""
  cost = row.get('training')
  if cost is None:
    return '0' if row.get('parameters') == 0 else '-'
  many = cost.get('together', 1)
  others = f', {many} at once' if many > 1 else ''
  return f'{cost["seconds"] / 60:.0f} min, {cost["tokens"] / 1e6:.1f}M{others}'


_COLUMNS: Columns = (
  ('drafter', lambda r: r['drafter']),
  ('draft', lambda r: r.get('draft') or '-'),
  ('rule', rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: number(r['alpha'])),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('c', lambda r: number(r['c'], '.3f')),
  ('v', lambda r: number(r['v'])),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: number(r['predicted_speedup'])),
  ('parameters', parameters),
  ('bytes', size),
  ('training', training),
)


def drafters(rows: list[dict]) -> list[Table]:
  """The best of each drafter: a table for each domain and temperature."""
  made = []
  for (domain, temperature), here in by_place(rows).items():
    ranked = sorted(best(here), key=worth, reverse=True)
    title = f'Best of each drafter: {domain}, temperature {temperature:g}'
    made.append(Table.of(title, '' if made else _NOTE, _COLUMNS, ranked))
  return made


def policy(row: dict) -> str:
  """The policy of a row's draft lengths, by its short name."""
  name = (row.get('options') or {}).get('policy') or CONSTANT
  path, colon, values = name.partition(':')
  return path.rpartition('.')[2] + colon + values


def families(rows: list[dict]) -> Iterator[list[dict]]:
  """Rows of one place that differ in policy and draft length alone."""
  groups: dict = {}
  for row in rows:
    if row.get('options') is not None:
      rest = {k: v for k, v in row['options'].items() if k != 'policy'}
      names = ('domain', 'temperature', 'load', 'draft', 'verifier')
      key = (*(row.get(name) for name in names), str(rest))
      groups.setdefault(key, []).append(row)
  return (one for one in groups.values() if len(set(map(policy, one))) > 1)


def oracle(row: dict) -> tuple[float, float] | None:
  """Speed-ups of the oracle of a constant length, scoring few or all tokens.

  Args:
    row: None is returned where it took no times, or has another policy.
  """
  if row['v'] is None or policy(row) != CONSTANT:
    return None
  histogram, c, v = row['histogram'], row['c'], row['v']
  few = theory.oracle_of_lengths(histogram, c, {row['gamma'] + 1: v})
  return few, theory.oracle_of_lengths(histogram, c, {1: v})


def _drafted(row: dict) -> str:
  steps = sum(row['histogram'])
  return number(row['drafted'] / steps if steps else None)


def _bound(row: dict) -> str:
  ideal = oracle(row)
  return '-' if ideal is None else f'{ideal[0]:.2f} ({ideal[1]:.2f})'


_POLICIES: Columns = (
  ('domain', lambda r: r['domain']),
  ('temperature', lambda r: f'{r["temperature"]:g}'),
  ('drafter', lambda r: r['drafter']),
  ('policy', policy),
  ('gamma', lambda r: str(r['gamma'])),
  ('drafted', _drafted),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: number(r['predicted_speedup'])),
  ('oracle', _bound),
)


def policies(rows: list[dict]) -> Table | None:
  """Draft-length policies beside the oracle; None where there are none."""
  policy_rows = list(itertools.chain.from_iterable(families(rows)))
  return (
    Table.of('Draft lengths', _LENGTHS, _POLICIES, policy_rows)
    if policy_rows
    else None
  )


def _at_no_cost_of_scoring(row: dict) -> float:
  """The speed-up for the tau and c measured, at v = 1."""
  return metrics.predicted_speedup(row['tau'], row['c'], 1.0, row['gamma'])


def _first(rows: list[dict], key: Callable[[dict], float]) -> str:
  """The drafter with the largest value, and the value; '-' without rows."""
  if not rows:
    return '-'
  row = max(rows, key=key)
  return f'{row["drafter"]} {key(row):.2f}'


def choices(rows: list[dict]) -> Table | None:
  """Which drafter comes first by what counts; None without times."""
  rows = best([r for r in rows if r['lossless'] and r['speedup']])
  if len({row['drafter'] for row in rows}) < 2:
    return None
  lines = []
  for (domain, temperature), here in by_place(rows).items():
    near = _NEAR * max(row['speedup'] for row in here)
    light = [
      r
      for r in here
      if r['speedup'] >= near and r.get('parameters') is not None
    ]
    least = min(light, key=lambda r: r['parameters'], default=None)
    known = [r for r in here if r['c'] is not None]
    cheap = [r for r in known if r['gamma'] * r['c'] < 1]
    lines.append(
      [
        domain,
        f'{temperature:g}',
        _first(here, worth),
        f'{least["drafter"]} {parameters(least)}' if least else '-',
        _first([r for r in here if r.get('parameters') == 0], worth),
        _first(cheap, lambda r: r['tau']),
        _first(known, _at_no_cost_of_scoring),
      ]
    )
  head = ['domain', 'temperature', 'fastest', 'fewest parameters near it']
  head += ['fastest without weights', 'most tau of cheap drafts']
  head += ['fastest where scoring is free']
  return Table('Which drafter when', _CHOICES, head, lines)


def tables(rows: list[dict]) -> list[Table]:
  """What compares drafters; rows of older programs have nothing of it."""
  if not all('parameters' in row for row in rows):
    return []
  made = [choices(rows), *drafters(rows), policies(rows)]
  return [one for one in made if one]
