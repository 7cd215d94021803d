"""Why a drafter loses, from its row: what would have to be what to break even.

A step costs v + gamma c plain steps and gives tau tokens; speculation breaks
even where these are equal.
"""

import math

from specjax.stats import theory


def is_tree(row: dict) -> bool:
  return row['drafted'] > row['gamma'] * sum(row['histogram'])


def _scoring(row: dict) -> tuple[float, str, str] | None:
  even = theory.break_even_v(row['tau'], row['gamma'], row['c'])
  if math.isnan(even):
    return None
  what = 'a tree' if is_tree(row) else f'{row["gamma"] + 1} tokens'
  return (
    row['v'] - 1,
    f'scoring {what} costs {row["v"]:.2f} plain steps (v)',
    f'v would have to be below {even:.2f}',
  )


def _drafting(row: dict) -> tuple[float, str, str] | None:
  even = theory.break_even_c(row['tau'], row['gamma'], row['v'])
  if math.isnan(even):
    return None
  return (
    row['gamma'] * row['c'],
    f'drafting a token costs {row["c"]:.3f} plain steps (c)',
    f'c would have to be below {even:.3f}',
  )


def _agreeing(row: dict) -> tuple[float, str, str] | None:
  gamma, alpha, cost = row['gamma'], row['alpha'], cost_of(row)
  if cost >= gamma + 1:
    return None
  even = theory.break_even_alpha(gamma, row['c'], row['v'])
  remedy = f'tau would have to be above {cost:.2f}'
  # The formula is of chains accepted i.i.d.; the row may be of others.
  if alpha is not None and not is_tree(row) and alpha < even:
    remedy = f'alpha would have to be above about {even:.2f}'
  measured = '' if alpha is None else f' (alpha {alpha:.2f})'
  return (
    gamma + 1 - row['tau'],
    f'too little of the draft is accepted{measured}',
    remedy,
  )


def cost_of(row: dict) -> float:
  """A speculative step, in plain steps."""
  return row['v'] + row['gamma'] * row['c']


def reason(row: dict) -> str:
  """Why a row is slower than plain decoding, as a clause.

  A step would win if it cost one plain step and gave gamma + 1 tokens. What it
  lacks is v - 1 for scoring, gamma c for drafting and gamma + 1 - tau for what
  is rejected; the largest of these is the cause, and as much of it as of no
  other may stay at break-even.
  """
  if row.get('c') is None or row.get('v') is None:
    return 'and its costs were not measured'
  cost, tau = cost_of(row), row['tau']
  step = f'a step costs {cost:.2f} plain steps and gives {tau:.2f} tokens'
  if tau >= cost:
    return (
      f'although {step} (predicted: {tau / cost:.2f}), so the loop takes '
      'longer than its measured parts'
    )
  asked = [_scoring(row), _drafting(row), _agreeing(row)]
  causes = sorted((one for one in asked if one), key=lambda one: -one[0])
  if not causes:
    return (
      f'because {step}, which none of v ({row["v"]:.2f}), c ({row["c"]:.3f}) '
      'and alpha alone could make up for'
    )
  remedies = ', or '.join(remedy for *_, remedy in causes)
  return f'because {causes[0][1]}: {step}, and to break even {remedies}'
