"""Drafters as a researcher might write them: wrong ones, and a right one.

All draft the chain of a table of logits. Each is a load function that is named
on the command line of `experiments.certify`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.certify import planted
from specjax.types import LoadedDrafter


def _last(ctx):
  return jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)[:, 0]


def _same_coin(memory, key, length, depth):
  """One coin for all tokens of a draft."""
  del length  # Unused.
  return jnp.repeat(sampling.coins(key, 1), depth, 0), memory


def _top_two(logits, q):
  """Probabilities of the two likeliest tokens, where all were drawn from."""
  del logits  # Unused.
  kept = jnp.where(q >= jnp.sort(q)[-2], q, 0)
  return kept / kept.sum()


_drafter = functools.cache(planted.table_chain)


def _table(target) -> Any:
  vocab = target.model.config.vocab_size
  return 1.5 * jax.random.normal(jax.random.key(5), (vocab, vocab))


def _load(make):
  """A load function; make(depth) -> Drafter."""

  def load(target, path=''):
    del path  # Unused.
    return LoadedDrafter(target.model, make, _table(target))

  return load


def _changed(change, **parts):
  """A load function of the right drafter whose drafts are changed."""

  @functools.cache
  def make(depth):
    right = _drafter(depth)

    def propose(params, memory, ctx, key):
      draft, memory = right.propose(params, memory, ctx, key)
      return change(draft), memory

    return right._replace(propose=propose, **parts)

  return _load(make)


def _drops_unlikely(draft):
  """A draft whose first token is unlikely is thrown away."""
  q = jnp.take_along_axis(draft.probs[:, 0], draft.tokens[:, :1], 1)[:, 0]
  return draft._replace(size=jnp.where(q < 0.3, 0, draft.size))


@functools.cache
def _remembering(depth, states):
  """A drafter that remembers the token to begin behind.

  `states` makes it of the draft's first token, the context and the verdict.
  """
  right = _drafter(depth)

  def init(params, ctx, hidden):
    del params, hidden  # Unused.
    return _last(ctx), _last(ctx)

  def propose(params, memory, ctx, key):
    behind = ctx._replace(
      tokens=memory[0][:, None], length=jnp.ones_like(ctx.length)
    )
    draft, _ = right.propose(params, (), behind, key)
    return draft, (memory[0], draft.tokens[:, 0])

  def commit(params, memory, ctx, verdict, hidden):
    del params, hidden  # Unused.
    return states(memory[1], ctx, verdict), memory[1]

  return right._replace(init=init, propose=propose, commit=commit)


def _committed(drafted, ctx, verdict):
  del drafted, verdict  # Unused.
  return _last(ctx)


def _keeps_rejected(drafted, ctx, verdict):
  """Where the first token was rejected, the memory holds it all the same."""
  return jnp.where(verdict.num_accepted == 0, drafted, _last(ctx))


def _own_seed(depth):
  """Its coins come from a seed of its own and a count of steps."""
  right = _drafter(depth)

  def init(params, ctx, hidden):
    del params, hidden  # Unused.
    return jnp.zeros_like(ctx.length)

  def propose(params, memory, ctx, key):
    rows = jnp.arange(len(ctx.length))
    fold = jax.vmap(
      lambda row, step: jax.random.fold_in(
        jax.random.fold_in(jax.random.key(3), row), step
      )
    )
    draft, _ = right.propose(params, (), ctx, fold(rows, memory))
    return draft, memory + 1

  return right._replace(init=init, propose=propose)


reports_top_two = _load(lambda depth: _drafter(depth, report=_top_two))
one_coin = _load(lambda depth: _drafter(depth, coins=_same_coin))
drops_unlikely = _changed(_drops_unlikely)
own_seed = _load(functools.cache(_own_seed))
keeps_rejected = _load(lambda depth: _remembering(depth, _keeps_rejected))
# Right.
remembers = _load(lambda depth: _remembering(depth, _committed))


def unnormalised(target, path=''):
  """Probabilities that add up to 2."""
  twice = _changed(lambda draft: draft._replace(probs=2 * draft.probs))
  return twice(target, path)


# Bad input.


def pathless(target):
  """A load function that takes no path."""
  del target  # Unused.


def _grows(depth):
  """Every call makes a tree of another shape."""
  made = _drafter(depth)
  calls: list[int] = []

  def propose(params, memory, ctx, key):
    calls.append(1)
    draft, memory = made.propose(params, memory, ctx, key)
    if len(calls) % 2 == 0:
      draft = draft._replace(parents=jnp.zeros_like(draft.parents))
    return draft, memory

  return made._replace(propose=propose)


changes_its_tree = _load(_grows)


def broken(target, path=''):
  raise RuntimeError('no such weights')
