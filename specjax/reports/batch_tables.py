"""Tables of a run of several batch sizes; see `batches` for their verdict."""

from specjax.reports import intervals, run_headline
from specjax.reports.batches import best, timed
from specjax.reports.markdown import Columns, Table, number
from specjax.stats.row import by_place, group

_NOTE = """
A batch takes as long as its last row; gamma 0 is plain decoding. **ms per
token** is what a row waits for one until it ends, **at work** the share of the
steps in which rows had not ended. **predicted** is tau / (v + gamma c), times
at work over that of plain decoding, with c and v of this batch size; **rows
refilled** is tau / (v + gamma c) alone, what is expected where another prompt
takes the place of a row that ends.
""".strip()
_BEST = """
The draft length of the largest speed-up at each batch, of those of which the
most can be said; plain and speculative on either side of a slash.
""".strip()


def _milliseconds(row: dict, name: str) -> str:
  if row.get(name) is None:
    return '-'
  return intervals.shown(row, name, '.2f', 1e3)


def _share(row: dict, name: str) -> str:
  return number(row.get(name), '.0%')


def _shown(row: dict, name: str) -> str:
  return '-' if row.get(name) is None else intervals.shown(row, name)


_ROWS: Columns = (
  ('batch', lambda r: str(r['batch'])),
  ('drafter', lambda r: r['drafter']),
  ('gamma', lambda r: str(r['gamma'])),
  ('tokens/s', lambda r: number(r['tokens_per_second'], '.0f')),
  ('ms per token', lambda r: _milliseconds(r, 'row_seconds_per_token')),
  ('tau', lambda r: number(r['tau'])),
  ('c', lambda r: number(r['c'], '.3f')),
  ('v', lambda r: number(r['v'])),
  ('at work', lambda r: _share(r, 'at_work')),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  ('predicted', lambda r: number(r.get('predicted_static_speedup'))),
  (
    'measured / predicted',
    lambda r: _shown(r, 'measured_over_predicted_static'),
  ),
  ('rows refilled', lambda r: number(r.get('predicted_speedup'))),
)
_OF_BATCHES: Columns = (
  ('batch', lambda r: str(r['batch'])),
  ('best', lambda r: run_headline.named(r, [r])),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  (
    'tokens/s',
    lambda r: (
      f'{r["baseline_tokens_per_second"]:.0f} / {r["tokens_per_second"]:.0f}'
    ),
  ),
  (
    'ms per token of a row',
    lambda r: ' / '.join(
      _milliseconds(r, name)
      for name in ('baseline_row_seconds_per_token', 'row_seconds_per_token')
    ),
  ),
  ('v', lambda r: number(r['v'])),
  ('verdict', run_headline.state),
)


def plain(row: dict) -> dict:
  """Plain decoding beside a row, as a row at draft length 0."""
  was = {
    name.removeprefix('baseline_'): value
    for name, value in row.items()
    if name.startswith('baseline_')
  }
  own = {'drafter': 'plain', 'gamma': 0, 'tau': 1.0, 'v': 1.0, 'c': None}
  own |= {'speedup': 1.0, 'speedup_ci': None, 'predicted_speedup': None}
  kept = {name: row[name] for name in ('batch', 'prompts')}
  return kept | own | was


def tables(rows: list[dict]) -> list[Table]:
  """What is best at each batch, and every draft length at every batch."""
  chosen, every = [], []
  for (domain, temperature), here in by_place(timed(rows)).items():
    where = f'{domain}, temperature {temperature:g}'
    title = f'Best draft length by batch: {where}'
    note = '' if chosen else _BEST
    chosen.append(Table.of(title, note, _OF_BATCHES, best(here)))
    lines = []
    for same in group(_in_order(here), 'batch').values():
      lines += [plain(same[0]), *same]
    note = '' if every else _NOTE
    every.append(Table.of(f'By batch: {where}', note, _ROWS, lines))
  return chosen + every


def _in_order(rows: list[dict]) -> list[dict]:
  return sorted(rows, key=lambda r: (r['batch'], r['drafter'], r['gamma']))
