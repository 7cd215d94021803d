"""Rows of `specjax probe`: whether a head is loaded as it was trained."""

from typing import Any, NamedTuple

import numpy as np

from specjax.reports.conditions import machine, values
from specjax.reports.markdown import (
  blocks,
  bullets,
  markdown,
  paragraph,
  with_interval,
)
from specjax.stats import readings
from specjax.stats.readings import CONFIGURED, Difference, Look
from specjax.stats.row import group

_POOR = 0.1  # share of first tokens below which no reading can be the right one
_LEGEND = """
accepted: tokens of a greedy draft that are the target's, at every place of its
greedy texts. Differences are paired on prompts, and their intervals hold for
all alternatives of a head together, with 95%. One is clearly better where its
interval lies above 0 and it accepts a twentieth more.
"""


class Finding(NamedTuple):
  """The findings in the rows of one head."""

  looks: dict[str, Look]  # by reading, as configured first
  differences: dict[str, Difference]  # of the others
  best: str


def _look(row: dict) -> Look:
  return Look(np.array(row['unit_places']), np.array(row['unit_accepted']))


def find(rows: list[dict]) -> dict[str, Finding]:
  """Judges the rows of each drafter that was tried as configured."""
  found = {}
  for (drafter,), own in group(rows, 'drafter').items():
    looks = {row['alternative']: _look(row) for row in own}
    if CONFIGURED not in looks:
      continue
    base = looks.pop(CONFIGURED)
    differences = {
      name: readings.compare(base, look, len(looks))
      for name, look in looks.items()
    }
    best = readings.best_of(differences)
    found[drafter] = Finding({CONFIGURED: base} | looks, differences, best)
  return found


def sentence(drafter: str, found: Finding) -> str:
  """Returns the verdict on one head."""
  base, count = found.looks[CONFIGURED], len(found.differences)
  if found.best != CONFIGURED:
    d, best = found.differences[found.best], found.looks[found.best]
    depth = best.accepted.shape[1]
    return (
      f'{drafter}: read otherwise it accepts clearly more: {found.best}: '
      f'{best.mean:.2f} tokens a draft of {depth}, '
      f'{base.cut(depth).mean:.2f} {CONFIGURED}, difference '
      f'{d.value:.2f} [{d.low:.2f}, {d.high:.2f}]'
    )
  first = base.alphas[0]
  text = (
    f"{drafter}: {CONFIGURED}; its first token is the target's in "
    f'{first:.2f} of places, and none of {count} near alternatives accepts '
    'clearly more'
  )
  if first < _POOR:
    text += (
      '. That is so few that it was hardly trained for this target, or is '
      'read in a way that was not tried'
    )
  return text


def verdicts(rows: list[dict]) -> dict[str, Any]:
  """Returns the best reading of each head, and what to load it with."""
  found = find(rows)
  changes = {(r['drafter'], r['alternative']): r['changes'] for r in rows}
  return {
    'best': {name: one.best for name, one in found.items()},
    'changes': {name: changes[name, one.best] for name, one in found.items()},
    'alpha': {
      name: one.looks[CONFIGURED].alphas[0] for name, one in found.items()
    },
  }


def headline(rows: list[dict]) -> str:
  """Returns the verdict on every head."""
  said = [f'{sentence(name, one)}.' for name, one in find(rows).items()]
  facts = [
    f'{max(r["prompts"] for r in rows)} prompts',
    f'{values(rows, "new_tokens")} new tokens each',
    values(rows, 'dtype'),
  ]
  return blocks(bullets(said), paragraph(f'{machine(rows, facts)}.'))


def summary(rows: list[dict]) -> str:
  """Returns the verdicts, and every reading of every head."""
  text = headline(rows)
  for name, one in find(rows).items():
    depth = one.looks[CONFIGURED].accepted.shape[1]
    head = ['reading', 'accepted', *(f'alpha {k + 1}' for k in range(depth))]
    lines = []
    for reading, look in one.looks.items():
      d = one.differences.get(reading)
      shown = '-' if d is None else with_interval(d.value, (d.low, d.high))
      alphas = [f'{a:.2f}' for a in look.alphas]
      alphas += ['-'] * (depth - len(alphas))  # It drafts fewer.
      lines.append([reading, f'{look.mean:.2f}', *alphas, shown])
    table = markdown([*head, 'difference'], lines)
    text += f'\n### {name}\n\n{table}\n'
  return text + _LEGEND
