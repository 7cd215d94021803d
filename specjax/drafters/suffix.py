"""Suffix decoding: what follows all earlier places like the end of the text.

Oliaro et al., arXiv:2411.04975, on the text of the request itself. The last p
tokens are looked for earlier in the text, for every p. Wherever they stood is a
vote for what came next: of the tree that these continuations make, a node has
the share of the votes, which estimates the chance that it will be accepted. As
many nodes are drafted as `factor` times p, the most likely ones, and the p is
chosen whose nodes are accepted most, by that estimate.

  text  a b c . a b d . a b c . a b     p = 1, 2     c 2/3, d 1/3

`ngram` looks for at most a few tokens, takes the last place or lets places vote
by how much agrees, and always copies K tokens. Here a long match may be copied
far, and a short one, which is often chance, is not.

The paper has a suffix tree, and another of earlier requests. What the tree
would count is counted anew at every step, over `places` places at most: those
that agree longest, and of these the last. Copied tokens are chosen, not drawn,
so `probs` is None; nothing is remembered but the text.
"""

import functools
import numbers
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_no_path, check_number, check_target, named
from specjax.drafters import ngram
from specjax.drafters.ngram.copies import Copies, merge
from specjax.drafters.shapes import stateless
from specjax.types import Draft, Drafter, LoadedDrafter, Target

_LONGEST = 24  # tokens; what agrees further is of the same few places
_PLACES = 64


def _estimate(copies: Copies, longest: int, limits, chain: bool):
  """The nodes [P] expected to be accepted, for each p = 1, ...

  A node is a beginning that some continuations share, and is estimated by the
  share of the places that do. It is counted at the first of them: places are
  sorted by how much agrees, so that is the first for every p.

  Args:
    copies: of M places.
    longest: P.
    limits: [P] nodes drafted at most.
    chain: whether only one child of a node is.
  """
  count, depth = copies.tokens.shape
  exists, alike = copies.exists, copies.alike
  first = jnp.argmax(alike, 1) == jnp.arange(count)[:, None]  # [M, K]
  inside = copies.matched >= jnp.arange(1, longest + 1)[:, None]  # [P, M]
  one = jnp.float32
  votes = jnp.einsum('pm,mnk->pnk', inside.astype(one), alike.astype(one))
  total = jnp.maximum(inside.sum(1), 1)[:, None, None]
  shares = jnp.where(first & exists & inside[..., None], votes / total, 0)
  if chain:
    going, best = inside, []
    for i in range(depth):
      here = jnp.where(going, shares[:, :, i], 0)
      best.append(here.max(1))
      going &= alike[here.argmax(1), :, i]
    ordered = jnp.stack(best, 1)
  else:
    ordered = -jnp.sort(-shares.reshape(longest, -1), 1)
  drafted = jnp.arange(ordered.shape[1]) < limits[:, None]
  return jnp.where(drafted, ordered, 0).sum(1)


@functools.cache
def make(
  depth: int,
  longest: int = _LONGEST,
  factor: float = 1.0,
  candidates: int = 1,
  places: int = _PLACES,
) -> Drafter:
  """Returns the drafter.

  Args:
    depth: K, tokens copied at most.
    longest: P, last tokens of the text that are looked for at most.
    factor: nodes drafted for each of these that agrees, at most.
    candidates: 1 makes chains of K tokens, k trees of k K nodes, for
      `verify.recursive`.
    places: that are counted at most.

  Raises:
    ValueError: a size below 1, or a factor that is not positive.
  """
  sizes = {'longest': longest, 'candidates': candidates, 'places': places}
  _check(factor, depth=depth, **sizes)
  nodes, chain = depth * candidates, candidates == 1
  most = np.minimum(factor * np.arange(1, longest + 1), nodes).astype(int)

  def draft_row(tokens, length):
    """The draft of one sequence: tokens [N], parents [N] and how many."""
    copies = ngram.look_up(tokens, length, depth, longest, places)
    limits = jnp.asarray(most, jnp.int32)
    worth = _estimate(copies, longest, limits, chain)
    best = longest - 1 - jnp.argmax(worth[::-1])  # Of equal ones the longest p.
    weight = (copies.matched > best).astype(jnp.float32)
    tokens, parents, size = merge(copies, weight, nodes, chain)
    return tokens, parents, jnp.minimum(size, limits[best])

  def draft(params, ctx, key):
    return Draft(*jax.vmap(draft_row)(ctx.tokens, ctx.length), None)

  return stateless.make(depth, nodes, draft)


def _check(factor: float, **sizes: int) -> None:
  """Refuses sizes below 1, and a factor that is no positive number."""
  for name, size in sizes.items():
    check_number(name, size, 1)
  fits = isinstance(factor, numbers.Real) and not isinstance(factor, bool)
  if not fits or not 0 < float(factor) < float('inf'):
    raise ValueError(
      f'factor must be a positive number, such as 1 or 2.5, got {named(factor)}'
    )


def load(
  target: Target,
  path: Literal[''] = '',
  longest: int = _LONGEST,
  factor: float = 1.0,
  candidates: int = 1,
  places: int = _PLACES,
) -> LoadedDrafter:
  """The drafter for a target.

  Args:
    target: what is drafted for.
    path: empty: there are no weights.
    longest: see `make`, also for the others.
    factor: see there.
    candidates: see there.
    places: see there.

  Raises:
    ValueError: a value that cannot be.
  """
  check_no_path(path)
  check_target(target)
  _check(factor, longest=longest, candidates=candidates, places=places)
  return LoadedDrafter(
    target.model, lambda depth: make(depth, longest, factor, candidates, places)
  )
