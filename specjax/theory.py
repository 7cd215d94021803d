"""What speculation can gain, in closed form and by dynamic programming.

Plain numpy. Letters as in Leviathan et al. (arXiv:2211.17192): alpha is the
chance that a drafted token is accepted, gamma the drafted tokens, c the cost of
drafting one and v that of scoring gamma + 1 of them, both in plain steps. The
paper has v = 1. Tokens per call count the bonus or corrected one.
"""

from typing import NamedTuple

import numpy as np

from specjax import metrics


def _in_unit(name: str, value) -> None:
  if not np.all((np.asarray(value) >= 0) & (np.asarray(value) <= 1)):
    raise ValueError(f'{name} must be in [0, 1], got {value}')


def tokens_per_call(alpha: float, gamma):
  """(1 - alpha^(gamma+1)) / (1 - alpha), and gamma + 1 at alpha 1.

  Leviathan et al., Equation 1: every token is accepted with the same chance,
  whatever came before. `gamma` may be an array.
  """
  _in_unit('alpha', alpha)
  if alpha == 1:
    return np.asarray(gamma) + 1.0
  with np.errstate(divide='ignore'):
    power = (np.asarray(gamma) + 1) * np.log(alpha)
  return -np.expm1(power) / (1 - alpha)


def alpha_of(tokens: float, gamma: int) -> float:
  """The alpha at which `tokens_per_call` is `tokens`, its inverse.

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


def least_gain(alpha: float, c: float) -> float:
  """A speed-up that the best gamma reaches at least; 1 where alpha <= c.

  Leviathan et al., Corollary 3.9: what gamma 1 gives where v is 1.
  """
  _in_unit('alpha', alpha)
  return max((1 + alpha) / (1 + c), 1.0)


def best_gamma(alpha: float, c: float, v: float = 1.0, most: int = 1000) -> int:
  """The gamma of the largest speed-up, the least of equals; 0 if none gains.

  Args:
    alpha: chance of acceptance.
    c: cost of a drafted token.
    v: cost of scoring, the same for every gamma.
    most: longest draft that is considered.
  """
  gammas = np.arange(1, most + 1)
  speeds = speedup(alpha, gammas, c, v)
  best = int(np.argmax(speeds))
  return int(gammas[best]) if speeds[best] > 1 else 0


def break_even_alpha(gamma: int, c: float, v: float = 1.0) -> float:
  """The alpha above which speculation wins; NaN where it never does.

  A step costs v + gamma c plain steps, and has to give as many tokens.
  """
  cost = v + gamma * c
  return 0.0 if cost <= 1 else alpha_of(cost, gamma)


def break_even_c(tokens: float, gamma: int, v: float = 1.0) -> float:
  """The c below which speculation wins; NaN where scoring alone costs more.

  Args:
    tokens: of a call.
    gamma: drafted tokens.
    v: cost of scoring.
  """
  return (tokens - v) / gamma if tokens > v else float('nan')


def break_even_v(tokens: float, gamma: int, c: float) -> float:
  """The v below which speculation wins; NaN where it is that of no scoring.

  A plain step scores one token, so scoring more than one costs at least 1.

  Args:
    tokens: of a call.
    gamma: drafted tokens.
    c: cost of a drafted token.
  """
  left = tokens - gamma * c
  return left if left >= 1 else float('nan')


def oracle_speedup(alpha: float, c: float) -> float:
  """Speed of drafts that end just before what would be rejected, at v = 1.

  The bound of Leviathan et al. on adaptive gamma: a step gives
  1 / (1 - alpha) tokens and drafts alpha / (1 - alpha), none of them wasted.
  """
  _in_unit('alpha', alpha)
  left = 1 - alpha + c * alpha
  return 1 / left if left > 0 else float('inf')


def oracle_of_lengths(histogram, c: float, v: dict[int, float]) -> float:
  """Speed of steps that draft just what will be accepted, from measured ones.

  Args:
    histogram: [K+1] steps by accepted length n; n are drafted, n + 1 scored.
    c: cost of a drafted token.
    v: cost of scoring so many; in between interpolated, 1 for one token.
  """
  n, known = np.arange(len(histogram)), sorted(({1: 1.0} | v).items())
  cost = np.interp(n + 1, *np.array(known).T) + c * n
  return float(np.dot(histogram, n + 1) / np.dot(histogram, cost))


def lenient_alpha(p, q, factor: float) -> float:
  """sum(min(p / factor, q)): Leviathan et al., A.5.

  Args:
    p: [V] law of the target.
    q: [V] law of the draft.
    factor: lenience in (0, 1]; 1 is exact verification.
  """
  if not 0 < factor <= 1:
    raise ValueError(f'factor must be in (0, 1], got {factor}')
  return float(np.minimum(np.asarray(p) / factor, q).sum())


def _normalize(weights):
  total = weights.sum()
  return weights / total if total > 0 else weights


def _left(p, q):
  """What a rejected draw from q leaves of p."""
  return _normalize(np.maximum(p - q, 0))


def with_replacement(p, q, k: int) -> np.ndarray:
  """Chance [k] that each of k independent draws from q is the accepted one.

  Recursive rejection, Miao et al., arXiv:2305.09781: what a rejection leaves
  of p depends on q alone, not on the token.
  """
  left, missing, chances = np.asarray(p, float), 1.0, []
  q = np.asarray(q, float)
  for _ in range(k):
    overlap = np.minimum(left, q).sum()
    chances.append(missing * overlap)
    missing *= 1 - overlap
    left = _left(left, q)
  return np.array(chances)


def without_replacement(p, q, k: int) -> np.ndarray:
  """Chance [k] that each of k draws without repetition is the accepted one.

  Chen et al., arXiv:2402.12374. A rejection depends on what was drawn, so all
  V! / (V - k)! draws are enumerated; once q is used up, the rest is uniform.
  """
  chances = np.zeros(k)

  def draw(i, left, law, drawn, weight):
    if i == k or weight == 0:
      return
    if law.sum() == 0:
      law = _normalize((~drawn).astype(float))
    rest = _left(left, law)
    for token in np.flatnonzero(law):
      accepted = min(law[token], left[token])
      chances[i] += weight * accepted
      gone = drawn.copy()
      gone[token] = True
      after = _normalize(np.where(gone, 0, law))
      draw(i + 1, rest, after, gone, weight * (law[token] - accepted))

  p, q = np.asarray(p, float), np.asarray(q, float)
  draw(0, p, q, np.zeros(len(p), bool), 1.0)
  return chances


def k_seq(p, q, k: int) -> np.ndarray:
  """Chance [k] that each of k independent draws is the accepted one.

  Sun et al., arXiv:2310.15141: all are judged by min(1, p / (rho q)), where
  rho solves 1 - (1 - beta)^k = rho beta and beta = sum(min(p / rho, q)).
  """
  p, q = np.asarray(p, float), np.asarray(q, float)
  low, high = 1.0, float(k)
  for _ in range(60):
    rho = (low + high) / 2
    beta = min(np.minimum(p / rho, q).sum(), 1.0)
    over = 1 - (1 - beta) ** k > rho * beta
    low, high = (rho, high) if over else (low, rho)
  beta = min(np.minimum(p / high, q).sum(), 1.0)
  return beta * (1 - beta) ** np.arange(k)


class Tree(NamedTuple):
  """A token tree and the tokens that a call gives with it, on average."""

  parents: tuple[int, ...]  # rows as in `types.Draft`, level by level
  tokens: float


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


def _allot(value, acceptance):
  """Values [N+1] of the best children of a row, by their nodes, and sizes.

  Args:
    value: [N+1] of the best tree of so many nodes, root included, 0 for none.
    acceptance: [W].

  Returns:
    value [N+1] of at most so many nodes below a row, and size [W, N+1] of each
    child where the children from it on have so many nodes.
  """
  nodes = len(value) - 1
  place = np.arange(nodes + 1)
  rest = place[:, None] - place  # nodes left for later children
  size = np.zeros((len(acceptance), nodes + 1), int)
  later = np.zeros(nodes + 1)
  for rank in range(len(acceptance) - 1, -1, -1):
    worth = acceptance[rank] * value + later[np.maximum(rest, 0)]
    # No child of this rank, then none of the next.
    worth[:, 0] = 0
    worth = np.where(rest >= 0, worth, -1)
    size[rank] = worth.argmax(1)
    later = worth.max(1)
  return later, size


def best_tree(acceptance, nodes: int, depth: int | None = None) -> Tree:
  """The tree of at most so many nodes that gives the most tokens per call.

  Chen et al., arXiv:2402.12374: a dynamic program over the number of nodes
  and of children, here for each depth.

  Args:
    acceptance: [W] as in `tree_tokens`, at least one.
    nodes: N, the root not counted.
    depth: longest path from the root; by default any.

  Returns:
    The tree; it has fewer nodes where more would never be reached.

  Raises:
    ValueError: a chance outside [0, 1], no chances, negative sizes.
  """
  acceptance = np.asarray(acceptance, float)
  _in_unit('acceptance', acceptance)
  if acceptance.ndim != 1 or not len(acceptance):
    raise ValueError('acceptance must be a vector of at least one chance')
  if nodes < 0 or (depth is not None and depth < 0):
    raise ValueError(
      f'nodes and depth must be at least 0, got {nodes} and {depth}'
    )
  acceptance = acceptance[:nodes]
  value = np.concatenate([[0.0], np.ones(nodes)])  # A root alone.
  sizes: list[np.ndarray] = []
  for _ in range(nodes if depth is None else min(depth, nodes)):
    below, size = _allot(value, acceptance)
    deeper = np.concatenate([[0.0], 1 + below[:nodes]])
    sizes.append(size)
    if np.array_equal(deeper, value):
      break
    value = deeper
  parents: list[int] = []
  rows = [(len(sizes), nodes)]  # levels and nodes below each row, by level
  for row, (levels, left) in enumerate(rows):
    for rank in range(len(acceptance) if levels else 0):
      child = int(sizes[levels - 1][rank, left])
      if not child:
        break
      parents.append(row)
      rows.append((levels - 1, child - 1))
      left -= child
  return Tree(tuple(parents), tree_tokens(parents, acceptance))


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
  """[T, gamma] for `expected_calls`, of a draft that has one law a place.

  Args:
    chances: [T] of a token drafted for each place, wherever its step began.
    gamma: drafted tokens.
  """
  padded = np.concatenate([chances, np.zeros(gamma)])
  return np.lib.stride_tricks.sliding_window_view(padded, gamma)[: len(chances)]
