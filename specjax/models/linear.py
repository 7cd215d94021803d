"""Linear maps, and weights in blocks of columns for a CPU that decodes."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

COLUMNS = 64  # of a block of weights
FEW_ROWS = 12  # up to which blocks pay


class Int8(NamedTuple):
  """A matrix in eight bits, values * scale: see `models.quantize`."""

  values: jax.Array  # int8
  scale: jax.Array  # float32 at least, 1 where the values have inputs


def multiply(x, w):
  """x [..., in] times w, which is [in, out] or [out/64, in, 64] in blocks.

  A library's matrix product repacks the weights even for two rows, and costs
  a CPU twice a single row. One pass over a block that fits the innermost
  cache serves several rows at the price of reading it once. Up to six
  rows were seen to add in one order, so that one token and five give the same
  bits; nothing relies on it.
  """
  if isinstance(w, Int8):  # Sums are scaled, which are fewer than weights.
    y = multiply(x, w.values.astype(x.dtype))
    return y * w.scale.reshape(-1).astype(y.dtype)
  if w.ndim == 2:
    return x @ w
  rows = x.reshape(-1, w.shape[1])
  # A sum for one row and one block is compiled to code a hundred times slower.
  if len(rows) > FEW_ROWS or len(w) == 1:
    y = rows @ w.transpose(1, 0, 2).reshape(w.shape[1], -1)
  elif len(rows) == 1:
    y = (rows[0][:, None] * w).sum(1)
  else:
    y = (rows[:, :, None] * w[:, None]).sum(2).swapaxes(0, 1)
  return y.reshape(*x.shape[:-1], -1)


def comes_in_blocks(blocked: bool, outputs) -> bool:
  """Whether a weight is stored in blocks, where these are asked for."""
  return blocked and math.prod(outputs) % COLUMNS == 0


def to_blocks(w):
  """A weight [in, ...] in blocks of columns, where these come out even."""
  if not comes_in_blocks(True, w.shape[1:]):
    return w
  return w.reshape(len(w), -1, COLUMNS).swapaxes(0, 1)


def arrange(params, shapes):
  """Parameters whose weights become blocks where their shapes say so.

  Args:
    params: of a model with whole weights.
    shapes: of the same model with weights in blocks.
  """

  return jax.tree.map(
    lambda weight, goal: (
      weight if weight.shape == goal.shape else to_blocks(weight)
    ),
    params,
    shapes,
  )


def declare_weight(module, name, blocked, inputs, outputs, axes, scale):
  """A weight [inputs, *outputs], as its product takes it.

  Where blocks are asked for and come out even it is [out/64, in, 64],
  otherwise [in, *outputs]. One that was quantised is an `Int8` of these.
  """
  if isinstance(stored := module.get_variable('params', name), Int8):
    return stored
  shape = (inputs, *outputs)
  if comes_in_blocks(blocked, outputs):
    shape = (math.prod(outputs) // COLUMNS, inputs, COLUMNS)
    axes = (None, None, None)
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

  blocked: bool
  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...]  # logical names of (inputs, *outputs)
  bias: bool
  scale: float

  @nn.compact
  def __call__(self, x):
    w = declare_weight(
      self, 'w', self.blocked, self.inputs, self.outputs, self.axes, self.scale
    )
    if comes_in_blocks(self.blocked, self.outputs):
      y = multiply(x, w).reshape(*x.shape[:-1], *self.outputs)
    else:  # Outputs in one axis could not be split over devices by the last.
      y = apply_whole(x, w)
    if self.bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
      y += self.param('b', zeros, self.outputs)
    return y
