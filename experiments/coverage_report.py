"""Rows of `experiments.coverage`: how often intervals held the truth."""

from typing import Any

from specjax.reports.markdown import Table, blocks, paragraph, span
from specjax.stats.row import group

_NOTE = """
How often a 95% interval held the truth, in percent, and the same of the
percentile bootstrap (in brackets). Prompts, or turns, are drawn anew from those
of committed rows; the worst is the population of a kind that is held least
often, of those with at least 8 units. Estimates without an interval are not
counted (`without_interval` in the rows); the bootstrap gives one even where all
units say the same, which counts against it.
""".strip()


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  shares = ('coverage', 'percentile_coverage', 'least_coverage')
  errors = ('coverage_error', 'percentile_coverage_error')
  return {
    'kind': str,
    'units': int,
    'populations': int,
    **dict.fromkeys((*shares, *errors), float | None),
    'least_population': str | None,
  }


def headline(rows: list[dict]) -> str:
  """Between which shares the kinds lie, and how well that is known."""
  known = [r for r in rows if r['coverage'] is not None]
  if not known:
    return 'No interval was made: every draw has too few units.\n'
  old = [r['percentile_coverage'] for r in rows if r['percentile_coverage']]
  error, old_error = (
    100 * max(r[name] or 0 for r in rows)
    for name in ('coverage_error', 'percentile_coverage_error')
  )
  text = (
    f'95% intervals of {len({r["kind"] for r in known})} kinds hold the truth '
    f'in {span((100 * r["coverage"] for r in known), ".1f")} percent of the '
    f'draws, by kind and number of units (from {min(r["units"] for r in known)}'
    f' to {max(r["units"] for r in known)})'
  )
  if old:
    shares = span((100 * share for share in old), '.0f')
    text += f'; those of the percentile bootstrap in {shares}'
  return blocks(
    paragraph(f'{text}.'),
    paragraph(
      f'The simulation errs by at most {error:.1f} ({old_error:.1f}), one '
      'standard error of a cell.'
    ),
  )


def _held(row: dict) -> str:
  """Percent of intervals that held the truth, and the same of the old ones."""
  new, old = row['coverage'], row['percentile_coverage']
  if new is None:
    return '-'
  return f'{100 * new:.1f}' + ('' if old is None else f' ({100 * old:.0f})')


def _worst(rows: list[dict]) -> str:
  """The population that is held least often, of those with enough units."""
  known = [r for r in rows if r['units'] >= 8 and r['coverage']]
  if not known:
    return '-'
  row = min(known, key=lambda r: r['least_coverage'])
  where = f'{row["least_population"]}, {row["units"]} units'
  return f'{100 * row["least_coverage"]:.0f}: {where}'


def summary(rows: list[dict]) -> str:
  """The headline, and a line for each kind of interval."""
  sizes = list(dict.fromkeys(r['units'] for r in rows))
  lines = []
  for (kind,), mine in group(rows, 'kind').items():
    by_units = {r['units']: r for r in mine}
    cells = [_held(by_units[n]) if n in by_units else '-' for n in sizes]
    populations = str(mine[0]['populations'])
    lines.append([kind, populations, *cells, _worst(mine)])
  head = ['interval of', 'populations', *(f'{n} units' for n in sizes), 'worst']
  table = Table('Coverage of 95% intervals', _NOTE, head, lines)
  return blocks(headline(rows), table.markdown())
