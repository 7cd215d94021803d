"""What the rows of `experiments.explain` say: tables, figure and verdict.

The cells are rows as `experiments.run` makes them, one for each draft length;
one more row has the loops without their parts.
"""

import functools

import numpy as np
from matplotlib.figure import Figure

from experiments.measuring import costs, impossible
from experiments.reports import intervals, remedies
from experiments.reports import run as run_report
from experiments.reports.markdown import markdown, with_interval
from specjax import metrics, theory

LOOPS = ('whole', 'scored', 'judged', 'committed', 'bare')


def headline(rows: list[dict]) -> list[dict]:
  """The cells that the verdict is about: greedy code where there is any."""
  domains = [r['domain'] for r in rows]
  domain = 'code' if 'code' in domains else domains[0]
  rows = [r for r in rows if r['domain'] == domain]
  coldest = min(r['temperature'] for r in rows)
  return [r for r in rows if r['temperature'] == coldest]


def choose(cells: list[dict]) -> dict:
  """The cell of the best gamma: that of the largest predicted speed-up.

  Lengths next to each other are measured to be about equally fast, so which of
  them comes out first is chance. A prediction rests on counts and on costs
  that were taken in turns, and it is what the verdict is made from.
  """
  cells = sorted(cells, key=lambda r: r['gamma'])
  return max(cells, key=lambda r: r['predicted_speedup'])


def phases(rows: list[dict]) -> dict | None:
  """The row of the phases; None before they were measured."""
  found = [r for r in rows if 'loops' in r]
  return found[-1] if found else None


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
    for i, name in enumerate(costs.PHASES)
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


def speed_table(rows: list[dict]) -> str:
  """Model and measurement at every draft length, by domain and temperature."""
  parts = []
  for domain, temperature in dict.fromkeys(
    (r['domain'], r['temperature']) for r in rows
  ):
    lines = []
    for r in rows:
      if (r['domain'], r['temperature']) != (domain, temperature):
        continue
      even = theory.break_even_alpha(r['gamma'], r['c'], r['v'])
      lines.append(
        [
          str(r['gamma']),
          intervals.shown(r, 'tau'),
          f'{r["c"]:.3f}',
          f'{r["v"]:.2f}',
          intervals.shown(r, 'predicted_speedup'),
          intervals.shown(r, 'speedup'),
          intervals.shown(r, 'measured_over_predicted'),
          '-' if np.isnan(even) else f'{even:.2f}',
        ]
      )
    head = ['gamma', 'tau', 'c', 'v', 'predicted', 'measured']
    head += ['measured / predicted', 'break-even alpha']
    parts.append(
      f'### {rows[0]["drafter"]}, {domain}, temperature {temperature:g}\n\n'
      f'{markdown(head, lines)}\n'
    )
  return '\n'.join(parts)


def phase_table(loops: dict, row: dict) -> str:
  """Where the time of a step goes, plain and speculative."""
  steps = {
    'plain': 1e3 * row['batch'] / row['baseline_tokens_per_second'],
    'speculative': 1e3 * row['seconds'] / row['steps'],
  }
  columns = []
  for name, step in steps.items():
    found = split(loops[name], steps['plain'])
    column = [
      (with_interval(p.value, p.interval, 3), p.value) for p in found.values()
    ]
    rest = step - sum(p.value for p in found.values())
    column += [(f'{rest:.3f}', rest), (f'{step:.3f}', step)]
    columns.append([(text, f'{value / step:.1%}') for text, value in column])
  names = [*costs.PHASES, 'unexplained', 'step of the run']
  head = ['phase', 'plain, ms', 'share', f'gamma {row["gamma"]}, ms', 'share']
  lines = [
    [name, *one, *other]
    for name, one, other in zip(names, *columns, strict=True)
  ]
  return markdown(head, lines)


def plot(rows: list[dict], path) -> None:
  """Speed-up against gamma: model and measurement, with intervals."""
  groups = list(dict.fromkeys((r['domain'], r['temperature']) for r in rows))
  figure = Figure(figsize=(4 * len(groups), 3.2), layout='constrained')
  for place, group in enumerate(groups):
    axes = figure.add_subplot(1, len(groups), place + 1)
    cells = [r for r in rows if (r['domain'], r['temperature']) == group]
    gammas = [r['gamma'] for r in cells]
    model = [r['predicted_speedup'] for r in cells]
    band, ends = (
      np.transpose([_ends(r, name) for r in cells])
      for name in ('predicted_speedup', 'speedup')
    )
    found = np.array([r['speedup'] for r in cells])
    axes.fill_between(gammas, *band, alpha=0.2)
    axes.plot(gammas, model, label='tau / (v + gamma c)')
    reach = np.abs(ends - found)
    axes.errorbar(gammas, found, reach, fmt='o', capsize=3, label='measured')
    axes.axhline(1, color='gray', linewidth=0.8)
    axes.set(xlabel='gamma', title=f'{group[0]}, temperature {group[1]:g}')
    if not place:
      axes.set_ylabel('times plain decoding')
      axes.legend()
  figure.savefig(path, dpi=120)


def possible(rows: list[dict]) -> list[dict]:
  """The cells that the verdict is about, those whose numbers can be true."""
  cells = impossible.without(cells_of(rows))
  return headline(cells) if cells else []


def summary(rows: list[dict]) -> str:
  """The verdict, model against measurement, and where a step goes."""
  cells, found = possible(rows), phases(rows)
  parts = [f'{sentence}\n' for sentence in run_report.doubts(rows)]
  parts.append(speed_table(cells_of(rows)))
  if not cells:
    return '\n'.join(
      [*parts, 'No draft length has numbers that can be true.\n']
    )
  best = choose(cells)
  near = ', '.join(
    f'{intervals.shown(r, "speedup")} at {r["gamma"]}'
    for r in cells
    if abs(r['gamma'] - best['gamma']) <= 1
  )
  parts.append(
    f'Best gamma: {best["gamma"]}, the largest predicted speed-up. Measured '
    f'there and beside it: {near}.\n'
  )
  if found and found['gamma'] == best['gamma']:
    parts.insert(0, f'{decide(rows).sentence}\n')
    parts.append(
      f'### Where a step goes, {best["domain"]}, temperature 0\n\n'
      f'{phase_table(found["loops"], best)}\n'
    )
  return '\n'.join(parts)


def decide(rows: list[dict]) -> remedies.Advice:
  """What would help most."""
  cells = possible(rows)
  loops = phases(rows)['loops']
  return remedies.decide(facts(cells, loops, cells[0]['asked_gamma']))
