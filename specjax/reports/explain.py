"""Rows of `specjax explain`: where a step's time goes, and what would help.

The cells are rows as `specjax run` makes them, one for each draft length; one
more row has the loops without their parts.

One call of the target yields tau tokens and takes v + gamma c plain steps.
Four things can be made better: drafting, agreement, scoring and what else a
step does. Each is asked what the speed-up would be if half of its trouble were
gone, at the draft length that is best then. The fifth is the draft length
itself, which costs nothing to change.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from specjax.reports import Draw, intervals
from specjax.reports import run as run_report
from specjax.reports.conditions import conditions
from specjax.reports.intervals import column, columns
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


@dataclasses.dataclass(frozen=True)
class Facts:
  """Measurements of a draft; dictionaries are by draft length.

  Attributes:
    gamma: the draft length that was asked for.
    alpha: mean acceptance; None where nothing was drafted.
    tau: tokens per target call.
    c: cost of drafting a token, in plain steps.
    v: cost of scoring, judging and committing gamma + 1 tokens.
    overhead: what a speculative step spends on neither drafting nor scoring,
      in plain steps.
    plain_overhead: the same part of a plain step.
    experts: that tokens of a mixture go to, in words; '' where these are not
      why v is high.
  """

  gamma: int
  alpha: float | None
  tau: dict[int, float]
  c: dict[int, float]
  v: dict[int, float]
  overhead: float
  plain_overhead: float
  experts: str = ''


class Remedy(NamedTuple):
  """The effect of a change."""

  name: str  # draft, agreement, scoring, overhead or gamma
  gain: float  # factor on the predicted speed-up
  speedup: float  # predicted after the change
  gamma: int  # the best draft length then
  trouble: str  # what is wrong, in numbers
  change: str  # what to do


# What is halved by each remedy.
_HALVED = {
  'draft': 'drafting',
  'agreement': 'disagreement',
  'scoring': 'scoring',
  'overhead': 'overhead',
}
_ADVICE = {
  'draft': 'a draft at half the cost',
  'agreement': 'half the disagreement: distil the draft, or enlarge it',
  'scoring': 'half the extra cost of scoring: fewer rows at once, or hardware '
  'with arithmetic to spare',
  'overhead': 'half of what a step does besides: or a larger target',
}

_FEWER_EXPERTS = (
  'half the extra cost of scoring: fewer rows at once, which read fewer experts'
)


def predict(
  facts: Facts,
  gamma: int,
  drafting: float = 1.0,
  disagreement: float = 1.0,
  scoring: float = 1.0,
  overhead: float = 1.0,
) -> float:
  """Returns the speed-up that the costs promise after a change.

  Args:
    facts: what was measured.
    gamma: the draft length.
    drafting: factor on what drafting costs; 1 leaves it as it is.
    disagreement: factor on 1 - alpha.
    scoring: factor on what scoring costs beyond one token.
    overhead: factor on what a step does besides, plain or speculative.
  """
  plain, step = facts.plain_overhead, facts.overhead
  extra = facts.v[gamma] - step - (1 - plain)  # Of gamma tokens more.
  total = 1 - plain + scoring * extra + overhead * step
  total += drafting * gamma * facts.c[gamma]
  tau = facts.tau[gamma]
  if disagreement != 1 and facts.alpha is not None:
    alpha = 1 - disagreement * (1 - facts.alpha)
    tau *= theory.tokens_per_call(alpha, gamma)
    tau /= theory.tokens_per_call(facts.alpha, gamma)
  return tau * (1 - plain + overhead * plain) / total


def best_gamma(facts: Facts, **change: float) -> int:
  """Returns the measured draft length with the largest predicted speed-up."""
  return max(facts.tau, key=lambda gamma: predict(facts, gamma, **change))


def _troubles(facts: Facts, gamma: int) -> dict[str, str]:
  """Says what is wrong at a draft length, by remedy."""
  c, v = facts.c[gamma], facts.v[gamma]
  even = theory.break_even_alpha(gamma, c, v)
  alpha = number(facts.alpha)
  return {
    'draft': f'{gamma * c / (v + gamma * c):.0%} of a step, c {c:.3f}',
    'agreement': f'alpha {alpha}, break-even {even:.2f}',
    'scoring': f'{gamma + 1} tokens cost v {v:.2f}{facts.experts}',
    'overhead': f'{facts.plain_overhead:.0%} of a plain step',
  }


def remedies(facts: Facts) -> list[Remedy]:
  """Returns what would help, the largest gain first."""
  here = best_gamma(facts)
  now, asked = predict(facts, here), predict(facts, facts.gamma)
  # A change of gamma is judged from the one asked for, others from the best.
  trouble, advice = f'gamma {facts.gamma}', f'gamma {here}'
  found = [Remedy('gamma', now / asked, now, here, trouble, advice)]
  troubles, changes = _troubles(facts, here), dict(_ADVICE)
  if facts.experts:
    changes['scoring'] = _FEWER_EXPERTS
  for name, advice in changes.items():
    half = {_HALVED[name]: 0.5}
    gamma = best_gamma(facts, **half)
    after = predict(facts, gamma, **half)
    found.append(
      Remedy(name, after / now, after, gamma, troubles[name], advice)
    )
  return sorted(found, key=lambda one: -one.gain)


def examined(rows: list[dict]) -> list[dict]:
  """Returns the cells of the verdict: greedy code where there is any."""
  domains = [r['domain'] for r in rows]
  domain = 'code' if 'code' in domains else domains[0]
  coldest = min(r['temperature'] for r in pick(rows, domain=domain))
  return pick(rows, domain=domain, temperature=coldest)


def field_of(row: dict, name: str) -> str:
  """Returns the field of a prediction: rows of a batch wait for the last."""
  static = {
    'predicted_speedup': 'predicted_static_speedup',
    'measured_over_predicted': 'measured_over_predicted_static',
  }[name]
  waits = row.get('batch', 1) > 1 and row.get(static) is not None
  return static if waits else name


def predicted(row: dict) -> float:
  return row[field_of(row, 'predicted_speedup')]


def choose(cells: list[dict]) -> dict:
  """Returns the cell with the largest predicted speed-up.

  Lengths next to each other are measured to be about equally fast, so which of
  them comes out first is chance. A prediction rests on counts and on costs
  that were taken in turns, and it is what the verdict is made from.
  """
  return max(cells, key=predicted)


def phases(rows: list[dict]) -> dict | None:
  """Returns the row of the phases; None before they were measured."""
  measured = [r for r in rows if 'loops' in r]
  return measured[-1] if measured else None


def cells_of(rows: list[dict]) -> list[dict]:
  """Sorts the rows of the cells by domain, temperature and gamma."""
  cells = [r for r in rows if 'loops' not in r]
  return sorted(
    cells, key=lambda r: (r['domain'], r['temperature'], r['gamma'])
  )


def split(
  loops: dict[str, list[float]], step: float
) -> dict[str, metrics.Estimate]:
  """Returns what each phase takes, with intervals over the turns.

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


def possible(rows: list[dict]) -> list[dict]:
  """Returns cells of the verdict whose numbers can be true."""
  cells = sanity_checks.without(cells_of(rows))
  return examined(cells) if cells else []


def best_of(rows: list[dict]) -> dict | None:
  """Returns the cell of the best gamma; None if no cell can be believed."""
  cells = possible(rows)
  return choose(cells) if cells else None


def mixture(rows: list[dict]) -> dict | None:
  """Returns how many experts a step touches; None without a mixture.

  Returns:
    `count` and `chosen` of a layer; `layers` with a mixture; then of a plain
    and a speculative step `tokens` at once, the experts `touched`, their least
    and greatest mean `by_layer`, and those that the loop `read`; `source` of
    the choices, 'router' or 'uniform'; `bytes_ratio` of the weights that both
    read, and whether it is `why` v is high: v is 1.1 or more, and half of what
    it is above 1.
  """
  row, best = phases(rows), best_of(rows)
  found = row and row.get('experts')
  if not (found and best and row['gamma'] == best['gamma']):
    return None
  copied = 'count', 'chosen', 'layers', 'tokens', 'source', 'read'
  plain, speculative = found['bytes']
  ratio, v = speculative / plain, best['v']
  return {
    **{name: found[name] for name in copied},
    'touched': [float(np.mean(some)) for some in found['touched']],
    'by_layer': [[min(some), max(some)] for some in found['touched']],
    'bytes': [plain, speculative],
    'bytes_ratio': ratio,
    'why': v >= 1.1 and ratio - 1 >= (v - 1) / 2,
  }


def _touched(found: dict | None) -> str:
  """Says how many experts are read, where that is why v is high."""
  if not (found and found['why']):
    return ''
  plain, speculative = found['read']
  return (
    f', as they read {speculative:.3g} of {found["count"]} experts, and a '
    f'plain step {plain:.3g}'
  )


def _experts(rows: list[dict]) -> str:
  """Says what a mixture reads; '' without one."""
  found = mixture(rows)
  if not found:
    return ''
  one, many = found['tokens']
  (plain, speculative), (_, (low, high)) = found['touched'], found['by_layer']
  how = {
    'router': 'counted from the choices of the router over texts',
    'uniform': 'calculated for tokens that choose evenly, each for itself',
  }[found['source']]
  text = (
    f'Of {found["count"]} experts of a layer a token goes to '
    f'{found["chosen"]}: {one} of a plain step to {plain:.3g}, {many} of a '
    f'speculative one to {speculative:.3g} ({low:.3g} to {high:.3g} by layer), '
    f'{how}.'
  )
  if found['read'][1] > speculative:
    text += f' So many tokens read all {found["count"]} here.'
  weights, more = (size / 1e6 for size in found['bytes'])
  text += (
    f' A plain step reads {weights:.3g} MB of weights, and scoring '
    f'{more:.3g} MB, {found["bytes_ratio"]:.2f} times as many.'
  )
  if found['why']:
    text += f' That is why v is {best_of(rows)["v"]:.2f}.'
  return paragraph(text)


def decide(rows: list[dict]) -> list[Remedy] | None:
  """Returns what would help, the largest gain first; None without phases.

  The draft length that is set already is no remedy, and neither is less of a
  cost that noise has made negative.
  """
  cells, phase_row, best = possible(rows), phases(rows), best_of(rows)
  if not (phase_row and best and phase_row['gamma'] == best['gamma']):
    return None
  loops = phase_row['loops']

  def outside(name):
    judged = np.array(loops[name]['judged'])
    return float(np.median(judged / np.array(loops[name]['plain'])))

  by_gamma = {r['gamma']: r for r in cells}
  asked, alpha = cells[0]['asked_gamma'], cells[0]['alpha']
  facts = Facts(
    gamma=asked if asked in by_gamma else best['gamma'],
    # The sums of alpha may pass 1 by their rounding.
    alpha=None if alpha is None else min(alpha, 1.0),
    **{n: {g: r[n] for g, r in by_gamma.items()} for n in ('tau', 'c', 'v')},
    overhead=outside('speculative'),
    plain_overhead=outside('plain'),
    experts=_touched(mixture(rows)),
  )
  return [one for one in remedies(facts) if one.gain > 1]


def _break_even(row: dict) -> str:
  even = theory.break_even_alpha(row['gamma'], row['c'], row['v'])
  return number(None if np.isnan(even) else even)


_COLUMNS: Columns = (
  *columns('gamma', 'tau', 'c', 'v'),
  ('predicted', lambda r: intervals.shown(r, field_of(r, 'predicted_speedup'))),
  column('speedup', 'measured'),
  (
    'measured / predicted',
    lambda r: intervals.shown(r, field_of(r, 'measured_over_predicted')),
  ),
  ('break-even alpha', _break_even),
)


def speed_tables(rows: list[dict]) -> list[Table]:
  """Compares model and measurement at every draft length."""
  return [
    Table.of(
      f'{rows[0]["drafter"]}, {domain}, temperature {temperature:g}',
      '',
      _COLUMNS,
      cells,
    )
    for (domain, temperature), cells in by_place(rows).items()
  ]


def phase_table(loops: dict, row: dict) -> Table:
  """Shows where the time of a step goes, plain and speculative."""
  steps = {
    'plain': 1e3 * row['batch'] / row['baseline_tokens_per_second'],
    'speculative': 1e3 * row['seconds'] / row['steps'],
  }
  shown = []
  for name, step in steps.items():
    parts = split(loops[name], steps['plain'])
    cells = [
      (with_interval(p.value, p.interval, '.3f'), p.value)
      for p in parts.values()
    ]
    rest = step - sum(p.value for p in parts.values())
    cells += [(f'{rest:.3f}', rest), (f'{step:.3f}', step)]
    shown.append([(text, f'{value / step:.1%}') for text, value in cells])
  names = [*PHASES, 'unexplained', 'step of the run']
  head = ['phase', 'plain, ms', 'share', f'gamma {row["gamma"]}, ms', 'share']
  lines = [
    [name, *one, *other] for name, one, other in zip(names, *shown, strict=True)
  ]
  title = f'Where a step goes, {row["domain"]}, temperature 0'
  return Table(title, '', head, lines)


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  from specjax.reports import plots  # matplotlib takes a second

  def speedup_against_gamma(rows: list[dict]):
    return plots.speedup_against_gamma(cells_of(rows))

  return (speedup_against_gamma,) if cells_of(rows) else ()


def _agreement(rows: list[dict]) -> str:
  """Says how well the model of costs meets what was measured."""
  name = field_of(rows[0], 'measured_over_predicted')
  text = f'Measured over predicted is {span(r[name] for r in rows)}'
  known = [r for r in rows if intervals.stored(r, name)]
  if known:
    meets = sum(intervals.meets(r, name, 0.95, 1.05) for r in known)
    met = f'{meets} of {len(known)} cells'
    text += f'; its interval meets 0.95 to 1.05 in {met}'
  return f'{text}.'


def _where(rows: list[dict]) -> str:
  """Says the conditions, and how steady the machine was."""
  plain = [
    1e3 * t
    for r in rows
    for t in (r.get('seconds_per_step') or {}).get('plain', ())
  ]
  steady = f'; a plain step took {span(plain, ".1f")} ms' if plain else ''
  return f'{conditions(rows)}{steady}.'


def sentence(best: dict, found: list[Remedy] | None) -> str:
  """Returns the verdict: what would help most."""
  many = best.get('batch', 1)
  where = f' at batch {many}' if many > 1 else ''
  text = (
    f'Best gamma{where}: {best["gamma"]}, {intervals.shown(best, "speedup")}'
  )
  text += ' times plain decoding. '
  if found is None:
    return f'{text}Where a step goes has not been measured yet.'
  if not found:
    return f'{text}Nothing that was considered would help.'
  first = found[0]
  return (
    f'{text}What would help most: {first.change}, which would give about '
    f'{first.speedup:.2f} at gamma {first.gamma}.'
  )


def headline(rows: list[dict]) -> str:
  """Says what would help most, how far the costs explain it, and where."""
  cells, best, found = cells_of(rows), best_of(rows), decide(rows)
  if not cells:
    return 'No draft length has been measured yet.\n'
  verdict = 'No draft length has numbers that can be true.'
  parts = [sentence(best, found) if best else verdict]
  parts += [*run_report.doubts(rows), _agreement(cells), _where(cells)]
  lines = [
    [r.change, f'{r.speedup:.2f}', str(r.gamma), r.trouble] for r in found or ()
  ]
  head = ['what would help', 'speed-up', 'at gamma', 'now']
  return blocks(*map(paragraph, parts), markdown(head, lines) if found else '')


def _reads(row: dict) -> str:
  """Says what a plain step and a drafted token read; '' in older rows."""
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
  """Returns the verdict, model against measurement, and where a step goes."""
  made, reads = speed_tables(cells_of(rows)), ''
  if decide(rows) is not None:
    phase_row = phases(rows)
    made.append(phase_table(phase_row['loops'], best_of(rows)))
    reads = _reads(phase_row)
  tables = (one.markdown() for one in made)
  return blocks(headline(rows), *tables, reads, _experts(rows))
