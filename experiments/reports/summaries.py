"""The summary of a results folder, from its rows: each kind of rows has one."""

from collections.abc import Callable

from experiments.reports import certify as certify_report
from experiments.reports import explain, intervals, parity
from experiments.reports import predict as predict_report
from experiments.reports import run as run_report
from experiments.reports.markdown import markdown

Summary = Callable[[list[dict]], str]
_HIDDEN = {
  # Where and how rows were measured.
  'schema',
  'by',
  'config',
  'target',
  'draft',
  'dtype',
  'used',
  'repeats',
  'steps',
  'load_before',
  'versions',
  'device',
  'commit',
  # What the text below a table says.
  'sweep',
  'exponent_of',
  'weight_bytes',
  'cache_bytes_in_use',
  'step_ms_quartiles',
  'exponent',
  'exponent_ci',
}


def _over_blocks(rows: list[dict]) -> str:
  """A sentence on programs that did not look for the fastest baseline."""
  if all(row.get('baseline') for row in rows):
    return ''
  return f'\n{run_report.OVER_BLOCKS}\n'


def peers(rows: list[dict]) -> str:
  """Decoders of two programs: a table for each temperature and domain."""
  parts = []
  for row in rows:
    if row['method'] == rows[0]['method']:
      parts.append(
        f'\n### {row["domain"]}, temperature {row["temperature"]:g}, '
        f'{row["prompts"]} prompts\n\n'
        '| method | draft | gamma | tokens/s | without the prompt '
        '| x transformers plain | same text |\n|---|---|---|---|---|---|---|'
      )
    decoding = row['decoding_tokens_per_second']
    cells = (
      row['method'],
      row['draft'] or '-',
      row['gamma'] or '-',
      f'{row["tokens_per_second"]:.1f}',
      f'{decoding:.1f}' if decoding else '-',
      intervals.shown(row, 'speedup'),
      row.get('greedy_identical', '-'),
    )
    parts.append('| ' + ' | '.join(map(str, cells)) + ' |')
  return '\n'.join(parts).strip() + '\n' + _over_blocks(rows)


def _show(value) -> str:
  if isinstance(value, float):
    return f'{value:.3g}' if value < 100 else f'{value:.0f}'
  return str(value)


def step_costs(rows: list[dict]) -> str:
  """What a step costs: a table for each sweep."""
  parts = []
  for name in dict.fromkeys(r['sweep'] for r in rows):
    mine = [r for r in rows if r['sweep'] == name]
    head = [k for k in mine[0] if k not in _HIDDEN]
    text = markdown(head, [[_show(r[k]) for k in head] for r in mine])
    first = mine[0]
    if 'exponent' in first:
      text += (
        f'\n\n{first["exponent_of"]} grows with the power '
        f'{first["exponent"]:.2f} of size' + ('' if name != 'gamma' else ' + 1')
      )
      if first['exponent_ci']:
        low, high = first['exponent_ci']
        text += f' [{low:.2f}, {high:.2f}]'
    parts.append(f'### {name}\n\n{text}\n')
  return '\n'.join(parts)


def many_prompts(rows: list[dict]) -> str:
  """Many prompts through few rows: a line for each way and drafter."""
  head = ['drafter', 'gamma', 'way', 'chunk', 'tokens/s', 'with reading']
  head += ['x alone', 'x static', 'efficiency', 'tau', 'same text as alone']
  lines = []
  for r in rows:
    lines.append(
      [
        r['drafter'],
        str(r['gamma'] or '-'),
        r['way'],
        str(r['chunk'] or '-'),
        intervals.shown(r, 'tokens_per_second', digits=0),
        f'{r["tokens_per_second_with_reading"]:.0f}',
        f'{r["times_alone"]:.2f}',
        f'{r["times_static"]:.2f}',
        intervals.shown(r, 'efficiency'),
        f'{r["tau"]:.2f}',
        f'{r["same_text_as_alone"]:.1%}',
      ]
    )
  table = f'### Many prompts\n\n{markdown(head, lines)}\n'
  return table + _over_blocks(rows)


def predictions(rows: list[dict]) -> str:
  """Predicted beside measured, and the recommendation."""
  return predict_report.Board(rows).summary()


_COVERAGE = """
How often a 95% interval held the truth, in percent, and the same of the
percentile bootstrap (in brackets). Prompts, or turns, are drawn anew from those
of committed rows; the worst is the population of a kind that is held least
often, of those with at least 8 units. Estimates without an interval are not
counted (`without_interval` in the rows); the bootstrap gives one even where all
units say the same, which counts against it.
""".strip()


def _held(row: dict) -> str:
  """Percent of intervals that held the truth, and the same of the old ones."""
  new, old = row['coverage'], row['percentile_coverage']
  if new is None:
    return '-'
  return f'{100 * new:.1f}' + ('' if old is None else f' ({100 * old:.0f})')


def coverage(rows: list[dict]) -> str:
  """How often intervals held the truth: a line for each kind."""
  sizes = list(dict.fromkeys(r['units'] for r in rows))
  lines = []
  for kind in dict.fromkeys(r['kind'] for r in rows):
    mine = {r['units']: r for r in rows if r['kind'] == kind}
    known = [r for n, r in mine.items() if n >= 8 and r['coverage']]
    worst = min(known, key=lambda r: r['least_coverage'])
    cells = [_held(r) for r in mine.values()]
    where = f'{worst["least_population"]}, {worst["units"]} units'
    least = f'{100 * worst["least_coverage"]:.0f}: {where}'
    lines.append([kind, str(worst['populations']), *cells, least])
  error, old = (
    100 * max(r[name] or 0 for r in rows)
    for name in ('coverage_error', 'percentile_coverage_error')
  )
  head = ['interval of', 'populations', *(f'{n} units' for n in sizes), 'worst']
  return (
    f'### Coverage of 95% intervals\n\n{_COVERAGE}\n\n'
    f'{markdown(head, lines)}\n\n'
    f'The simulation errs by at most {error:.1f} ({old:.1f}), one standard '
    'error of a cell.\n'
  )


# A field that the rows of a kind have and no other rows do.
_KINDS: tuple[tuple[str, Summary], ...] = (
  ('asked_gamma', explain.summary),
  ('acceptance_by_position', run_report.summary),
  ('against', parity.summary),
  ('seconds_by_prompt', peers),
  ('sweep', step_costs),
  ('times_static', many_prompts),
  ('percentile_coverage', coverage),
  ('draft', predictions),
  ('part', certify_report.text),
)


def of(rows: list[dict]) -> str | None:
  """The summary of rows; None where they are of no known kind."""
  for field, make in _KINDS:
    if all(field in row for row in rows):
      return make(rows)
  return None
