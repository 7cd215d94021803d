"""Linear maps, and weights in the layouts that their products take.

A matrix is whole, in blocks of columns for the kernel (`Native`), or of few
bits (`LowBits`), whole or in such blocks. A module declares whole matrices; its
parameters say which layout a matrix has.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax import native
from specjax.models import low_bits
from specjax.models.low_bits import LowBits

# Names of the parameters that `multiply` takes in any layout.
NAMES = 'w', 'unembedding', 'residual'
OF_EXPERTS = 'up', 'down'  # matrices of a mixture, [experts, in, ...]


class Native(NamedTuple):
  """Blocks [C, in, c] that `specjax.native` multiplies."""

  blocks: jax.Array


class Table(NamedTuple):
  """An embedding that is the output layer as well, in that layer's layout."""

  head: Any  # [E, V], `Native` or `LowBits`


def is_native(w) -> bool:
  return isinstance(w, Native)


def is_blocked(w) -> bool:
  """Returns true for a weight in blocks, of floats or of few bits."""
  return is_native(w) or (isinstance(w, LowBits) and w.blocked)


def has_blocks(params) -> bool:
  """Returns true where the kernel of a CPU multiplies some of the weights."""
  leaves = jax.tree.leaves(params, is_leaf=is_blocked)
  return any(map(is_blocked, leaves))


def pad_rows(x, rows: int):
  """Appends rows along T of x [..., T, in], so that it has so many.

  They are zeros. Of two rows the second is the first: a GPU need not write it.
  """
  wanted = -(-rows // max(1, math.prod(x.shape[:-2])))
  if x.ndim < 2 or x.shape[-2] >= wanted:
    return x
  if wanted == 2 and x.shape[-2] == 1:
    return jnp.broadcast_to(x, (*x.shape[:-2], wanted, x.shape[-1]))
  padding = [(0, 0)] * x.ndim
  padding[-2] = (0, wanted - x.shape[-2])
  return jnp.pad(x, padding)


def multiply(x, w, rows: int = 1):
  """Multiplies x [..., in] by a weight [in, *outputs] in any layout.

  Args:
    x: [..., T, in].
    w: the weight.
    rows: fewest rows of the product, see `devices.DeviceForm`. Where x has
      fewer, rows are appended along T.

  Returns:
    [..., *outputs]; of blocks [..., C * c].
  """
  padded = pad_rows(x, rows)
  if padded is not x:
    made = multiply(padded, w)
    return jax.lax.slice_in_dim(made, 0, x.shape[-2], axis=x.ndim - 2)
  if is_blocked(w):
    y = _multiply_blocks(x.reshape(-1, x.shape[-1]).astype(jnp.float32), w)
    return y.astype(x.dtype).reshape(*x.shape[:-1], -1)
  if isinstance(w, LowBits):
    if w.rounds:
      x = low_bits.round_activations(x, len(w.scale))
    w = low_bits.widen(w, x.dtype)
  return jnp.tensordot(x, w, 1)


def _multiply_blocks(rows, w):
  if is_native(w):
    return native.product(rows, w.blocks)
  factors = w.scale, w.scale_unit, w.offset, w.offset_unit
  factors = [jnp.zeros(0) if x is None else x for x in factors]
  settings = jnp.array([w.rounds, w.zero], jnp.int32)
  return native.grouped_product(rows, w.words, *factors, settings)


def embed(table, tokens):
  """Returns rows [..., E] of an embedding [V, E] or `Table`."""
  if not isinstance(table, Table):
    # XLA makes a slice of a gather of one row, and gathers all parts of a table
    # that is split over a GPU's mesh for it.
    rows = pad_rows(tokens.reshape(-1, 1), 2)[:, 0]
    return table[rows][: tokens.size].reshape(*tokens.shape, -1)

  def columns(x, blocked):
    if not blocked:
      return jnp.moveaxis(x[:, tokens], 0, -1)
    block, column = jnp.divmod(tokens, native.COLUMNS)
    return x[block, :, column]

  head = table.head
  if is_native(head):
    return columns(head.blocks, True)
  # Words, scales and offsets of a token, as a weight with a single output.
  flat = tokens.reshape(-1)
  one = jax.tree.map(
    lambda x: columns(x, head.blocked).reshape(flat.size, -1).T, head
  )
  wide = low_bits.widen(dataclasses.replace(one, blocked=False))
  return wide.T.reshape(*tokens.shape, -1)


def head_of(table):
  """Returns the output layer [E, V] that an embedding is, in its layout."""
  return table.head if isinstance(table, Table) else table.T


def output_layer(params):
  """Returns the output layer of a model's weights: the embedding, if tied."""
  own = params.get('unembedding')
  return head_of(params['embedding']) if own is None else own


def fills_blocks(outputs) -> bool:
  """Returns true if outputs of these sizes come out even in blocks."""
  return math.prod(outputs) % native.COLUMNS == 0


def block_shape(inputs: int, outputs) -> tuple[int, int, int]:
  """Returns the shape [C, in, c] of a weight [in, *outputs] in blocks."""
  return math.prod(outputs) // native.COLUMNS, inputs, native.COLUMNS


@jax.jit
def to_blocks(w) -> jax.Array:
  """A weight [in, *outputs] as blocks [C, in, c] of the kernel's columns."""
  return w.reshape(len(w), -1, native.COLUMNS).swapaxes(0, 1)


def put_outputs(w: np.ndarray, blocked: bool, outputs: np.ndarray, x) -> None:
  """Writes some outputs of a weight, in blocks or [in, *outputs].

  Args:
    w: an array of the weight: words, scales or offsets.
    blocked: whether it is in blocks.
    outputs: [n], numbers of the outputs.
    x: [in, n].
  """
  if blocked:
    block, column = np.divmod(outputs, native.COLUMNS)
    w.swapaxes(0, 1)[:, block, column] = x
  else:
    w.reshape(len(w), -1)[:, outputs] = x


def in_blocks(w):
  """A weight in blocks for the kernel, or as it is where it cannot be."""
  if is_blocked(w):
    return w
  if isinstance(w, LowBits):
    if not fills_blocks(w.words.shape[1:]):
      return w
    return dataclasses.replace(jax.tree.map(to_blocks, w), blocked=True)
  if w.dtype.name not in native.DTYPES or not fills_blocks(w.shape[1:]):
    return w
  return Native(to_blocks(w))


def is_weight(x) -> bool:
  """Returns true for a weight that is more than an array."""
  return isinstance(x, Native | LowBits | Table)


def to_native(params, tied: bool = False):
  """Parameters with matrices in blocks for the kernel.

  Other parameters stay as they are, and so do matrices that cannot be blocks:
  the kernel does not multiply their type, or their columns do not come out
  even.

  Args:
    params: whole or in blocks, of floats or of few bits.
    tied: whether the embedding is the output layer as well; it is in blocks
      then.
  """

  def one(path, w):
    keys = [key.key for key in path]
    if tied and keys == ['embedding']:
      made = in_blocks(head_of(w))
      return Table(made) if is_weight(made) else w
    return in_blocks(w) if any(key in NAMES for key in keys) else w

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_weight)


def quantize(params, tied: bool, bits: int = 8, rounds: bool = False):
  """Parameters with matrices in few bits, see `low_bits`.

  Tables that only rows are taken of stay floats (that costs no step anything),
  and so do norms, biases and routers, whose choices a rounding error could turn
  over, and matrices whose inputs cannot be packed.

  Args:
    params: of a model, whole or in blocks.
    tied: whether the embedding is the output layer as well.
    bits: of a value, one of `low_bits.BITS`.
    rounds: round activations, too.
  """

  def of_matrix(w):
    blocked = is_native(w)
    whole = low_bits.unblock(w.blocks) if blocked else w
    group = low_bits.group_of(len(whole), bits)
    if not group:
      return w
    made = low_bits.quantize_matrix(whole, bits, group, rounds)
    return in_blocks(made) if blocked else made

  def one(path, w):
    keys = [key.key for key in path]
    if tied and keys == ['embedding']:
      made = of_matrix(head_of(w))
      return Table(made) if is_weight(made) else w
    if isinstance(w, LowBits):  # As a target's output layer may be.
      return w
    if keys[-1] in OF_EXPERTS and w.ndim > 2:
      return jax.vmap(of_matrix)(w)
    matrix = any(key in NAMES for key in keys)
    return of_matrix(w) if is_native(w) or (matrix and w.ndim > 1) else w

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_weight)


def keep_outputs(w, kept):
  """The weight of some of its outputs.

  Args:
    w: [in, out] in any layout, which the result has if its columns come out
      even; otherwise it is whole.
    kept: [n] outputs.
  """

  blocked = is_blocked(w)

  def keep(x):
    return (low_bits.unblock(x) if blocked else x)[:, kept]

  made = jax.tree.map(keep, w.blocks if is_native(w) else w)
  if isinstance(made, LowBits):
    made = dataclasses.replace(made, blocked=False)
  return in_blocks(made) if blocked else made


def declare(module, name, shape, axes=None, start=None):
  """A parameter of a module, in the layout that it is stored in.

  Args:
    module: that has it.
    name: of the parameter.
    shape: [inputs, *outputs] of a weight.
    axes: logical names of its axes; None: no mesh splits it.
    start: makes fresh values, as `nn.initializers.zeros`; or the size of random
      ones; None: that of a weight whose outputs are as large as its inputs.
  """
  stored = module.get_variable('params', name)
  if is_weight(stored):
    return stored
  start = shape[0] ** -0.5 if start is None else start
  start = start if callable(start) else nn.initializers.normal(start)
  axes = axes or (None,) * len(shape)
  return module.param(name, nn.with_logical_partitioning(start, axes), shape)


class Linear(nn.Module):
  """x [..., inputs] -> [..., *outputs]; see `declare`."""

  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...] | None = None
  bias: bool = False
  scale: float | None = None
  rows: int = 1  # of a product at least, see `multiply`

  @nn.compact
  def __call__(self, x):
    shape = self.inputs, *self.outputs
    y = multiply(x, declare(self, 'w', shape, self.axes, self.scale), self.rows)
    y = y.reshape(*x.shape[:-1], *self.outputs)
    if self.bias:
      axes = self.axes and self.axes[1:]
      y += declare(self, 'b', self.outputs, axes, nn.initializers.zeros)
    return y
