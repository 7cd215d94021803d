"""How a drafter's model goes from one token to the next."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Step(NamedTuple):
  """The output of a walker after T tokens that it was fed."""

  logits: jax.Array  # [B, T, V] of the token that follows each
  features: Any  # [B, T, ...] what its successors are fed, a pytree
  block: Any  # what is kept of the nodes of this draft, [B, ...]
  # [B, T] chance, by the model itself, that such a token is accepted; None: the
  # draft's probability of the token
  confidence: jax.Array | None = None


class Walker(NamedTuple):
  """A drafter without a shape: pure functions of explicit state.

  Nodes are fed level by level. They are rows of a tree as in `types.Draft`:
  row 0 is the last committed token, and a fed node has the row it was given,
  whatever becomes of it.

  init(params, ctx, hidden, rows) -> (state, block): as `Drafter.init`; `state`
    is remembered from step to step, and `block` has room for so many rows.
  start(params, state, block, ctx) -> Step: at the last committed token, T = 1.
  feed(params, state, block, ctx, row, depth, tokens, features, sees) -> Step:
    nodes of one depth (1 below the root) as rows row, row + 1, ...; tokens
    [B, T], the features of their parents [B, T, ...], and sees [B, T, rows],
    which rows each descends from, itself included.
  commit(params, state, block, ctx, verdict, hidden) -> state: as
    `Drafter.commit`; the path's rows are those that were fed.
  """

  init: Callable[..., tuple[Any, Any]]
  start: Callable[..., Step]
  feed: Callable[..., Step]
  commit: Callable[..., Any]
  taps: tuple[int, ...] = ()
  positions: int | None = None


class Memory(NamedTuple):
  """State of a drafter made of a walker.

  `policy` is the one field that verdicts of the past may change: reading the
  same text again starts it anew.
  """

  state: Any
  block: Any  # of the last draft, until it was judged
  policy: Any = ()
