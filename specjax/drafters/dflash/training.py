"""The loss and the measures of DFlash heads."""

import functools
import itertools

import jax
import jax.numpy as jnp

from specjax.drafters.dflash.module import Head
from specjax.drafters.shapes import parallel


def _judge(head: Head, params, seen, first):
  """For each place of blocks: logits [B, A, V], the target's, and weights."""
  said = head.say_many(params, seen.tokens, seen.hidden, first)
  rows = jnp.arange(len(first))[:, None]
  for k in range(said.shape[2]):
    at = rows, first + k
    yield said[:, :, k], seen.logits[at], seen.weights[at]


def loss(head: Head, anchors: int, decay: float, params, seen, key):
  """Cross-entropy of each place; of far ones less, as they matter less."""
  batch, length = seen.tokens.shape
  ends = length - head.sizes.block + 1
  if ends < 1:
    raise ValueError(
      f'windows of {length} tokens hold no block of {head.sizes.block}: make '
      'optimization.length larger, or block smaller'
    )
  choose = functools.partial(jax.random.permutation, x=ends)
  first = jax.vmap(choose)(jax.random.split(key, batch))[:, :anchors]
  weights = jnp.exp(-jnp.arange(head.sizes.block - 1) / decay)
  places = _judge(head, params, seen, first)
  return {
    f'place{k}': weight * seen.judge(goal, said, counts)
    for k, weight, (said, goal, counts) in zip(
      itertools.count(1), weights / weights.sum(), places, strict=False
    )
  }


def measure(head: Head, params, seen, begin: int):
  """How often the i-th guess of a place is the target's greedy token."""
  first = jnp.arange(begin, seen.tokens.shape[1] - head.sizes.block + 1)
  first = jnp.broadcast_to(first, (len(seen.tokens), len(first)))
  places = _judge(head, params, seen, first)
  return parallel.count_hits((said, goal) for said, goal, _ in places)
