"""The statistics of each row, one step at a time.

Everything that is reported derives from these counts (`metrics`).

A step is whole, and its verdict is counted, where K + 1 tokens had room before
the limit when it began. What it drew decides nothing: with one slot left a
rejection would fit and an acceptance would not, so counting what fits reports
too low an acceptance. For the same reason the room is K + 1 tokens however few
were drafted, since the size of a draft may depend on what was drawn, and a
step in which the text ends is counted with the verdict on its whole draft,
tokens behind the end included. So over whole steps, accepted lengths have the
mean that the rule gives them at the texts where these steps began.

Tokens behind an end, at most K - 1 a text, are judged as if the text went on.
By enumeration at K = 4, an acceptance rate of 0.8 and an end every 50 tokens:
without these steps the mean accepted length is 2.2% too low; with them it is
exact where tokens behind the end are accepted as often as others, and between
2.4% too low and 1.1% too high where they are accepted never, or always.

Any other step counts in tokens and target calls only.
"""

import jax.numpy as jnp

from specjax.types import Counts


def none(batch: int, depth: int) -> Counts:
  """The counts of rows before their first step."""

  def zeros(*shape):
    return jnp.zeros((batch, *shape), jnp.int32)

  return Counts(
    histogram=zeros(depth + 1),
    tried=zeros(depth),
    accepted=zeros(depth),
    drafted=zeros(),
    tokens=zeros(),
    target_calls=zeros(),
    overlap=jnp.zeros(batch, jnp.float32),
    misses=zeros(),
  )


def add(counts, draft, verdict, emitted, room, live, beta):
  """Adds one step of every row that took it.

  Args:
    counts: so far.
    draft: what was proposed.
    verdict: what was accepted.
    emitted: [B] tokens the step added.
    room: [B] whether the longest step, K + 1 tokens, had room.
    live: [B] rows that took the step.
    beta: [B] overlap at the root.
  """
  depth = counts.tried.shape[1]
  whole = live & room
  position = jnp.arange(depth + 1)
  exists = jnp.arange(draft.tokens.shape[1]) < draft.size[:, None]
  # A position was tried where a node hangs below the path.
  below = verdict.path[:, :depth, None] == draft.parents[:, None]
  reached = position[:depth] <= verdict.num_accepted[:, None]
  tried = (below & exists[:, None]).any(-1) & reached & whole[:, None]
  accepted = (position[:depth] < verdict.num_accepted[:, None]) & whole[:, None]
  at = (position == verdict.num_accepted[:, None]) & whole[:, None]
  return Counts(
    histogram=counts.histogram + at,
    tried=counts.tried + tried,
    accepted=counts.accepted + accepted,
    drafted=counts.drafted + jnp.where(whole, draft.size, 0),
    tokens=counts.tokens + emitted,
    target_calls=counts.target_calls + live,
    overlap=counts.overlap + jnp.where(whole, beta, 0).astype(jnp.float32),
    misses=counts.misses + (whole & (draft.size == 0)),
  )
