"""Rows of `specjax predict`: candidates in order, and what to use."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from specjax.reports import intervals
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
)
from specjax.stats import metrics
from specjax.stats.row import pick, times_of


class Choice(NamedTuple):
  """A candidate, its best length, and its predicted speed-up."""

  drafter: str
  gamma: int
  speed: float


COLUMNS: Columns = (
  *columns('drafter', 'gamma', 'alpha'),
  *columns('predicted_tau', 'tau_by_beta', 'tau_iid'),
  column('tau', 'measured'),
  *columns('c', 'v'),
  column('predicted_speedup', 'predicted speed-up', alone=True),
  *columns('speedup', 'predicted_over_measured'),
)
_HEAD = ['temperature', 'use', 'gamma', 'predicted', 'measured']


class Board:
  """Predictions of every candidate, from rows of all three parts."""

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
    """Predicts the speed-up on the prompts of some domains together."""
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
    """Returns lengths whose numbers can be true; see `impossible`."""
    pairs = [p for p in self.costs if p not in self.impossible]
    return [g for d, g in pairs if d == drafter]

  def best(self, drafter: str, domains, temperature) -> int:
    """Returns the length of a candidate's largest speed-up."""
    gammas = self.possible(drafter)
    gammas = gammas or [g for d, g in self.costs if d == drafter]
    return max(
      gammas, key=lambda g: self.speed(drafter, g, domains, temperature)
    )

  def ranked(self, drafters, domains, temperature: float) -> list[Choice]:
    """Returns candidates at their best lengths, the fastest first."""
    choices = []
    for drafter in drafters:
      gamma = self.best(drafter, domains, temperature)
      speed = self.speed(drafter, gamma, domains, temperature)
      choices.append(Choice(drafter, gamma, speed))
    return sorted(choices, key=lambda choice: -choice.speed)

  def winner(self, temperature: float) -> Choice | None:
    """Returns the best candidate of all domains together, if any."""
    believed = [d for d in self.drafters if self.possible(d)]
    return next(iter(self.ranked(believed, self.domains, temperature)), None)

  def cell(self, domain: str, temperature: float) -> list[dict]:
    """Returns the checks of one cell, the fastest prediction first."""
    checks = pick(self.checks, domain=domain, temperature=temperature)
    return sorted(checks, key=lambda r: -r['predicted_speedup'])

  def lengths(self, domain: str, temperature: float) -> str:
    """Shows alpha, and tau and speed-up at every length, of each candidate."""
    gammas = sorted({g for r in self.seen.values() for g in r['gammas']})
    lines = []
    for drafter in self.drafters:
      row = self.seen.get((drafter, domain, temperature))
      if row is None:  # Not measured yet.
        lines.append([drafter, *['-'] * (len(gammas) + 1)])
        continue
      line = [drafter, intervals.shown(row, 'alpha', '.2f')]
      for gamma in gammas:
        tau = f'{row["tau"][row["gammas"].index(gamma)]:.2f}'
        if (drafter, gamma) in self.costs:
          speed = self.speed(drafter, gamma, [domain], temperature)
          tau += f' ({speed:.2f})'
        line.append(tau)
      lines.append(line)
    what = 'tau (speed-up)' if self.costs else 'tau'
    return markdown(['drafter', 'alpha', f'{what} at gamma {gammas[0]}',
                     *map(str, gammas[1:])], lines)  # fmt: skip

  def recommend(self, temperature: float) -> list[str]:
    """Says what to use over all domains: a line for the headline."""
    choice, line = self.winner(temperature), [f'{temperature:g}']
    if choice is None:
      return [*line, 'nothing can be believed', '-', '-', '-']
    name = choice.drafter if choice.speed > 1 else f'nothing ({choice.drafter})'
    cell = {'drafter': choice.drafter, 'gamma': choice.gamma}
    checks, measured = pick(self.checks, **cell, temperature=temperature), None
    if checks:
      units = zip(*(times_of(r) for r in checks), strict=True)
      measured = metrics.speedup(*map(np.concatenate, units)).value
    speeds = [number(choice.speed), number(measured)]
    return [*line, name, str(choice.gamma), *speeds]

  def recommendation(self) -> str:
    """Says the same in one line."""
    return '; '.join(
      ', '.join(f'{k} {v}' for k, v in zip(_HEAD, line, strict=True))
      for line in map(self.recommend, self.temperatures)
    )

  def agreement(self) -> list[list[str]]:
    """Says how well the loop kept to what was predicted."""
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
    lines = [
      (f'greedy texts that both wrote alike, of {texts}: as many calls',
       equal, same),
      ('cells above temperature 0: measured less replayed tau covers 0',
       covered, len(sampled)),
      ('cells: predicted over measured speed-up meets [0.9, 1.1]',
       agree, len(timed)),
    ]  # fmt: skip
    return [[what, str(n), str(of)] for what, n, of in lines if of]

  def tables(self) -> list[str]:
    """Makes two tables for each domain and temperature, as markdown."""
    parts = []
    waits = (column('speedup_at_work'),) if self.batch > 1 else ()
    for place in dict.fromkeys((d, t) for _, d, t in self.seen):
      cell = self.cell(*place)
      where = dict(zip(('domain', 'temperature'), place, strict=True))
      seen = pick(list(self.seen.values()), **where)[0]
      title = (
        f'{place[0]}, temperature {place[1]:g}: {seen["prompts"]} '
        f'prompts, {seen["tokens"]} tokens of the target'
      )
      made = Table.of(title, '', COLUMNS + waits, cell)
      parts.append(made.markdown() if cell else f'### {title}')
      parts.append(self.lengths(*place))
    return parts

  def best_row(self, among: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the check of the best candidate, of code or the first domain.

    It is that of the recommended candidate where there is one, and else the
    fastest whose numbers can be true, at the first temperature; {} without any.

    Args:
      among: names of candidates; None: all.
    """
    domain = 'code' if 'code' in self.domains else self.domains[0]
    coldest = min(self.temperatures)
    cells = (
      r
      for r in self.cell(domain, coldest)
      if (r['drafter'], r['gamma']) not in self.impossible
      and (among is None or r['drafter'] in among)
    )
    use = (self.winner(coldest) or ())[:2]
    return min(
      cells, key=lambda r: (r['drafter'], r['gamma']) != use, default={}
    )

  def last_line(self) -> dict[str, Any]:
    """Returns what `best_row` says; its fields are null without any."""
    row = self.best_row()
    names = ('drafter', 'gamma', 'domain', 'temperature', 'alpha', 'alpha_ci')
    names += ('predicted_tau', 'tau', 'predicted_speedup', 'speedup')
    return {
      **{name: row.get(name) for name in names},
      'recommendation': self.recommendation() if self.costs else None,
    }


def _where(rows: list[dict]) -> str:
  """Says where, how much text it is, and how steady the machine was."""
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
  """Says what to use, how the predictions fared, and where."""
  board = Board(rows)
  many = f', {board.batch} rows at a time' if board.batch > 1 else ''
  count = len(board.domains)
  over = f'over {count} domain{"s" * (count > 1)}{many}'
  lead = f'What to use {over}, in times plain decoding.'
  if not board.costs:
    lead = f'What is accepted of each drafter {over}; no times were taken.'
  lines, agreement = map(board.recommend, board.temperatures), board.agreement()
  return blocks(
    *map(paragraph, [lead, *board.doubts]),
    markdown(_HEAD, list(lines)) if board.costs else '',
    agreement and markdown(['what agrees', 'in', 'of'], agreement),
    paragraph(_where(rows)),
  )


def summary(rows: list[dict]) -> str:
  """Returns the headline, and all tables."""
  return blocks(headline(rows), *Board(rows).tables())
