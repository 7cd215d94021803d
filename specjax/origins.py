"""Where each token came from, kept beside the counts of a state.

  accepted    drafted, and accepted
  corrected   drawn where what was drafted for its place was rejected
  bonus       drawn where nothing was drafted

The loop is the same with the same keys: only its tally writes more.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import counting, scoring
from specjax import generate as loops
from specjax.types import Counts, SpecState

ORIGINS = ('accepted', 'corrected', 'bonus')
_ACCEPTED, _CORRECTED, _BONUS = range(3)


class Traced(NamedTuple):
  """Counts and origins: it takes the place of the counts in a state."""

  counts: Counts
  origins: jax.Array  # [B, S] of the new tokens, the first one first


def _of_step(draft, verdict) -> jax.Array:
  """Origins [B, K+1] of the tokens of a step, up to the one it drew."""
  last = verdict.num_accepted[:, None]
  row = jnp.take_along_axis(verdict.path, last, 1)
  exists = jnp.arange(draft.tokens.shape[1]) < draft.size[:, None]
  below = ((draft.parents == row) & exists).any(1, keepdims=True)
  place = jnp.arange(verdict.path.shape[1])
  drawn = jnp.where(below, _CORRECTED, _BONUS)
  return jnp.where(place < last, _ACCEPTED, drawn).astype(jnp.int8)


def _tally(traced: Traced, draft, verdict, added, *rest) -> Any:
  made = scoring.append(
    traced.origins, _of_step(draft, verdict), added, traced.counts.tokens
  )
  counts = counting.add(traced.counts, draft, verdict, added, *rest)
  return Traced(counts, made)


_PARTS = loops.PARTS._replace(tally=_tally)


def start(*args: Any, **options: Any) -> SpecState:
  """As `generate.start`, with origins beside the counts."""
  state = loops.start(*args, **options)
  blank = jnp.zeros_like(state.tokens, jnp.int8)
  traced: Any = Traced(state.counts, blank)
  return state._replace(counts=traced)


generate = functools.partial(loops.generate, parts=_PARTS)


def read(
  counts: Counts | Traced, row: int, begin: int, end: int
) -> tuple[Counts, list[str]]:
  """Counts of a row, without the axis B, and the origins of its new tokens.

  Args:
    counts: of a state, on the host.
    row: of it.
    begin: first new token.
    end: behind the last one.

  Returns:
    No origins where there are counts alone.
  """
  names: list[str] = []
  if isinstance(counts, Traced):
    codes = counts.origins[row, begin:end]
    names, counts = [ORIGINS[code] for code in codes], counts.counts
  return jax.tree.map(lambda x: np.array(x[row]), counts), names
