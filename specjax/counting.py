"""The statistics of each row, one step at a time.

Everything that is reported derives from these counts (`metrics`).
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
  """Adds one step. A step cut short counts in tokens and calls only.

  Args:
    counts: so far.
    draft: what was proposed.
    verdict: what was accepted.
    emitted: [B] tokens the step added.
    room: [B] whether every token of the step was kept.
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
  kept = (position[:depth] < verdict.num_accepted[:, None]) & whole[:, None]
  at = (position == verdict.num_accepted[:, None]) & whole[:, None]
  return Counts(
    histogram=counts.histogram + at,
    tried=counts.tried + tried,
    accepted=counts.accepted + kept,
    drafted=counts.drafted + jnp.where(whole, draft.size, 0),
    tokens=counts.tokens + emitted,
    target_calls=counts.target_calls + live,
    overlap=counts.overlap + jnp.where(whole, beta, 0).astype(jnp.float32),
    misses=counts.misses + (whole & (draft.size == 0)),
  )
