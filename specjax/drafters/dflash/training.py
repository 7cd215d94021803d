"""The loss and the measures of DFlash heads."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.dflash.module import Head
from specjax.drafters.heads.trainable import mean
from specjax.drafters.shapes import parallel


class Judged(NamedTuple):
  """A place of A blocks in each text."""

  said: jax.Array  # [B, A, V] logits
  goal: jax.Array  # [B, A, V] the target's
  counts: jax.Array  # [B, A]
  sure: jax.Array | None  # [B, A] log-odds of its confidence
  plain: jax.Array  # [B, A, V] logits before a correction
  ids: jax.Array | None  # [B, A, C] candidates, where only they are chosen


def _judge(head: Head, params, seen, first):
  """Yields each place of blocks; the token before it is that of the text."""
  places = head.say_many(params, seen.tokens, seen.hidden, first)
  said, state = head.prepare(params, places), head.state(first.shape, float)
  rows = jnp.arange(len(first))[:, None]
  for k in range(head.sizes.depth):
    at = rows, first + k
    place = jax.tree.map(lambda x, k=k: x[:, :, k], said)
    made, sure = head.correct(params, place, seen.tokens[at], state)
    state = made.state
    yield Judged(
      made.logits,
      seen.logits[at],
      seen.weights[at],
      sure,
      places.logits[:, :, k],
      getattr(place, 'ids', None),
    )


def _misjudged(place: Judged):
  """Cross-entropy of the log-odds that a token of q is accepted."""
  p, q = jax.nn.softmax(place.goal), jax.nn.softmax(place.said)
  accepted = jax.lax.stop_gradient(jnp.minimum(p, q).sum(-1))
  assert place.sure is not None  # Asked of heads with a confidence alone.
  return mean(jax.nn.softplus(place.sure) - accepted * place.sure, place.counts)


def loss(head: Head, anchors: int, decay: float, params, seen, key):
  """Cross-entropy of each place; of far ones less, as they matter less.

  Where there is a confidence, its own too: of the chance `sum(min(p, q))`. A
  place that chooses among candidates learns to find them, and to choose.
  """
  batch, length = seen.tokens.shape
  ends = length - head.sizes.block + 1
  if ends < 1:
    raise ValueError(
      f'windows of {length} tokens hold no block of {head.sizes.block}: make '
      'optimization.length larger, or block smaller'
    )
  choose = functools.partial(jax.random.permutation, x=ends)
  first = jax.vmap(choose)(jax.random.split(key, batch))[:, :anchors]
  weights = jnp.exp(-jnp.arange(head.sizes.depth) / decay)
  weights /= weights.sum()
  terms = {}
  for k, place in enumerate(_judge(head, params, seen, first)):
    said, goal, counts, sure, plain, ids = place
    if ids is not None:
      chosen = (jnp.take_along_axis(x, ids, -1) for x in (goal, said))
      terms[f'choice{k + 1}'] = weights[k] * seen.judge(*chosen, counts)
      said = plain
    terms[f'place{k + 1}'] = weights[k] * seen.judge(goal, said, counts)
    if sure is not None:
      terms[f'sure{k + 1}'] = weights[k] * _misjudged(place)
  return terms


def measure(head: Head, params, seen, begin: int):
  """How often the i-th guess of a place is the target's greedy token."""
  first = jnp.arange(begin, seen.tokens.shape[1] - head.sizes.block + 1)
  first = jnp.broadcast_to(first, (len(seen.tokens), len(first)))
  places = _judge(head, params, seen, first)
  return parallel.count_hits((said, goal) for said, goal, *_ in places)
