"""Why is it fast, or slow? Where a step's time goes, and what would help.

  python -m experiments.explain --config configs/explain.py

Takes any config that `experiments.run` takes: its first drafter and rule are
measured at gamma 1 to 8 (or `gammas`), like a run of them, in a folder like
that of a run. Then the loop is timed without its parts (`costs`), and the
numbers give the verdict (`verdict`).
"""

import itertools
import json
import sys

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from experiments import command, costs, measure, results, run, verdict
from experiments.checks import candidates
from experiments.runner import Runner
from experiments.settings import Experiment
from specjax import metrics, theory

LOOPS = ('whole', 'scored', 'judged', 'committed', 'bare')


def narrow(x: Experiment) -> int:
  """Leaves one drafter, one rule and every draft length of interest.

  Returns:
    The draft length that the experiment asks for.

  Raises:
    ValueError: the drafter is unknown, or there is none.
  """
  x.drafters = x.drafters[:1] or tuple(x.known)[:1]
  if not x.drafters:
    raise ValueError('candidates is empty: there is no drafter to explain')
  (candidate,) = candidates(x).values()
  x.verifiers = (candidate.verifiers or x.verifiers)[:1]
  candidate.verifiers = ()
  own = candidate.gamma
  if not x.gammas:
    x.gammas = (1, own) if x.quick else (*range(1, 9), own)
    x.gammas = tuple(sorted(set(x.gammas)))
  x.name = f'explain-{x.name}'
  return own if own in x.gammas else x.gammas[0]


class Explainer(Runner):
  """A run whose costs are measured between its prompts, for each cell.

  What else the machine does meets the prediction as it meets what is
  predicted; no time is used for both.
  """

  def __init__(self, x: Experiment, asked: int):
    """Takes the experiment, and the draft length that it asked for."""
    super().__init__(x)
    self.asked = asked

  def row(self, method, cell, base, runs):
    return super().row(method, cell, base, runs) | {'asked_gamma': self.asked}

  def measure_costs(self, jobs, bar):
    """Nothing before the first prompt."""

  def group(self, domain, temperature, bar):
    greedy = self.units(domain, 0.0)
    self.jobs = itertools.cycle(greedy[1:] + greedy[:1])
    self.timer.clear()
    super().group(domain, temperature, bar)

  def between(self):
    self.timer.turn(next(self.jobs))


def headline(rows: list[dict]) -> list[dict]:
  """The cells that the verdict is about: greedy code where there is any."""
  domains = [r['domain'] for r in rows]
  domain = 'code' if 'code' in domains else domains[0]
  rows = [r for r in rows if r['domain'] == domain]
  coldest = min(r['temperature'] for r in rows)
  return [r for r in rows if r['temperature'] == coldest]


def choose(cells: list[dict]) -> tuple[dict, dict]:
  """The best cell by the model, and the best measured one beside it."""
  cells = sorted(cells, key=lambda r: r['gamma'])
  place = max(range(len(cells)), key=lambda i: cells[i]['predicted_speedup'])
  beside = cells[max(place - 1, 0) : place + 2]
  return cells[place], max(beside, key=lambda r: r['speedup'])


def measure_phases(runner: Runner, gamma: int, domain: str) -> dict:
  """Seconds of a step of every loop of `costs`, plain and speculative."""
  jobs = runner.units(domain, 0.0)
  runner.settle(jobs[0], lambda what: None)  # Where rows were there already.
  built = runner.built
  base = measure.Way(built.plain, built.plain_params)
  (method,) = (m for m in built.methods if m.gamma == gamma)
  way = measure.Way(method.spec, method.params)
  replayed = costs.replay(method.spec, method.params, jobs[0])
  methods = {'plain': (base, base.spec), 'speculative': (way, replayed)}
  timer = costs.Timer(base, methods, LOOPS)
  for full, spec in methods.values():
    loops = costs.to_compile(full, spec, jobs[0], LOOPS)
    measure.compile_all(loops, lambda: None)
  turns = 3 if runner.x.quick else 15
  for i in tqdm(range(turns), file=sys.stderr, desc='phases'):
    timer.turn(jobs[i % len(jobs)])
  return timer.times


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


def add_phases(runner: Explainer) -> None:
  """Measures the phases at the best gamma, where the folder has them not."""
  rows = runner.folder.rows
  best = choose(headline(cells_of(rows)))[1]
  found = phases(rows)
  if found and found['gamma'] == best['gamma']:
    return
  kept = ('drafter', 'verifier', 'gamma', 'domain', 'prompts_hash', 'config')
  runner.folder.add(
    {
      **{name: best[name] for name in kept},
      'temperature': None,
      'asked_gamma': runner.asked,
      'loops': measure_phases(runner, best['gamma'], best['domain']),
      **runner.conditions,
    }
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
  n = times.shape[1]
  rows = np.random.default_rng(0).integers(n, size=(metrics.RESAMPLES, n))

  def differences(times):
    medians = np.median(times, -1)
    return np.concatenate([medians[:-1] - medians[1:], medians[-1:]])

  value = differences(times)
  low, high = np.percentile(differences(times[:, rows]), [2.5, 97.5], 1)
  return {
    name: metrics.Estimate(*map(float, numbers))
    for name, *numbers in zip(costs.PHASES, value, low, high, strict=True)
  }


def facts(cells: list[dict], loops: dict, asked: int) -> verdict.Facts:
  """What the verdict is made from."""

  def outside(name):
    judged = np.array(loops[name]['judged'])
    return float(np.median(judged / np.array(loops[name]['plain'])))

  alpha = cells[0]['alpha']  # Its sums may pass 1 by their rounding.
  return verdict.Facts(
    gamma=asked,
    alpha=None if alpha is None else min(alpha, 1.0),
    tau={r['gamma']: r['tau'] for r in cells},
    c={r['gamma']: r['c'] for r in cells},
    v={r['gamma']: r['v'] for r in cells},
    speedup={r['gamma']: (r['speedup'], *r['speedup_ci']) for r in cells},
    overhead=outside('speculative'),
    plain_overhead=outside('plain'),
  )


def _interval(value: float, low: float, high: float, digits: int = 2) -> str:
  return f'{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]'


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
          _interval(r['tau'], *r['tau_ci']),
          f'{r["c"]:.3f}',
          f'{r["v"]:.2f}',
          _interval(r['predicted_speedup'], *r['predicted_speedup_ci']),
          _interval(r['speedup'], *r['speedup_ci']),
          _interval(
            r['measured_over_predicted'], *r['measured_over_predicted_ci']
          ),
          '-' if np.isnan(even) else f'{even:.2f}',
        ]
      )
    head = ['gamma', 'tau', 'c', 'v', 'predicted', 'measured']
    head += ['measured / predicted', 'break-even alpha']
    parts.append(
      f'### {rows[0]["drafter"]}, {domain}, temperature {temperature:g}\n\n'
      f'{results.markdown(head, lines)}\n'
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
      (_interval(p.value, p.low, p.high, 3), p.value) for p in found.values()
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
  return results.markdown(head, lines)


def plot(rows: list[dict], path) -> None:
  """Speed-up against gamma: model and measurement, with intervals."""
  groups = list(dict.fromkeys((r['domain'], r['temperature']) for r in rows))
  figure = Figure(figsize=(4 * len(groups), 3.2), layout='constrained')
  for place, group in enumerate(groups):
    axes = figure.add_subplot(1, len(groups), place + 1)
    cells = [r for r in rows if (r['domain'], r['temperature']) == group]
    gammas = [r['gamma'] for r in cells]
    model = [r['predicted_speedup'] for r in cells]
    band = np.transpose([r['predicted_speedup_ci'] for r in cells])
    found = np.array([r['speedup'] for r in cells])
    ends = np.transpose([r['speedup_ci'] for r in cells])
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


def summary(rows: list[dict]) -> str:
  """The verdict, model against measurement, and where a step goes."""
  every, found = cells_of(rows), phases(rows)
  cells = headline(every)
  model, best = choose(cells)
  near = ', '.join(
    f'{_interval(r["speedup"], *r["speedup_ci"])} at {r["gamma"]}'
    for r in cells
    if abs(r['gamma'] - model['gamma']) <= 1
  )
  parts = [
    speed_table(every),
    f'Best gamma by the model: {model["gamma"]}; measured there and beside '
    f'it: {near}.\n',
  ]
  if found:
    parts.insert(0, f'{decide(rows).sentence}\n')
    parts.append(
      f'### Where a step goes, {best["domain"]}, temperature 0\n\n'
      f'{phase_table(found["loops"], best)}\n'
    )
  return '\n'.join(parts)


def decide(rows: list[dict]) -> verdict.Verdict:
  """What would help most."""
  cells = headline(cells_of(rows))
  loops = phases(rows)['loops']
  return verdict.decide(facts(cells, loops, cells[0]['asked_gamma']))


def report(folder: results.Folder) -> dict:
  """Writes and prints what was found; returns the last line."""
  text = summary(folder.rows)
  folder.write('summary.md', text)
  plot(cells_of(folder.rows), folder.path / 'speedup.png')
  print(text)
  best = choose(headline(cells_of(folder.rows)))[1]
  found = decide(folder.rows)
  names = ('c', 'v', 'tau', 'predicted_speedup', 'speedup')
  return {
    'results': str(folder.path),
    **{name: best[name] for name in names},
    'ratio_ci': best['measured_over_predicted_ci'],
    'best_gamma': best['gamma'],
    'remedy': found.remedy,
    'verdict': found.sentence,
  }


def main(x: Experiment) -> None:
  try:
    asked = narrow(x)
    if x.quick:
      run.shrink(x)
    if not x.timed:
      raise ValueError('timed is False, but speed is explained: leave it True')
    runner = Explainer(x, asked)
    runner.run()
    add_phases(runner)
    last = report(runner.folder)
  except (ValueError, measure.NotFinite) as error:
    raise SystemExit(f'error: {error}') from error
  print(json.dumps(last))


if __name__ == '__main__':
  command.run(main, Experiment)
