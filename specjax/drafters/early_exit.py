"""Early exit: the target's first layers and its head draft for it.

Self-speculation as in LayerSkip (Elhoushi et al., arXiv:2404.16710) and, with
a small trained part at the exit, Kangaroo (Liu et al., arXiv:2404.18911). It
reads the target's own cache and weights: nothing is copied and nothing
remembered. The target's pass computes these layers once more. With a window it
reads that cache in part; all layers and a window are `drafters.windowed`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax.arguments import check_number
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.shapes import chain, shape
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.models import cache as caches
from specjax.models import variants
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

KIND = 'early_exit'


def check_exit(target: Model, layers: int) -> None:
  """Raises a ValueError where the target has no such exit."""
  if not 1 <= layers <= target.config.num_layers:
    raise ValueError(
      f'layers: an exit after layer {layers} is out of range: the target has '
      f'{target.config.num_layers} layers, choose 1 to as many'
    )


def leave(target: Model, params, normed, features):
  """Logits at an exit.

  Args:
    target: the target.
    params: of the target, and of the exit: None, or `scale` [E] of a norm of
      its own, `down` [E, R] and `up` [R, E].
    normed: [..., E] features after the target's last norm.
    features: [..., E] before it.
  """
  own = params.drafter
  if own is None:
    return target.head(params.target, normed)
  wide = features.astype(jnp.promote_types(features.dtype, jnp.float32))
  size = jnp.mean(wide * wide, -1, keepdims=True) + target.config.norm_eps
  y = (wide * jax.lax.rsqrt(size)).astype(features.dtype) * own['scale']
  return target.head(params.target, y + (y @ own['down']) @ own['up'])


def part_of(
  target: Model, layers: int, window: int = 0, sinks: int = 0
) -> Model:
  """The target up to an exit; see `variants.narrow`."""
  first = variants.first_layers(target, layers)
  return variants.narrow(first, window, sinks)


@functools.cache
def walk(target: Model, layers: int, window: int = 0, sinks: int = 0) -> Walker:
  """The walker that leaves after so many layers; see `part_of`."""
  first = part_of(target, layers, window, sinks)

  def init(params, ctx, hidden, rows):
    if not ctx.cache:
      raise ValueError(
        'an exit or a window reads the cache of what it drafts for, and there '
        'is none inside a cascade over the target itself: choose a drafter '
        'with a cache of its own, such as lm, or none'
      )
    return (), caches.open_block(ctx.cache[:layers], first.config, rows)

  def forward(params, block, ctx, tokens, row, depth, sees):
    used = ctx.length - 1
    at = used[:, None] + jnp.full(tokens.shape[1], depth)
    cache = ctx.cache[:layers]
    taps = (layers - 1,)
    out = first.forward(
      params.target, tokens, at, cache, used, sees, block, row, taps
    )
    logits = leave(target, params, out.hidden, out.taps[:, :, 0])
    return Step(logits, (), out.flight)

  def start(params, state, block, ctx):
    del state  # There is nothing.
    last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)
    rows = caches.rows_of(block)
    sees = jnp.broadcast_to(jnp.arange(rows) == 0, (*last.shape, rows))
    return forward(params, block, ctx, last, 0, 0, sees)

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    return forward(params, block, ctx, tokens, row, depth, sees)

  def commit(params, state, block, ctx, verdict, hidden):
    return state

  return Walker(init, start, feed, commit)


def trainable(target: Model, layers: int = 1, rank: int = 64) -> Trainable:
  """An exit to train: a norm of its own and a low-rank adapter.

  Raises:
    ValueError: exit out of range, or a rank below 1.
  """
  check_exit(target, layers)
  check_number('rank', rank, 1)
  width = target.config.width

  def init(key, target_params):
    down = jax.random.normal(key, (width, rank)) * width**-0.5
    return {
      'scale': jnp.ones(width),
      'down': down,
      'up': jnp.zeros((rank, width)),
    }

  def loss(params, seen, key):
    features = seen.hidden[:, :, 0]
    logits = leave(target, params, None, features)
    return {'token': seen.judge(seen.logits, logits, seen.weights)}

  return Trainable(
    {'kind': KIND, 'layers': layers, 'rank': rank},
    (layers - 1,),
    init,
    loss,
    lambda depth: chain.make(walk(target, layers), depth),
  )


def load(
  target: Target,
  path: str = '',
  layers: int = 0,
  window: int = 0,
  sinks: int = 0,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of an exit, for a target.

  Args:
    target: what is drafted for.
    path: directory of a trained exit; empty: the target's norm and head.
    layers: E, before an untrained exit; a trained one knows its own.
    window: see `variants.narrow`, also for `sinks`.
    sinks: see there.
    **options: of `shapes.shape.Shape`.

  Raises:
    ValueError: exit out of range, no such exit, or no such window.
  """
  shape.check(target, options)
  model, params = target.model, None
  if path:
    config, params = files.read(path, KIND, target.fingerprint, target.dtype)
    if layers not in (0, config['layers']):
      raise ValueError(
        f'layers is {layers}, but {path} was trained for an exit after '
        f'{config["layers"]}: leave layers out, or train another exit'
      )
    layers = config['layers']
  check_number('layers', layers, 0)
  check_exit(model, layers)
  walker = walk(model, layers, window, sinks)
  if path:
    fresh = trainable(model, layers, config['rank']).init
    need = jax.eval_shape(fresh, jax.random.key(0), None)
    params = files.fit(params, need, path)
  loaded = shape.load(target, walker, options, params)
  passes = part_of(model, layers, window, sinks)
  return dataclasses.replace(loaded, passes=passes)
