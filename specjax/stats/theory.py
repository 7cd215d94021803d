"""The gain of speculation in closed form.

Plain numpy. Letters as in Leviathan et al. (arXiv:2211.17192): alpha is the
chance that a drafted token is accepted, gamma the drafted tokens, c the cost of
drafting one and v that of scoring gamma + 1 of them, both in plain steps. The
paper has v = 1. Tokens per call count the bonus or corrected one.
"""

import numpy as np

from specjax.stats import metrics


def tokens_per_call(alpha: float, gamma):
  """(1 - alpha^(gamma+1)) / (1 - alpha), and gamma + 1 at alpha 1.

  Leviathan et al., Equation 1: every token is accepted with the same chance,
  whatever came before. `gamma` may be an array.

  Raises:
    ValueError: alpha is no chance, or gamma negative.
  """
  if not 0 <= alpha <= 1:
    raise ValueError(f'alpha must be in [0, 1], got {alpha}')
  if np.any(np.asarray(gamma) < 0):
    raise ValueError(f'gamma must be at least 0, got {gamma}')
  if alpha == 1:
    return np.asarray(gamma) + 1.0
  with np.errstate(divide='ignore'):
    power = (np.asarray(gamma) + 1) * np.log(alpha)
  return -np.expm1(power) / (1 - alpha)


def alpha_of(tokens: float, gamma: int) -> float:
  """Returns the alpha at which `tokens_per_call` is `tokens`.

  Returns:
    alpha; NaN where no alpha gives so many, or so few.
  """
  if gamma < 1 or not 1 <= tokens <= gamma + 1:
    return float('nan')
  low, high = 0.0, 1.0
  for _ in range(60):
    middle = (low + high) / 2
    powers = middle ** np.arange(gamma + 1)
    low, high = (middle, high) if powers.sum() < tokens else (low, middle)
  return high


def speedup(alpha: float, gamma, c: float, v: float = 1.0):
  """Speed over plain decoding: Leviathan et al., Theorem 3.8, for any v."""
  tokens = tokens_per_call(alpha, gamma)
  return metrics.predicted_speedup(tokens, c, v, gamma)


def operations(alpha: float, gamma, c: float):
  """Arithmetic operations over those of plain decoding, Theorem 3.11.

  Args:
    alpha: chance of acceptance.
    gamma: drafted tokens.
    c: operations of the draft per token over those of the target.
  """
  return (gamma * c + gamma + 1) / tokens_per_call(alpha, gamma)


def break_even_alpha(gamma: int, c: float, v: float = 1.0) -> float:
  """Returns the alpha above which speculation wins; NaN if it never does.

  A step costs v + gamma c plain steps, and has to give as many tokens.
  """
  cost = v + gamma * c
  return 0.0 if cost <= 1 else alpha_of(cost, gamma)


def break_even_c(tokens: float, gamma: int, v: float = 1.0) -> float:
  """Returns the c below which speculation wins; NaN if there is none.

  Args:
    tokens: of a call.
    gamma: drafted tokens.
    v: cost of scoring.

  Raises:
    ValueError: nothing is drafted, or scoring costs nothing.
  """
  if gamma < 1:
    raise ValueError(f'gamma must be at least 1, got {gamma}')
  if v <= 0:
    raise ValueError(f'v must be above 0, got {v}')
  return (tokens - v) / gamma if tokens > v else float('nan')


def break_even_v(tokens: float, gamma: int, c: float) -> float:
  """Returns the v below which speculation wins; NaN if there is none.

  A plain step scores one token, so scoring more than one costs at least 1.

  Args:
    tokens: of a call.
    gamma: drafted tokens.
    c: cost of a drafted token.
  """
  left = tokens - gamma * c
  return left if left >= 1 else float('nan')


def tree_tokens(parents, acceptance) -> float:
  """Tokens per call of a tree: 1 and the chance to reach each node.

  Args:
    parents: [N] rows as in `types.Draft`.
    acceptance: [W] chance that the first, second, ... child of an accepted node
      is the accepted one; further children have none. Or [K, W] by depth.
  """
  table = np.atleast_2d(acceptance)
  reached, level, children = [1.0], [0], [0] * (len(parents) + 1)
  for parent in parents:
    rank, chances = children[parent], table[min(level[parent], len(table) - 1)]
    children[parent] += 1
    level.append(level[parent] + 1)
    chance = chances[rank] if rank < len(chances) else 0.0
    reached.append(reached[parent] * chance)
  return float(sum(reached))


def expected_calls(accept) -> float:
  """Target calls of the loop, on average over its coins, given its text.

  With token verification the text y is the target's, and a token drafted for
  a place is accepted *and* equal to y there with min(p, q)(y); the place gets
  y with p(y) in any case. Given y it was accepted with a = min(1, q(y) / p(y))
  then, and a rejection or the end of a draft leads to y just the same. So the
  places where steps begin are a Markov chain: from s, j tokens are accepted
  with a(s) ... a(s+j-1) (1 - a(s+j)), and the next step begins at s + j + 1.
  The last step counts in full, whatever of it was cut.

    accept  1 0 1 0 .    gamma 2    steps begin at 0 2 4    3 calls

  Args:
    accept: [T, gamma]: for a step that begins at each place of the text, the
      chance a that its drafted token i is accepted, those before it being so.
      0 where nothing is drafted. What lies beyond the text has no effect.

  Returns:
    The expectation; the number itself where every chance is 0 or 1.
  """
  accept = np.asarray(accept, float)
  length, gamma = accept.shape
  begins = np.zeros(length + gamma + 1)
  begins[0] = 1
  for start, chances in enumerate(accept):
    stays = begins[start]
    for i, chance in enumerate(chances, start + 1):
      begins[i] += stays * (1 - chance)
      stays *= chance
    begins[start + gamma + 1] += stays
  return float(begins[:length].sum())


def along(chances, gamma: int) -> np.ndarray:
  """[T, gamma] for `expected_calls`, whose draft has one
  distribution a place.

  Args:
    chances: [T] of a token drafted for each place, wherever its step began.
    gamma: drafted tokens.
  """
  padded = np.concatenate([chances, np.zeros(gamma)])
  return np.lib.stride_tricks.sliding_window_view(padded, gamma)[: len(chances)]
