"""What EAGLE heads are trained by; see `specjax.drafters.eagle`."""

import jax
import jax.numpy as jnp

from specjax.drafters.eagle.module import Head
from specjax.drafters.heads.trainable import mean
from specjax.models import transformer

_STEPS = 5  # of the training-time test
_DECAY = 0.8  # of its losses from step to step
_NOISE = 0.1  # of version 1 on the target's features
_TOKENS = 0.1  # weight of version 1's loss on tokens


def features(head: Head, params, seen, key):
  """Version 1: the next feature, and a tenth of what it says of tokens."""
  f = head.read(params, seen.hidden)
  noise = jax.random.uniform(key, f[:, :-1].shape, f.dtype, -_NOISE, _NOISE)
  mask, at = transformer.causal(f.shape[0], f.shape[1] - 1)
  made, _ = head.forward(
    params, seen.tokens[:, 1:], f[:, :-1] + noise, at, None, None, mask, None, 0
  )
  off = jnp.abs(made - f[:, 1:])
  weight = seen.weights[:, 1:]
  smooth = mean(jnp.where(off < 1, off**2 / 2, off - 0.5).mean(-1), weight)
  tokens = seen.judge(seen.logits[:, 1:], head.logits(params, made), weight)
  return {'feature': smooth, 'token': _TOKENS * tokens}


def tokens(head: Head, params, seen, key):
  """Version 3: tokens alone, on the target's features and on its own."""
  del key  # Unused.
  goal = seen.logits[:, 1:]
  place = jnp.broadcast_to(jnp.arange(goal.shape[1]), goal.shape[:2])
  losses = {}
  for j, features in enumerate(
    head.unroll(params, seen.tokens, seen.hidden, _STEPS)
  ):
    weight = jnp.where(place >= j, seen.weights[:, 1:], 0.0)
    logits = head.logits(params, features)
    losses[f'step{j}'] = _DECAY**j * seen.judge(goal, logits, weight)
  return losses
