"""Weights in eight bits: symmetric, one scale for each output, none of inputs.

A transform of parameters: matrices become integers in [-127, 127] and the
scale of each of their columns, and the model turns them into floats where it
reads them. Activations and caches stay as they were, and any model can be
quantised, the target as its own draft included: the rule then says by how much
q is off.

It saves memory, and time where weights come from memory and the kernel
multiplies them (`specjax.native`): the embedded target has 14.8 MB instead of
46.2 and its step takes 0.78 of that of float32; drafts that lie in the caches
take 1.2 to 1.4 times as long (results/quantized, from `python -m
experiments.step_costs :quantized`; AMD EPYC, AVX2, 2 cores).
Weights that are not in blocks are made floats as a whole before a library's
product, at every step. No accelerator was measured.

Why not a library: qwix 0.1.8 and aqtp 0.9.0 replace products (`dot_general`)
inside a Linen module, and want the whole of a model in one call. Here a head is
called alone, and the kernel's products are none of these.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax.models import linear, transformer
from specjax.models.config import TransformerConfig
from specjax.models.linear import Int8, Native, is_native
from specjax.models.transformer import Model

LARGEST = 127

# The axis of the inputs, by the last name of a parameter. Tables that only
# rows are taken of stay floats (that costs no step anything), and so do norms,
# biases and routers, whose choices a rounding error could turn over.
_INPUTS = {'w': 0, 'unembedding': 0, 'up': 1, 'down': 1}


def is_int8(x: Any) -> bool:
  return isinstance(x, Int8)


def quantize_matrix(w: jax.Array, axis: int) -> Int8:
  """Rounds to the nearest of 255 values; the error is at most scale / 2.

  Args:
    w: the matrix.
    axis: of its inputs.
  """
  wide = w.astype(jnp.promote_types(w.dtype, jnp.float32))
  scale = jnp.abs(wide).max(axis, keepdims=True) / LARGEST
  # An output without weights has a scale of 0, and values of 0.
  values = jnp.round(wide / jnp.where(scale > 0, scale, 1))
  return Int8(jnp.clip(values, -LARGEST, LARGEST).astype(jnp.int8), scale)


def _input_axis(config: TransformerConfig, path, w) -> int | None:
  """The axis of the inputs of a parameter; None: it stays as it is."""
  names = [key.key for key in path]
  if names == ['embedding'] and config.tied_embeddings:
    return 1
  if w.ndim < 2 or names[-1] not in _INPUTS:
    return None
  return _INPUTS[names[-1]]


def _widen(x: Any, dtype=None) -> Any:
  """A matrix as floats again; anything else stays as it is."""
  if not is_int8(x):
    return x
  if is_native(x.values):
    return Native(_widen(Int8(x.values.blocks, x.scale), dtype))
  wide = x.values.astype(x.scale.dtype) * x.scale
  return wide if dtype is None else wide.astype(dtype)


def dequantize(params: Any) -> Any:
  """All matrices as floats again, of their scales' type."""
  return jax.tree.map(_widen, params, is_leaf=is_int8)


def _usable(params: Any) -> Any:
  """Parameters as modules take them: linear maps know what an `Int8` is."""
  dtype = transformer.dtype_of(params)

  def one(path, x):
    return x if path[-1].key in linear.NAMES else _widen(x, dtype)

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_int8)


def _narrow(function):
  """A function of float parameters, as one of quantised ones."""

  def call(params, first, *rest, **named):
    # Inside a loop the floats would be made once, before it, and read by every
    # turn: nothing would be saved. This makes them depend on the turn.
    params, first = jax.lax.optimization_barrier((params, first))
    return function(_usable(params), first, *rest, **named)

  return call


@functools.cache
def wrap(model: Model) -> Model:
  """The model of quantised parameters; the same object every time."""

  def init(key):
    return quantize_params(model.config, model.init(key))

  reads = model.encode and _narrow(model.encode)
  return model._replace(
    init=init,
    forward=_narrow(model.forward),
    head=_narrow(model.head),
    norm=_narrow(model.norm),
    encode=reads,
  )


def quantize_params(config: TransformerConfig, params: Any) -> Any:
  """Parameters whose matrices are `Int8`."""

  def one(path, w):
    if is_native(w):
      made = quantize_matrix(w.blocks, 1)
      return made._replace(values=Native(made.values))
    axis = _input_axis(config, path, w)
    return w if axis is None else quantize_matrix(w, axis)

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_native)


def quantize(model: Model, params: Any) -> tuple[Model, Any]:
  """The model and its parameters in eight bits.

  Quantise last: what makes another model of a configuration, such as
  `variants.to_native`, makes one of floats.

  Args:
    model: of floats.
    params: its parameters, whole or in blocks.
  """
  quantized = jax.jit(quantize_params, static_argnums=0)
  return wrap(model), quantized(model.config, params)
