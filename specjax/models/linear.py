"""Linear maps, and weights in blocks of columns for a CPU that decodes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax import native

COLUMNS = 64  # of a block of weights, unless another number was chosen
FEW_ROWS = 12  # up to which blocks pay


class Int8(NamedTuple):
  """A matrix in eight bits, values * scale: see `models.quantize`."""

  values: Any  # int8, an array or `Native`
  scale: jax.Array  # float32 at least, 1 where the values have inputs


class Native(NamedTuple):
  """Blocks [..., C, in, c] that `specjax.native` multiplies."""

  blocks: jax.Array


def is_native(w) -> bool:
  return isinstance(w, Native)


def multiply(x, w):
  """x [..., in] times w, which is [in, out], or in blocks [..., C, in, c].

  A library's matrix product repacks the weights even for two rows, and costs
  a CPU twice a single row. One pass over a block that fits the innermost
  cache serves several rows at the price of reading it once. Up to six
  rows were seen to add in one order, so that one token and five give the same
  bits; nothing relies on it.

  Returns:
    [..., out], or [..., *leading axes of the blocks, C * c].
  """
  if isinstance(w, Int8):  # Sums are scaled, which are fewer than weights.
    floats = w.values if is_native(w.values) else w.values.astype(x.dtype)
    y = multiply(x, floats)
    scale = w.scale.squeeze(-2) if w.scale.ndim > 2 else w.scale
    return y * scale.reshape(y.shape[x.ndim - 1 :]).astype(y.dtype)
  if is_native(w):
    return _multiply_native(x, w.blocks)
  if w.ndim == 2:
    return x @ w
  shape = *x.shape[:-1], *w.shape[:-3], -1
  rows = x.reshape(-1, w.shape[-2])
  # A sum over blocks with an axis of 1 is compiled to code up to two hundred
  # times slower: there is none, and a single block is a matrix.
  w = w.reshape([*(n for n in w.shape[:-2] if n > 1), *w.shape[-2:]])
  if len(rows) > FEW_ROWS or w.ndim == 2:
    y = jnp.tensordot(rows, w, ((1,), (w.ndim - 2,)))
  elif len(rows) == 1:
    y = (rows[0][:, None] * w).sum(-2)
  else:
    y = (rows[:, :, None] * w[..., None, :, :]).sum(-2)
    y = jnp.moveaxis(y, -2, 0)
  return y.reshape(shape)


def _multiply_native(x, blocks):
  """The same by the kernel."""
  rows = x.reshape(-1, blocks.shape[-2])
  flat = blocks.reshape(-1, *blocks.shape[-2:])
  y = native.product(rows.astype(jnp.float32), flat).astype(x.dtype)
  return y.reshape(*x.shape[:-1], *blocks.shape[:-3], -1)


def leading_axes(columns: int, outputs: Sequence[int]) -> tuple[int, ...]:
  """Axes of the blocks of a weight with such outputs; () where it stays whole.

  The first of several axes stays one, so that devices can split it, or the
  columns behind it.

  Args:
    columns: of a block; 0: weights are whole.
    outputs: axes of the weight behind its inputs.
  """
  if not columns:
    return ()
  first, rest = outputs[0], math.prod(outputs[1:])
  if len(outputs) > 1 and rest % columns == 0:
    return first, rest // columns
  if first * rest % columns == 0:
    return (first * rest // columns,)
  return ()


def to_blocks(w, columns: int = COLUMNS):
  """A weight [in, ...] in blocks of columns, where these come out even."""
  leading = leading_axes(columns, w.shape[1:])
  if not leading:
    return w
  return jnp.moveaxis(w.reshape(len(w), *leading, columns), 0, -2)


def keep_outputs(w, kept, columns: int = 0):
  """The weight of some of its outputs.

  Args:
    w: [in, out], or in blocks [C, in, c], floats, `Int8` or `Native`.
    kept: [n] outputs.
    columns: of a block of the result.
  """

  def keep(x):
    if is_native(x):
      made = keep(x.blocks)
      return Native(made) if made.ndim > 2 else made
    if x.ndim > 2:
      x = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)
    return to_blocks(x[:, kept], columns)

  return jax.tree.map(keep, w, is_leaf=is_native)


def arrange(params, shapes, columns: int, for_kernel: bool = False):
  """Parameters whose weights become blocks where their shapes say so.

  Args:
    params: of a model with whole weights.
    shapes: of the same model with weights in blocks.
    columns: of a block.
    for_kernel: whether blocks become `Native`, of types that it multiplies.
  """

  def one(weight, goal):
    if weight.shape == goal.shape:
      return weight
    blocks = to_blocks(weight, columns)
    fits = for_kernel and weight.dtype.name in native.DTYPES
    return Native(blocks) if fits else blocks

  return jax.tree.map(one, params, shapes)


def declare_weight(module, name, columns, inputs, outputs, axes, scale):
  """A weight [inputs, *outputs], as its product takes it.

  Where blocks are asked for and come out even it is [*leading_axes, inputs,
  columns], otherwise [inputs, *outputs]. One that was quantised is an `Int8`
  of these, one for the kernel a `Native`.
  """
  stored = module.get_variable('params', name)
  if isinstance(stored, Int8 | Native):
    return stored
  shape = (inputs, *outputs)
  if leading := leading_axes(columns, outputs):
    shape = (*leading, inputs, columns)
    # Axes that were merged are split over no devices.
    whole = len(leading) < len(outputs) and len(leading) == 1
    kept = (None,) if whole else axes[1 : 1 + len(leading)]
    axes = (*kept, axes[0], None)
  initializer = nn.initializers.normal(scale)
  return module.param(
    name, nn.with_logical_partitioning(initializer, axes), shape
  )


def apply_whole(x, w):
  """x [..., in] times w [in, *outputs]."""
  if isinstance(w, Int8):
    y = jnp.tensordot(x, w.values.astype(x.dtype), 1)
    return y * w.scale[0].astype(y.dtype)
  return jnp.tensordot(x, w, 1)


class Linear(nn.Module):
  """x [..., inputs] -> [..., *outputs]."""

  columns: int  # of a block of weights; 0: they are whole
  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...]  # logical names of (inputs, *outputs)
  bias: bool
  scale: float

  @nn.compact
  def __call__(self, x):
    w = declare_weight(
      self, 'w', self.columns, self.inputs, self.outputs, self.axes, self.scale
    )
    if leading_axes(self.columns, self.outputs):
      y = multiply(x, w).reshape(*x.shape[:-1], *self.outputs)
    else:  # Outputs in one axis could not be split over devices by the last.
      y = apply_whole(x, w)
    if self.bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
      y += self.param('b', zeros, self.outputs)
    return y
