"""Rows of `specjax predict`: candidates in order, and what to use."""

import itertools
from typing import NamedTuple

import numpy as np

from specjax.reports import intervals
from specjax.reports import run as run_report
from specjax.reports.conditions import conditions
from specjax.reports.markdown import (
  Columns,
  Table,
  blocks,
  markdown,
  paragraph,
  span,
)
from specjax.stats import metrics
from specjax.stats.row import pick, times_of


class Choice(NamedTuple):
  """A candidate, its best length, and its predicted speed-up."""

  drafter: str
  gamma: int
  speed: float


COLUMNS: Columns = (
  ('drafter', lambda r: r['drafter']),
  ('gamma', lambda r: str(r['gamma'])),
  ('alpha', lambda r: intervals.shown(r, 'alpha')),
  ('tau, replayed', lambda r: f'{r["predicted_tau"]:.2f}'),
  ('with beta', lambda r: f'{r["tau_by_beta"]:.2f}'),
  ('i.i.d.', lambda r: f'{r["tau_iid"]:.2f}'),
  ('measured', lambda r: intervals.shown(r, 'tau')),
  ('c', lambda r: f'{r["c"]:.3f}'),
  ('v', lambda r: f'{r["v"]:.2f}'),
  ('predicted speed-up', lambda r: f'{r["predicted_speedup"]:.2f}'),
  ('speed-up', lambda r: intervals.shown(r, 'speedup')),
  (
    'predicted / measured',
    lambda r: intervals.shown(r, 'predicted_over_measured'),
  ),
)


# Of batches, whose rows wait for the last one.
_AT_WORK: Columns = (
  ('speed-up at work', lambda r: intervals.shown(r, 'speedup_at_work')),
)
_WAITING = ' in batches that wait for their last row'


class Board:
  """What is predicted of every candidate, from rows of all three parts."""

  def __init__(self, rows: list[dict]):
    self.doubts = run_report.doubts(rows)
    self.costs = {
      (r['drafter'], r['gamma']): r for r in pick(rows, part='cost')
    }
    self.seen = {
      (r['drafter'], r['domain'], r['temperature']): r
      for r in pick(rows, part='replay')
    }
    self.checks = pick(rows, part='check')
    self.impossible = {
      (r['drafter'], r['gamma']) for r in rows if r.get('impossible')
    }
    self.drafters = list(dict.fromkeys(d for d, *_ in self.seen))
    self.batch = next((r['batch'] for r in rows if r.get('batch')), 1)
    self.domains = list(dict.fromkeys(d for _, d, _ in self.seen))
    self.temperatures = list(dict.fromkeys(t for *_, t in self.seen))

  def speed(self, drafter: str, gamma: int, domains, temperature) -> float:
    """Predicted speed-up on the prompts of some domains together."""
    tokens = calls = 0.0
    for domain in domains:
      row = self.seen[drafter, domain, temperature]
      tokens += row['tokens']
      calls += sum(row['unit_target_calls'][row['gammas'].index(gamma)])
    cost = self.costs[drafter, gamma]
    return metrics.predicted_speedup(
      tokens / calls, cost['c'], cost['v'], gamma
    )

  def possible(self, drafter: str) -> list[int]:
    """Lengths whose numbers can be true; see `impossible`."""
    pairs = [p for p in self.costs if p not in self.impossible]
    return [g for d, g in pairs if d == drafter]

  def best(self, drafter: str, domains, temperature) -> int:
    """The length of a candidate's largest speed-up."""
    gammas = self.possible(drafter)
    gammas = gammas or [g for d, g in self.costs if d == drafter]
    return max(
      gammas, key=lambda g: self.speed(drafter, g, domains, temperature)
    )

  def ranked(self, drafters, domains, temperature: float) -> list[Choice]:
    """Candidates at their best lengths, the fastest first."""
    choices = []
    for drafter in drafters:
      gamma = self.best(drafter, domains, temperature)
      speed = self.speed(drafter, gamma, domains, temperature)
      choices.append(Choice(drafter, gamma, speed))
    return sorted(choices, key=lambda choice: -choice.speed)

  def winner(self, temperature: float) -> Choice | None:
    """The best candidate of all domains together; None without any."""
    believed = [d for d in self.drafters if self.possible(d)]
    return next(iter(self.ranked(believed, self.domains, temperature)), None)

  def cell(self, domain: str, temperature: float) -> list[dict]:
    """The checks of one cell, the largest predicted speed-up first."""
    checks = pick(self.checks, domain=domain, temperature=temperature)
    return sorted(checks, key=lambda r: -r['predicted_speedup'])

  def lengths(self, domain: str, temperature: float) -> str:
    """tau and predicted speed-up of every candidate at every length."""
    gammas = sorted({g for _, g in self.costs})
    lines = []
    for drafter in self.drafters:
      line = [drafter]
      row = self.seen.get((drafter, domain, temperature))
      for gamma in gammas:
        if row is None or (drafter, gamma) not in self.costs:
          line.append('-')  # Not measured yet.
          continue
        speed = self.speed(drafter, gamma, [domain], temperature)
        tau = row['tau'][row['gammas'].index(gamma)]
        line.append(f'{tau:.2f} ({speed:.2f})')
      lines.append(line)
    head = ['tau (speed-up) at gamma', *map(str, gammas)]
    return markdown(head, lines)

  def recommend(self, temperature: float) -> str:
    """One sentence for one temperature."""
    choice = self.winner(temperature)
    lead = f'At temperature {temperature:g} '
    if self.batch > 1:
      lead = f'At temperature {temperature:g}, {self.batch} rows at a time, '
    if choice is None:
      return f'{lead}nothing is recommended: no candidate can be believed.'
    if choice.speed <= 1:
      return (
        f'{lead}do not speculate: the best, {choice.drafter} with gamma '
        f'{choice.gamma}, is predicted at {choice.speed:.2f} times plain '
        'decoding.'
      )
    cell = {'drafter': choice.drafter, 'gamma': choice.gamma}
    checks = pick(self.checks, **cell, temperature=temperature)
    measured = 'not measured'
    if checks:
      units = zip(*(times_of(r) for r in checks), strict=True)
      columns = map(np.concatenate, units)
      measured = f'measured {metrics.speedup(*columns).value:.2f}'
      measured += _WAITING * (self.batch > 1)
    return (
      f'{lead}use {choice.drafter} and draft {choice.gamma}: predicted '
      f'{choice.speed:.2f} times plain decoding over {len(self.domains)} '
      f'domain{"s" * (len(self.domains) > 1)}, {measured}.'
    )

  def recommendation(self) -> str:
    return ' '.join(self.recommend(t) for t in self.temperatures)

  def verdict(self) -> str:
    """How well the loop kept to what was predicted."""
    greedy = [r for r in self.checks if r['temperature'] == 0]
    sampled = [
      r
      for r in self.checks
      if r['temperature'] and intervals.stored(r, 'difference')
    ]
    ratio = 'predicted_over_measured'
    timed = [r for r in self.checks if intervals.stored(r, ratio)]
    covered = sum(intervals.meets(r, 'difference', 0, 0) for r in sampled)
    agree = sum(intervals.meets(r, ratio, 0.9, 1.1) for r in timed)
    same, equal, texts = (
      sum(r[k] for r in greedy) for k in ('same_text', 'equal_calls', 'prompts')
    )
    sentences = []
    if greedy:
      sentences.append(
        'At temperature 0 the replayed target calls are those of the loop in '
        f'{equal} of the {same} texts that both wrote alike, of {texts}.'
      )
    if sampled:
      sentences.append(
        'Above 0 the interval of the difference of tau, paired on prompts, '
        f'covers 0 in {covered} of {len(sampled)} cells.'
      )
    if timed:
      sentences.append(
        'The interval of predicted over measured speed-up meets [0.9, 1.1] in '
        f'{agree} of {len(timed)} cells.'
      )
    return ' '.join(sentences)

  def tables(self) -> list[str]:
    """Two tables for each domain and temperature, as markdown."""
    parts = []
    for domain, temperature in itertools.product(
      self.domains, self.temperatures
    ):
      cell = self.cell(domain, temperature)
      place = {'domain': domain, 'temperature': temperature}
      seen = pick(list(self.seen.values()), **place)[0]
      title = (
        f'{domain}, temperature {temperature:g}: {seen["prompts"]} '
        f'prompts, {seen["tokens"]} tokens of the target'
      )
      columns = COLUMNS + _AT_WORK * (self.batch > 1)
      made = Table.of(title, '', columns, cell)
      parts.append(made.markdown() if cell else f'### {title}')
      parts.append(self.lengths(domain, temperature))
    return parts

  def last_line(self) -> dict:
    """The best candidate of the first cell: code, at the first temperature.

    Of those whose numbers can be true; its fields are null without any.
    """
    domain = 'code' if 'code' in self.domains else self.domains[0]
    least = min(self.temperatures)
    cells = [
      r
      for r in self.cell(domain, least)
      if (r['drafter'], r['gamma']) not in self.impossible
    ]
    row = cells[0] if cells else {}
    names = ('drafter', 'gamma', 'domain', 'temperature', 'alpha', 'alpha_ci')
    names += ('predicted_tau', 'tau', 'predicted_speedup', 'speedup')
    return {
      **{name: row.get(name) for name in names},
      'recommendation': self.recommendation(),
    }


def _where(rows: list[dict]) -> str:
  """Where it was predicted, how much text it is, and how steady the machine."""
  replays = pick(rows, part='replay')
  text = conditions(replays or rows)
  if replays:
    mine = pick(replays, drafter=replays[0]['drafter'])
    text += f'; {sum(r["tokens"] for r in mine):,} tokens of the target in all'
  steps = [1e3 * r['plain_seconds'] for r in pick(rows, part='cost')]
  if steps:
    text += f'; a plain step took {span(steps, ".1f")} ms'
  return f'{text}.'


def headline(rows: list[dict]) -> str:
  """What is recommended, how the predictions fared, and where."""
  board = Board(rows)
  sentences = [board.recommendation(), *board.doubts]
  sentences += [board.verdict()] if board.checks else []
  return blocks(*map(paragraph, [*sentences, _where(rows)]))


def summary(rows: list[dict]) -> str:
  """The headline, and all tables."""
  return blocks(headline(rows), *Board(rows).tables())
