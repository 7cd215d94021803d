"""What drafts with fewer tokens than the target lose, by their size."""

from specjax.reports import intervals, paired
from specjax.reports.markdown import Table, number, with_interval
from specjax.stats.row import group

_NOTE = """
tau with the tokens that got a logit, and what it changed against all of them,
in percent, paired on prompts; c is the mean over domains.
""".strip()


def _size(row: dict) -> int:
  """Tokens that get a logit; 0: all."""
  return row['options'].get('vocabulary', 0)


def _same_but_size(row: dict) -> tuple:
  """What rows share that differ in the size alone."""
  names = 'load', 'draft', 'verifier', 'gamma', 'temperature', 'batch'
  rest = {
    k: v
    for k, v in row['options'].items()
    if k not in ('vocabulary', 'frequencies')
  }
  return *(row.get(name) for name in names), str(rest)


def _tau(row: dict, whole: dict) -> str:
  shown = intervals.shown(row, 'tau')
  if row is whole:
    return shown
  change = paired.difference(whole, row, paired.TAU, relative=True)
  if change is None:
    return shown
  changed = with_interval(change.value, change.interval, '+.1f')
  return f'{row["tau"]:.2f}, {changed}'


def tables(rows: list[dict]) -> list[Table]:
  """A table for each draft and temperature that was run in several sizes."""
  alike: dict[tuple, list[dict]] = {}
  for row in rows:
    if row.get('options') is not None:
      alike.setdefault(_same_but_size(row), []).append(row)
  made = []
  for own in alike.values():
    by_size = {_size(row): {} for row in sorted(own, key=_order)}
    for row in own:
      by_size[_size(row)][row['domain']] = row
    if len(by_size) < 2 or 0 not in by_size:
      continue
    domains = [domain for (domain,) in group(own, 'domain')]
    lines = []
    for size, here in by_size.items():
      costs = [r['c'] for r in here.values() if r.get('c') is not None]
      one = next(iter(here.values()))
      lines.append(
        [
          str(size or 'all'),
          f'{one["parameters"] / 1e6:.2f}M',
          number(sum(costs) / len(costs) if costs else None, '.3f'),
          *(
            _tau(here[d], by_size[0][d])
            if d in here and d in by_size[0]
            else '-'
            for d in domains
          ),
        ]
      )
    first = own[0]
    title = (
      f'By size of the vocabulary: {first["draft"]}, temperature '
      f'{first["temperature"]:g}'
    )
    head = ['tokens', 'parameters', 'c', *(f'tau, {d}' for d in domains)]
    made.append(Table(title, _NOTE, head, lines))
  return made


def _order(row: dict) -> tuple[bool, int]:
  """All tokens first, then the largest."""
  return _size(row) > 0, -_size(row)
