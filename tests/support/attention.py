"""Attention to a cache and a block, one query at a time in numpy."""

import functools

import jax.numpy as jnp
import numpy as np

from specjax.models import cache as caches

B, G, R, SLOTS = 3, 2, 2, 288  # two chunks of 128 slots, and a part of one
LENGTH = np.array([0, 131, 288], np.int32)
CASES = {
  'all': {},
  'window': {'window': 40},
  'short window': {'window': 3},
  'short window, sinks': {'window': 2, 'sinks': 2},
  'long window': {'window': 200},
  'sinks': {'window': 40, 'sinks': 3},
  'many sinks': {'window': 100, 'sinks': 130},
  'cap': {'cap': 2.0},
  'bias': {'bias': True},
  'everything': {'window': 70, 'sinks': 5, 'cap': 2.0, 'bias': True},
}


@functools.cache
def make(tokens, width, block, dtype='float32', seed=0):
  draw = np.random.default_rng(seed)

  def normal(*shape):
    return draw.normal(size=shape).astype(np.float32)

  def memory(slots):
    rows = normal(B, slots, G, width), normal(B, slots, G, width)
    rows = [x.astype(jnp.dtype(dtype)) for x in rows]
    return tuple(caches.block_of_rows(*rows))

  mask = draw.random((B, tokens, block)) < 0.6
  mask[..., 0] = True
  bias = normal(B, G * R, tokens, SLOTS), normal(B, G * R, tokens, block)
  q = normal(B, tokens, G, R, width) * width**-0.5 * 3
  return q, memory(SLOTS), memory(block), mask, bias


def options_of(tokens, biases, window=None, sinks=0, cap=None, bias=False):
  first = None
  if window is not None:
    first = LENGTH[:, None] + np.arange(tokens) - (window - 1)
  own = biases if bias else None
  return {'first': first, 'sinks': sinks, 'cap': cap, 'bias': own}


def expected(
  data, first=None, sinks=0, cap=None, bias=None, length=LENGTH, sink=None
):
  """In float64; and how large a sum of the values' magnitudes is."""
  q, cache, block, mask, _ = data
  cache, block = (
    [x.astype(np.float64) for x in memory] for memory in (cache, block)
  )
  made, scale = np.zeros(q.shape), np.zeros(q.shape)
  slots = np.arange(cache[1].shape[2])
  for b, t, g, r in np.ndindex(*q.shape[:-1]):
    # A row of the block lies behind the rows of its text before it.
    place = length[b] - 1 + np.cumsum(mask[b, t])
    place = np.concatenate([slots, place])
    seen = np.concatenate([slots < length[b], mask[b, t]])
    if first is not None:
      seen &= (place >= first[b, t]) | (place < sinks)
    keys = np.concatenate([cache[0][b, g], block[0][b, g]], 1)
    values = np.concatenate([cache[1][b, g], block[1][b, g]])
    scores = q[b, t, g, r].astype(np.float64) @ keys
    if cap:
      scores = cap * np.tanh(scores / cap)
    if bias is not None:
      head = g * q.shape[3] + r
      scores += np.concatenate([x[b, head, t] for x in bias])
    scores[~seen] = -np.inf
    logit = -np.inf if sink is None else np.float64(sink[g, r])
    top = max(scores.max(), logit)
    weights = np.exp(scores - top)
    weights /= weights.sum() + np.exp(logit - top)
    made[b, t, g, r] = weights @ values
    scale[b, t, g, r] = weights @ abs(values)
  return made, scale
