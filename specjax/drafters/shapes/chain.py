"""A chain: one token after the other, as long as a policy wants."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees
from specjax.arguments import check_number
from specjax.drafters.shapes.policies import Last, Policy
from specjax.drafters.shapes.step_model import Memory, Walker
from specjax.types import Draft, Drafter


class Controlled(NamedTuple):
  """A policy's memory, what it learns from after the verdict, what it read."""

  memory: Any  # [B, ...]
  drafted: jax.Array  # [B]
  read: tuple[jax.Array, jax.Array]  # [B, K] each, see `look`; 0 beyond a draft


class _Drawn(NamedTuple):
  """A chain as far as it was drawn."""

  token: jax.Array  # [B] the last one
  tokens: jax.Array  # [B, K]
  probs: jax.Array  # [B, K, V]
  size: jax.Array  # [B]
  reach: jax.Array  # [B] product of the chances, see `policies`
  read: Any  # as `Controlled.read`; () without a policy
  going: jax.Array  # [B] whether a row drafts on


def look(logits: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns what policies read: confidence and entropy.

  Args:
    logits: [..., V] of the next token, processed, so in float32 at least.
    token: [...] that was drawn.
  """
  probs = jax.nn.softmax(logits)
  sure = jnp.take_along_axis(probs, token[..., None], -1)[..., 0]
  return sure, jax.scipy.special.entr(probs).sum(-1)


@functools.cache
def make(walker: Walker, depth: int, policy: Policy | None = None) -> Drafter:
  """Returns the drafter.

  Args:
    walker: what goes from token to token.
    depth: K, tokens drafted at most.
    policy: draws no further where it says so, see `policies`; None always
      draws K.

  Raises:
    ValueError: the depth is below 1.
  """
  check_number('depth', depth, 1)
  # The last token is drawn and never fed. Of the host: jax would remember the
  # precision that is in force here.
  rows = np.arange(depth, dtype=np.int32)

  def _unread(batch):
    return jnp.zeros((batch, depth)), jnp.zeros((batch, depth))

  def init(params, ctx, hidden):
    batch = len(ctx.length)
    state, block = walker.init(params, ctx, hidden, depth)
    if policy is None:
      return Memory(state, block)
    memory = jax.tree.map(lambda x: jnp.full(batch, x), policy.start())
    none = jnp.zeros(batch, jnp.int32)
    return Memory(state, block, Controlled(memory, none, _unread(batch)))

  def propose(params, memory, ctx, key):
    batch = len(ctx.length)
    coins = jax.vmap(lambda k: sampling.coins(k, depth))(key)
    distributions = jax.vmap(sampling.next_distribution)

    def draw(i, step, drawn):
      logits = step.logits[:, 0]
      above = jnp.where(jnp.arange(depth) < i, drawn.tokens, -1)
      q, logits = distributions(logits, ctx.sampling, ctx.history, above)
      token = jax.vmap(sampling.draw)(coins[:, i], q)
      size, reach, going = drawn.size + drawn.going, drawn.reach, drawn.going
      read = drawn.read
      if policy is not None:
        sure, spread = look(logits, token)
        if step.confidence is not None:
          sure = step.confidence[:, 0].astype(sure.dtype)
        seen = jnp.full_like(token, i + 1), sure, spread
        read = tuple(
          old.at[:, i].set(jnp.where(going, new, 0))
          for old, new in zip(read, seen[1:], strict=True)
        )
        reach = reach * jax.vmap(policy.chance)(*seen).astype(reach.dtype)
        last = Last(*seen, reach)
        going &= jax.vmap(policy.goes_on)(memory.policy.memory, last)
      return _Drawn(
        token,
        drawn.tokens.at[:, i].set(token),
        drawn.probs.at[:, i].set(q),
        size,
        reach,
        read,
        going,
      )

    def more(carry):
      i, _, drawn = carry
      if policy is None:  # A length that a compiler knows: no host waits.
        return i < depth
      return (i < depth) & drawn.going.any()

    def turn(carry):
      i, (features, block), drawn = carry
      sees = jnp.broadcast_to(rows <= i, (batch, 1, depth))
      step = walker.feed(
        params,
        memory.state,
        block,
        ctx,
        i,
        i,
        drawn.token[:, None],
        features,
        sees,
      )
      drawn = draw(i, step, drawn)
      return i + 1, (step.features, step.block), drawn

    step = walker.start(params, memory.state, memory.block, ctx)
    none = jnp.zeros((batch, depth), jnp.int32)
    wide = jnp.promote_types(step.logits.dtype, jnp.float32)
    drawn = _Drawn(
      none[:, 0],
      none,
      jnp.zeros((batch, depth, step.logits.shape[-1]), wide),
      none[:, 0],
      jnp.ones(batch),
      () if policy is None else _unread(batch),
      jnp.ones(batch, bool),
    )
    drawn = draw(0, step, drawn)
    one = jnp.ones((), jnp.int32)
    _, (_, block), drawn = jax.lax.while_loop(
      more, turn, (one, (step.features, step.block), drawn)
    )
    draft = Draft(
      drawn.tokens, trees.chain(batch, depth), drawn.size, drawn.probs
    )
    controlled = memory.policy
    if policy is not None:
      controlled = controlled._replace(drafted=drawn.size, read=drawn.read)
    return draft, Memory(memory.state, block, controlled)

  def commit(params, memory, ctx, verdict, hidden):
    state = walker.commit(
      params, memory.state, memory.block, ctx, verdict, hidden
    )
    memory = memory._replace(state=state)
    if policy is None:
      return memory
    own = memory.policy
    learned = jax.vmap(policy.learn)(
      own.memory, own.drafted, verdict.num_accepted
    )
    return memory._replace(policy=own._replace(memory=learned))

  return Drafter(
    depth,
    depth,
    init,
    propose,
    commit,
    taps=walker.taps,
    positions=walker.positions,
    learns=policy is not None and bool(jax.tree.leaves(policy.start())),
  )
