"""Linear maps, and weights in the layouts that their products take.

A matrix is whole, in blocks of columns for the kernel (`Native`), or in eight
bits (`Int8`), whole or in such blocks. A module declares whole matrices; its
parameters say which layout a matrix has.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax import native

# Names of the parameters that `multiply` takes in any layout.
NAMES = 'w', 'unembedding', 'residual'


class Int8(NamedTuple):
  """A matrix in eight bits, values * scale: see `models.quantize`."""

  values: Any  # int8, an array or `Native`
  scale: jax.Array  # float32 at least, 1 where the values have inputs


class Native(NamedTuple):
  """Blocks [C, in, c] that `specjax.native` multiplies."""

  blocks: jax.Array


def is_native(w) -> bool:
  return isinstance(w, Native)


def multiply(x, w):
  """Multiplies x [..., in] by a weight [in, *outputs] in any layout.

  Returns:
    [..., *outputs]; of blocks [..., C * c].
  """
  if isinstance(w, Int8):  # Scales the sums, which are fewer than the weights.
    floats = w.values if is_native(w.values) else w.values.astype(x.dtype)
    y = multiply(x, floats)
    return y * w.scale.reshape(y.shape[x.ndim - 1 :]).astype(y.dtype)
  if is_native(w):
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    y = native.product(rows, w.blocks).astype(x.dtype)
    return y.reshape(*x.shape[:-1], -1)
  return jnp.tensordot(x, w, 1)


def to_blocks(w) -> jax.Array:
  """A weight [in, *outputs] as blocks [C, in, c] of the kernel's columns."""
  return jnp.moveaxis(w.reshape(len(w), -1, native.COLUMNS), 0, 1)


def to_native(params):
  """Parameters with matrices in blocks for the kernel.

  Other parameters stay as they are, and so do matrices that cannot be blocks:
  the kernel does not multiply their type, or their columns do not come out
  even.
  """

  def one(path, w):
    if (
      is_native(w)
      or isinstance(w, Int8)
      or not any(key.key in NAMES for key in path)
      or w.dtype.name not in native.DTYPES
      or math.prod(w.shape[1:]) % native.COLUMNS
    ):
      return w
    return Native(to_blocks(w))

  return jax.tree_util.tree_map_with_path(
    one, params, is_leaf=lambda x: isinstance(x, Native | Int8)
  )


def keep_outputs(w, kept):
  """The weight of some of its outputs.

  Args:
    w: [in, out] in any layout, which the result has if its columns come out
      even; otherwise it is whole.
    kept: [n] outputs.
  """

  def keep(x):
    if is_native(x):
      made = keep(x.blocks)
      return Native(made) if made.ndim > 2 else made
    if x.ndim == 2:
      return x[:, kept]
    whole = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, kept]
    return whole if len(kept) % native.COLUMNS else to_blocks(whole)

  return jax.tree.map(keep, w, is_leaf=is_native)


def declare_weight(module, name, inputs, outputs, axes, scale):
  """A weight [inputs, *outputs], in the layout that the parameters have."""
  stored = module.get_variable('params', name)
  if isinstance(stored, Int8 | Native):
    return stored
  start = nn.with_logical_partitioning(nn.initializers.normal(scale), axes)
  return module.param(name, start, (inputs, *outputs))


class Linear(nn.Module):
  """x [..., inputs] -> [..., *outputs]."""

  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...]  # logical names of (inputs, *outputs)
  bias: bool
  scale: float

  @nn.compact
  def __call__(self, x):
    w = declare_weight(
      self, 'w', self.inputs, self.outputs, self.axes, self.scale
    )
    y = multiply(x, w).reshape(*x.shape[:-1], *self.outputs)
    if self.bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
      y += self.param('b', zeros, self.outputs)
    return y
