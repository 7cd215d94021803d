"""An EAGLE head of version 3 whose logits begin as the target's.

A head with logits of its own has to learn what each token looks like from few
texts, which the target has learnt from many. The target's last feature, on the
directions that its logits depend on most, and its output layer for these are a
start that already says what the target itself would say of its feature.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafters.eagle.module import Head
from specjax.drafters.heads.trainable import mean
from specjax.models import transformer
from specjax.models.reduced_vocab_head import ids


def check(head: Head) -> None:
  """Raises where a head cannot begin with the target's logits.

  Raises:
    ValueError: it has no logits or no last norm of its own, it is wider than
      the target, or its taps leave out the last layer.
  """
  sizes, layers = head.sizes, head.target.config.num_layers
  own = sizes.own_unembedding and 'last' in sizes.norms
  if sizes.version != 3 or not own:
    raise ValueError(
      "start 'target' is of version 3, with a last norm and logits of its own"
    )
  if sizes.width > head.target.config.width:
    raise ValueError(
      f"start 'target' has {head.target.config.width} directions, as many as "
      f'the target is wide: choose a width of at most that, got {sizes.width}'
    )
  if sizes.taps[-1] != layers - 1:
    raise ValueError(
      f"start 'target' reads the target's last layer: end taps with "
      f'{layers - 1}, got {sizes.taps}'
    )


def from_target(head: Head, params: Any, target_params: Any) -> Any:
  """Fresh weights of a head, of which two matrices and a norm are replaced.

  With h the target's last feature, norm(h) = h / rms(h) * g and logits
  norm(h) W, and U the largest directions of W (its left singular vectors, as
  many as the head is wide): features are h diag(g) U, and logits U^T W of them.
  Both sides norm their features, so that only the size of a feature differs.

  Args:
    head: one that `check` accepts; ask it before.
    params: of the head, with whole weights.
    target_params: of its target, likewise.
  """
  target, width = head.target, head.target.config.width
  scale = _scale(head, target_params)
  logits = target.head(target_params, jnp.eye(width))
  # Eigenvectors come in the order of their values, the smallest first.
  directions = jnp.linalg.eigh(logits @ logits.T)[1][:, ::-1]
  directions = directions[:, : head.sizes.width]
  read = scale[:, None] * directions
  fuse = jnp.zeros_like(params['fuse']['w'])
  if head.sizes.draft_vocab:
    logits = logits[:, ids(params['places'], head.sizes.draft_vocab)]
  # Of an entry of a feature, where those that are read were noise of size 1.
  size = jnp.linalg.norm(read) / head.sizes.width**0.5
  return params | {
    'fuse': params['fuse'] | {'w': fuse.at[-width:].set(read)},
    'norm': params['norm'] | {'scale': jnp.full(head.sizes.width, size)},
    'unembedding': directions.T @ logits,
  }


def _scale(head: Head, target_params: Any):
  """The factor [E] by which the target's last norm scales a normed feature."""
  # Without a mean, so that a LayerNorm does the same.
  ones = jnp.where(jnp.arange(head.target.config.width) % 2, 1.0, -1.0)
  there, back = (head.target.norm(target_params, x) for x in (ones, -ones))
  return ones * (there - back) / 2


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
  """Version 3: tokens alone, on the target's features and on its own.

  A head with fewer tokens learns the target's distribution over these. A place
  counts by the probability that the target gives them there.
  """
  goal, share, say = head.learned(params, seen.logits[:, 1:])
  place = jnp.broadcast_to(jnp.arange(goal.shape[1]), goal.shape[:2])
  losses = {}
  for j, features in enumerate(
    head.unroll(params, seen.tokens, seen.hidden, _STEPS)
  ):
    weight = jnp.where(place >= j, seen.weights[:, 1:] * share, 0.0)
    losses[f'step{j}'] = _DECAY**j * seen.judge(goal, say(features), weight)
  return losses
