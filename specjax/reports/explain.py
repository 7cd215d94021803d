"""Rows of `specjax explain`: the verdict, tables and a figure.

The cells are rows as `specjax run` makes them, one for each draft length;
one more row has the loops without their parts.
"""

import functools

import numpy as np
from matplotlib.figure import Figure

from specjax.reports import Draw, intervals, remedies
from specjax.reports import run as run_report
from specjax.reports.conditions import conditions
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  markdown,
  number,
  paragraph,
  span,
  with_interval,
)
from specjax.stats import metrics, sanity_checks, theory
from specjax.stats.row import by_place, pick

PHASES = ('draft', 'score', 'judge', 'commit', 'loop')
LOOPS = ('whole', 'scored', 'judged', 'committed', 'bare')


def examined(rows: list[dict]) -> list[dict]:
  """The cells that the verdict is about: greedy code where there is any."""
  domains = [r['domain'] for r in rows]
  domain = 'code' if 'code' in domains else domains[0]
  coldest = min(r['temperature'] for r in pick(rows, domain=domain))
  return pick(rows, domain=domain, temperature=coldest)


def told(row: dict, name: str) -> str:
  """The field that is told of: rows of a batch wait for the last of them."""
  static = {
    'predicted_speedup': 'predicted_static_speedup',
    'measured_over_predicted': 'measured_over_predicted_static',
  }[name]
  waits = row.get('batch', 1) > 1 and row.get(static) is not None
  return static if waits else name


def predicted(row: dict) -> float:
  return row[told(row, 'predicted_speedup')]


def choose(cells: list[dict]) -> dict:
  """The cell of the best gamma: that of the largest predicted speed-up.

  Lengths next to each other are measured to be about equally fast, so which of
  them comes out first is chance. A prediction rests on counts and on costs
  that were taken in turns, and it is what the verdict is made from.
  """
  cells = sorted(cells, key=lambda r: r['gamma'])
  return max(cells, key=predicted)


def phases(rows: list[dict]) -> dict | None:
  """The row of the phases; None before they were measured."""
  measured = [r for r in rows if 'loops' in r]
  return measured[-1] if measured else None


def cells_of(rows: list[dict]) -> list[dict]:
  """The rows of the cells, by domain, temperature and gamma."""
  cells = [r for r in rows if 'loops' not in r]
  return sorted(
    cells, key=lambda r: (r['domain'], r['temperature'], r['gamma'])
  )


def split(
  loops: dict[str, list[float]], step: float
) -> dict[str, metrics.Estimate]:
  """What each phase takes, with intervals over the turns.

  Differences of medians, so that the phases add up to the median of a step.
  Each turn counts in its own plain steps: a machine that is slower for a while
  is so for all of a turn.

  Args:
    loops: seconds of a step by loop, and of a plain one, turn by turn.
    step: what a plain step takes; the phases are in its unit.
  """
  times = np.array([loops[name] for name in LOOPS])  # [5, R]
  times = step * times / np.array(loops['plain'])
  medians = metrics.medians(*times)

  def phase(place, *loops):
    return loops[place] - (0 if place + 1 == len(loops) else loops[place + 1])

  return {
    name: metrics.combine(functools.partial(phase, i), medians)
    for i, name in enumerate(PHASES)
  }


def _ends(row: dict, name: str) -> list[float]:
  """The interval of a field; NaN where there is none, and nothing is drawn."""
  return intervals.stored(row, name) or [np.nan, np.nan]


def facts(cells: list[dict], loops: dict, asked: int) -> remedies.Facts:
  """What the verdict is made from."""

  def outside(name):
    judged = np.array(loops[name]['judged'])
    return float(np.median(judged / np.array(loops[name]['plain'])))

  gammas = [r['gamma'] for r in cells]
  alpha = cells[0]['alpha']  # Its sums may pass 1 by their rounding.
  return remedies.Facts(
    gamma=asked if asked in gammas else choose(cells)['gamma'],
    alpha=None if alpha is None else min(alpha, 1.0),
    tau={r['gamma']: r['tau'] for r in cells},
    c={r['gamma']: r['c'] for r in cells},
    v={r['gamma']: r['v'] for r in cells},
    speedup={
      r['gamma']: (r['speedup'], intervals.stored(r, 'speedup')) for r in cells
    },
    overhead=outside('speculative'),
    plain_overhead=outside('plain'),
  )


def _break_even(row: dict) -> str:
  even = theory.break_even_alpha(row['gamma'], row['c'], row['v'])
  return number(None if np.isnan(even) else even)


_COLUMNS: Columns = (
  ('gamma', lambda r: str(r['gamma'])),
  ('tau', lambda r: intervals.shown(r, 'tau')),
  ('c', lambda r: f'{r["c"]:.3f}'),
  ('v', lambda r: f'{r["v"]:.2f}'),
  (
    'predicted',
    lambda r: intervals.shown(r, told(r, 'predicted_speedup')),
  ),
  ('measured', lambda r: intervals.shown(r, 'speedup')),
  (
    'measured / predicted',
    lambda r: intervals.shown(r, told(r, 'measured_over_predicted')),
  ),
  ('break-even alpha', _break_even),
)


def speed_table(rows: list[dict]) -> str:
  """Model and measurement at every draft length, by domain and temperature."""
  return '\n'.join(
    Table.of(
      f'{rows[0]["drafter"]}, {domain}, temperature {temperature:g}',
      '',
      _COLUMNS,
      cells,
    ).markdown()
    for (domain, temperature), cells in by_place(rows).items()
  )


def phase_table(loops: dict, row: dict) -> str:
  """Where the time of a step goes, plain and speculative."""
  steps = {
    'plain': 1e3 * row['batch'] / row['baseline_tokens_per_second'],
    'speculative': 1e3 * row['seconds'] / row['steps'],
  }
  columns = []
  for name, step in steps.items():
    parts = split(loops[name], steps['plain'])
    column = [
      (with_interval(p.value, p.interval, '.3f'), p.value)
      for p in parts.values()
    ]
    rest = step - sum(p.value for p in parts.values())
    column += [(f'{rest:.3f}', rest), (f'{step:.3f}', step)]
    columns.append([(text, f'{value / step:.1%}') for text, value in column])
  names = [*PHASES, 'unexplained', 'step of the run']
  head = ['phase', 'plain, ms', 'share', f'gamma {row["gamma"]}, ms', 'share']
  lines = [
    [name, *one, *other]
    for name, one, other in zip(names, *columns, strict=True)
  ]
  return markdown(head, lines)


def speedup(rows: list[dict]) -> Figure:
  """Speed-up against gamma: model and measurement, with intervals."""
  groups = by_place(cells_of(rows))
  figure = Figure(figsize=(4 * len(groups), 3.2), layout='constrained')
  for place, ((domain, temperature), cells) in enumerate(groups.items()):
    axes = figure.add_subplot(1, len(groups), place + 1)
    gammas = [r['gamma'] for r in cells]
    model = [predicted(r) for r in cells]
    band, ends = (
      np.transpose([_ends(r, name) for r in cells])
      for name in (told(cells[0], 'predicted_speedup'), 'speedup')
    )
    measured = np.array([r['speedup'] for r in cells])
    axes.fill_between(gammas, *band, alpha=0.2)
    axes.plot(gammas, model, label='tau / (v + gamma c)')
    reach = np.abs(ends - measured)
    axes.errorbar(gammas, measured, reach, fmt='o', capsize=3, label='measured')
    axes.axhline(1, color='gray', linewidth=0.8)
    axes.set(xlabel='gamma', title=f'{domain}, temperature {temperature:g}')
    if not place:
      axes.set_ylabel('times plain decoding')
      axes.legend()
  return figure


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  return (speedup,) if cells_of(rows) else ()


def possible(rows: list[dict]) -> list[dict]:
  """The cells that the verdict is about, those whose numbers can be true."""
  cells = sanity_checks.without(cells_of(rows))
  return examined(cells) if cells else []


def best_of(rows: list[dict]) -> dict | None:
  """The cell of the best gamma; None where no cell can be believed."""
  cells = possible(rows)
  return choose(cells) if cells else None


def _agreement(rows: list[dict]) -> str:
  """How well the model of costs meets what was measured."""
  name = told(rows[0], 'measured_over_predicted')
  text = f'Measured over predicted is {span(r[name] for r in rows)}'
  known = [r for r in rows if intervals.stored(r, name)]
  if known:
    meets = sum(intervals.meets(r, name, 0.95, 1.05) for r in known)
    met = f'{meets} of {len(known)} cells'
    text += f'; its interval meets 0.95 to 1.05 in {met}'
  return f'{text}.'


def _where(rows: list[dict]) -> str:
  """The conditions, and how steady the machine was."""
  plain = [
    1e3 * t
    for r in rows
    for t in (r.get('seconds_per_step') or {}).get('plain', ())
  ]
  steady = f'; a plain step took {span(plain, ".1f")} ms' if plain else ''
  return f'{conditions(rows)}{steady}.'


def _near(rows: list[dict], best: dict) -> str:
  """The best draft length, and how fast it and its neighbours were."""
  near = ', '.join(
    f'{intervals.shown(r, "speedup")} at {r["gamma"]}'
    for r in possible(rows)
    if abs(r['gamma'] - best['gamma']) <= 1
  )
  many = best.get('batch', 1)
  where = f' at batch {many}' if many > 1 else ''
  return (
    f'Best gamma{where}: {best["gamma"]}, the largest predicted speed-up. '
    f'Measured there and beside it: {near}.'
  )


def headline(rows: list[dict]) -> str:
  """What would help most, how far the costs explain it, and where."""
  cells = cells_of(rows)
  phase_row, best = phases(rows), best_of(rows)
  verdict = ''
  if cells and not best:
    verdict = 'No draft length has numbers that can be true.'
  elif phase_row and best and phase_row['gamma'] == best['gamma']:
    verdict = decide(rows).sentence
  elif best:
    verdict = 'No verdict: where a step goes has not been measured yet.'
  parts = [verdict, *run_report.doubts(rows)]
  parts += [_near(rows, best)] if best else []
  parts += [_agreement(cells), _where(cells)] if cells else []
  return blocks(*map(paragraph, parts))


def _reads(row: dict) -> str:
  """What a plain step and a drafted token read; '' in rows of before."""
  reads = row.get('reads')
  if not reads:
    return ''

  def both(name):
    weights, cache = (size / 1e6 for size in reads[name])
    return f'{weights:.3g} MB of weights and {cache:.3g} MB of cache'

  text = f'Behind {reads["tokens"]:,} tokens a row reads {both("plain")}'
  if reads.get('drafted'):
    text += f'; for a drafted token {both("drafted")}'
  return paragraph(f'{text}.')


def summary(rows: list[dict]) -> str:
  """The verdict, model against measurement, and where a step goes."""
  phase_row, best = phases(rows), best_of(rows)
  parts = [headline(rows), speed_table(cells_of(rows))]
  if phase_row and best and phase_row['gamma'] == best['gamma']:
    table = phase_table(phase_row['loops'], best)
    parts.append(
      f'### Where a step goes, {best["domain"]}, temperature 0\n\n{table}'
    )
    parts.append(_reads(phase_row))
  return blocks(*parts)


def decide(rows: list[dict]) -> remedies.Advice:
  """What would help most."""
  cells = possible(rows)
  loops = phases(rows)['loops']
  return remedies.decide(facts(cells, loops, cells[0]['asked_gamma']))
