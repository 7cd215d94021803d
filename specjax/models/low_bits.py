"""Weights in eight or four bits, with a scale for each group of inputs.

A transform of parameters: a weight becomes scale * value + offset, where values
are integers and a scale, and an offset where there is one, serve a group of
inputs of one output. Activations and caches stay as they were, unless `rounds`
says that the activations of a product are rounded as well. Any model can be
quantised, the target as its own draft included: the rule then says by how much
q is off.

The kernel multiplies such weights as they lie (`specjax.native`). Elsewhere
they are made floats before a product, or once before a loop, where nothing is
saved but the size of a file.

Why not a library: qwix 0.1.8 and aqtp 0.9.0 replace products (`dot_general`)
inside a Linen module, and want the whole of a model in one call. Here a head is
called alone, and the kernel's products are none of these.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

BITS = 8, 4
GROUP = 32  # inputs that share a scale, where they divide the inputs
LARGEST = 127  # value of eight bits, of a weight or of an activation


@struct.dataclass
class LowBits:
  """A weight [in, *outputs] of few bits.

  Attributes:
    words: [in / P, *outputs] int32, each of P = 32 / bits inputs of an output:
      four of eight bits with their signs, the first in the lowest bits; or
      eight from 0 to 15, of which the first four have the lower half of each
      byte. In blocks [C, in / P, c] where `blocked` says so.
    scale: [in / G, *outputs] float32, or in such blocks.
    offset: the same shape; None: 0.
    bits: of a value.
    rounds: whether activations are rounded to eight bits, with a scale for each
      group, before they are multiplied.
    blocked: whether it lies in blocks of columns for the kernel.
  """

  words: Any  # arrays of jax or numpy, or their shapes
  scale: Any
  offset: Any
  bits: int = struct.field(pytree_node=False)
  rounds: bool = struct.field(pytree_node=False, default=False)
  blocked: bool = struct.field(pytree_node=False, default=False)


def is_low_bits(x: Any) -> bool:
  return isinstance(x, LowBits)


def _places(bits: int) -> np.ndarray:
  """Returns the lowest bit of each value of a word."""
  k = np.arange(32 // bits)
  return 8 * k if bits == 8 else 8 * (k % 4) + 4 * (k // 4)


def _along(places: np.ndarray, ndim: int) -> jax.Array:
  """Places along the second of so many axes."""
  return jnp.asarray(places, jnp.uint32).reshape(1, -1, *[1] * (ndim - 1))


def pack(values: jax.Array, bits: int) -> jax.Array:
  """Packs integers [in, *outputs] into words [in / P, *outputs]."""
  places = _places(bits)
  fields = values.astype(jnp.int32).astype(jnp.uint32) & (2**bits - 1)
  fields = fields.reshape(-1, len(places), *values.shape[1:])
  words = (fields << _along(places, values.ndim)).sum(1, dtype=jnp.uint32)
  return jax.lax.bitcast_convert_type(words, jnp.int32)


def pack_rows(values: np.ndarray, bits: int) -> np.ndarray:
  """Packs bytes [out, in] into words [out, in / P], those of `pack`."""
  if bits == 4:
    low, high = np.moveaxis(values.reshape(len(values), -1, 2, 4), 2, 0)
    values = (low | high << 4).reshape(len(values), -1)
  return np.ascontiguousarray(values).view('<i4')


def unpack(words: jax.Array, bits: int) -> jax.Array:
  """Returns the integers [in, *outputs] of words [in / P, *outputs], int32."""
  places = _along(_places(bits), words.ndim)
  left = (words[:, None].astype(jnp.uint32) << (32 - bits - places)).astype(
    jnp.int32
  )
  if bits == 8:
    values = left >> 24
  else:
    values = (left.astype(jnp.uint32) >> 28).astype(jnp.int32)
  return values.reshape(-1, *words.shape[1:])


def values_of(w: LowBits) -> jax.Array:
  """Returns the integers [in, *outputs] of a weight; of blocks [in, C * c]."""
  return unpack(unblock(w.words) if w.blocked else w.words, w.bits)


def unblock(x: jax.Array) -> jax.Array:
  """Returns [in, C * c] of blocks [C, in, c]."""
  return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _spread(x: jax.Array, inputs: int) -> jax.Array:
  """Repeats what a group has for each of its inputs."""
  return jnp.repeat(x, inputs // len(x), 0, total_repeat_length=inputs)


def widen(w: LowBits, dtype: Any = jnp.float32) -> jax.Array:
  """Returns the floats [in, *outputs] that a weight stands for."""
  values = values_of(w)
  scale = unblock(w.scale) if w.blocked else w.scale
  wide = values.astype(scale.dtype) * _spread(scale, len(values))
  if w.offset is not None:
    offset = unblock(w.offset) if w.blocked else w.offset
    wide += _spread(offset, len(values))
  return wide.astype(dtype)


def round_activations(x: jax.Array, groups: int) -> jax.Array:
  """Rounds x [..., in] to eight bits in each group, as the kernel does."""
  parts = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
  most = jnp.abs(parts).max(-1, keepdims=True)
  inverse = jnp.where(most > 0, LARGEST / most, 0)
  rounded = jnp.round(parts * inverse) * (most / LARGEST)
  return rounded.reshape(x.shape).astype(x.dtype)


def group_of(inputs: int, bits: int, group: int = GROUP) -> int:
  """Returns how many inputs share a scale; 0: they cannot be packed."""
  while group >= 32 // bits:
    if inputs % group == 0:
      return group
    group //= 2
  return 0


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def quantize_matrix(
  w: jax.Array, bits: int = 8, group: int = GROUP, rounds: bool = False
) -> LowBits:
  """Rounds a weight [in, *outputs] to values of few bits.

  Eight bits are symmetric, the nearest of 255 values. Four bits are the nearest
  of 16 from the least to the largest weight of a group. The error is at most
  half a scale.

  Args:
    w: the weight, in floats.
    bits: of a value, one of `BITS`.
    group: inputs that share a scale, see `group_of`.
    rounds: see `LowBits`.
  """
  wide = w.astype(jnp.float32)
  parts = wide.reshape(-1, group, *w.shape[1:])
  low, high = parts.min(1, keepdims=True), parts.max(1, keepdims=True)
  if bits == 8:
    offset, scale = None, jnp.maximum(-low, high) / LARGEST
    least, most = -LARGEST, LARGEST
  else:
    # An offset of 0 where all weights are above it keeps a weight of 0.
    offset, scale = low, (high - low) / 15
    least, most = 0, 15
  # A group without weights has a scale of 0, and values of 0.
  parts = parts if offset is None else parts - offset
  values = jnp.round(parts / jnp.where(scale > 0, scale, 1))
  values = jnp.clip(values, least, most).astype(jnp.int32).reshape(w.shape)
  return LowBits(
    pack(values, bits),
    scale[:, 0],
    None if offset is None else offset[:, 0],
    bits,
    rounds,
  )
