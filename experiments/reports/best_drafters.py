"""Drafters beside one another: the best of each, what it weighs, how long.

Everything is made from the rows of `experiments.run`.
"""

from collections.abc import Iterator

from experiments.reports import intervals
from experiments.reports.markdown import Table
from specjax import theory

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


def places(rows: list[dict]) -> list[tuple[str, float]]:
  """Domains with temperatures, in the order of the rows."""
  return list(dict.fromkeys((r['domain'], r['temperature']) for r in rows))


def at(rows: list[dict], place: tuple[str, float]) -> list[dict]:
  return [r for r in rows if (r['domain'], r['temperature']) == place]


def worth(row: dict) -> float:
  """What the best row has most of: speed, or tau where there are no times."""
  return row['tau'] if row['speedup'] is None else row['speedup']


def best(rows: list[dict]) -> list[dict]:
  """The best row of every drafter at every place, lossy ones apart."""
  found: dict = {}
  for row in rows:
    names = ('drafter', 'lossless', 'domain', 'temperature')
    key = tuple(row[name] for name in names)
    if key not in found or worth(row) > worth(found[key]):
      found[key] = row
  return list(found.values())


def _number(value: float | None, digits: int) -> str:
  return '-' if value is None else f'{value:.{digits}f}'


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


_COLUMNS = (
  ('drafter', lambda r: r['drafter']),
  ('draft', lambda r: r.get('draft') or '-'),
  ('rule', rule),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: _number(r['alpha'], 2)),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('c', lambda r: _number(r['c'], 3)),
  ('v', lambda r: _number(r['v'], 2)),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: _number(r['predicted_speedup'], 2)),
  ('parameters', parameters),
  ('bytes', size),
  ('training', training),
)


def drafters(rows: list[dict]) -> list[Table]:
  """The best of each drafter: a table for each domain and temperature."""
  made = []
  for place in places(rows):
    found = sorted(best(at(rows, place)), key=worth, reverse=True)
    lines = [[show(r) for _, show in _COLUMNS] for r in found]
    title = f'Best of each drafter: {place[0]}, temperature {place[1]:g}'
    head = [name for name, _ in _COLUMNS]
    made.append(Table(title, '' if made else _NOTE, head, lines))
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
  for group in groups.values():
    if len({policy(row) for row in group}) > 1:
      yield group


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


def policies(rows: list[dict]) -> Table | None:
  """Draft-length policies beside the oracle; None where there are none."""
  lines = []
  for group in families(rows):
    for row in group:
      steps = sum(row['histogram'])
      bound = oracle(row)
      lines.append(
        [
          row['domain'],
          f'{row["temperature"]:g}',
          row['drafter'],
          policy(row),
          str(row['gamma']),
          _number(row['drafted'] / steps if steps else None, 2),
          intervals.shown(row, 'tau'),
          intervals.shown(row, 'speedup'),
          _number(row['predicted_speedup'], 2),
          '-' if bound is None else f'{bound[0]:.2f} ({bound[1]:.2f})',
        ]
      )
  head = ['domain', 'temperature', 'drafter', 'policy', 'gamma', 'drafted']
  head += ['tau', 'speed-up', 'predicted', 'oracle']
  if not lines:
    return None
  return Table('Draft lengths', _LENGTHS, head, lines)


def tables(rows: list[dict]) -> list[Table]:
  """What compares drafters; rows of older programs have nothing of it."""
  if not all('parameters' in row for row in rows):
    return []
  lengths = policies(rows)
  return drafters(rows) + ([lengths] if lengths else [])


def text(rows: list[dict]) -> str:
  """These tables in Markdown."""
  return ''.join(f'\n{one.markdown()}' for one in tables(rows))
