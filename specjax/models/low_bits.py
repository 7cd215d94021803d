"""Weights in eight, six or four bits, with a scale for each group of inputs.

A transform of parameters: a weight becomes scale * (value - zero) + offset,
where values are integers and a scale, and an offset where there is one, serve a
group of inputs of one output. They are numbers of few bits, too, with a unit
for many groups. Activations and caches stay as they were, unless `rounds` says
that the activations of a product are rounded as well. Any model can be
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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

BITS = 8, 4  # that weights are rounded to; files have 6, too
GROUP = 32  # inputs that share a scale, where they divide the inputs
LARGEST = 127  # value of eight bits, of a weight or of an activation


@struct.dataclass
class LowBits:
  """A weight [in, *outputs] of few bits.

  Attributes:
    words: [in * bits / 32, *outputs] int32, each of inputs of one output. Eight
      bits: four with their signs, the first in the lowest bits. Four bits:
      eight from 0 to 15, of which the first four have the lower half of each
      byte. Six bits: sixteen from 0 to 63 in three words, of which two are
      those of the lower four bits, and each byte of the third has the upper
      bits of inputs 4, 8 and 12 apart. In blocks [C, in * bits / 32, c] where
      `blocked` says so.
    scale: [in / G, *outputs] float32, float16 or int8, or in such blocks.
    offset: of the shape and types of `scale`; None: no offset is added.
    bits: of a value, 8, 6 or 4.
    zero: the value that stands for 0 beside an offset; 0 for eight bits.
    rounds: whether activations are rounded to eight bits, with a scale for each
      group, before they are multiplied.
    blocked: whether it lies in blocks of columns for the kernel.
    scale_unit: [in / S, *outputs] of the types of `scale`, which scales are
      multiplied by, for each S inputs; None: 1.
    offset_unit: as `scale_unit`, for offsets; None: 1.
  """

  words: Any  # arrays of jax or numpy, or their shapes
  scale: Any
  offset: Any
  bits: int = struct.field(pytree_node=False)
  zero: int = struct.field(pytree_node=False, default=0)
  scale_unit: Any = None
  offset_unit: Any = None
  rounds: bool = struct.field(pytree_node=False, default=False)
  blocked: bool = struct.field(pytree_node=False, default=False)

  @property
  def size(self) -> int:
    """The number of values."""
    return self.words.size * 32 // self.bits


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
  """Packs integers [in, *outputs] into words [in * bits / 32, *outputs]."""
  fields = values.astype(jnp.int32).astype(jnp.uint32) & (2**bits - 1)
  fields = fields.reshape(-1, 4, *values.shape[1:])
  places = _along(_places(8), values.ndim)
  return pack_fours((fields << places).sum(1, dtype=jnp.uint32), bits)


def pack_fours(values: Any, bits: int) -> Any:
  """Packs words [in / 4, *outputs] of four bytes each as `pack` does."""
  if bits == 4:
    values = values[::2] | values[1::2] << 4
  elif bits == 6:
    fours = [values[i::4] for i in range(4)]
    high = [(x >> 4 & 0x03030303) << 2 * i for i, x in enumerate(fours)]
    fours = [x & 0x0F0F0F0F for x in fours]
    words = (
      fours[0] | fours[1] << 4,
      fours[2] | fours[3] << 4,
      high[0] | high[1] | high[2] | high[3],
    )
    stack = values.__array_namespace__().stack
    values = stack(words, axis=1).reshape(-1, *values.shape[1:])
  return values.view(np.int32)


def unpack(words: jax.Array, bits: int) -> jax.Array:
  """Returns the integers [in, *outputs] of words, int32."""
  if bits == 6:
    outputs = words.shape[1:]
    words = words.reshape(-1, 3, *outputs)
    low = unpack(words[:, :2].reshape(-1, *outputs), 4)
    bytes_ = unpack(words[:, 2], 8).reshape(-1, 1, 4, *outputs)
    places = jnp.arange(0, 8, 2).reshape(4, *[1] * (1 + len(outputs)))
    return low | ((bytes_ >> places & 3) << 4).reshape(low.shape)
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
  return jnp.repeat(x, inputs // len(x), 0)


def factors_of(w: LowBits) -> tuple[jax.Array, jax.Array | None]:
  """Returns the scales [in / G, *outputs] of a weight, and its offsets.

  Both are floats; of blocks [in / G, C * c]. Offsets are None where w has none.
  """

  def product(x, unit):
    if x is None:
      return None
    x, *units = (
      unblock(y) if w.blocked else y for y in (x, unit) if y is not None
    )
    wide = jnp.promote_types(jnp.float32, x.dtype)
    x = x.astype(wide)
    return x * _spread(units[0].astype(wide), len(x)) if units else x

  return product(w.scale, w.scale_unit), product(w.offset, w.offset_unit)


def widen(w: LowBits, dtype: Any = jnp.float32) -> jax.Array:
  """Returns the floats [in, *outputs] that a weight stands for."""
  values, (scale, offset) = values_of(w) - w.zero, factors_of(w)
  wide = values.astype(scale.dtype) * _spread(scale, len(values))
  if offset is not None:
    wide += _spread(offset, len(values))
  return wide.astype(dtype)


def round_activations(x: jax.Array, groups: int) -> jax.Array:
  """Rounds x [..., in] to eight bits in each group, as the kernel does."""
  parts = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
  most = jnp.abs(parts).max(-1, keepdims=True)
  # The inverse of a smaller one would be infinite.
  inverse = jnp.where(most > 1e-36, LARGEST / most, 0)
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

  Eight bits are symmetric, the nearest of 255 values, with scales in float32.
  Four bits are the nearest of 16 from the least to the largest weight of a
  group, with scales and offsets in eight bits and a unit for each output. The
  error is at most half a scale. With these in float16 a weight would take five
  bits and not four and a half.

  Args:
    w: the weight, in floats.
    bits: of a value, one of `BITS`.
    group: inputs that share a scale, see `group_of`.
    rounds: see `LowBits`.
  """
  wide = w.astype(jnp.float32)
  parts = wide.reshape(-1, group, *w.shape[1:])
  low, high = parts.min(1), parts.max(1)
  offset = offset_unit = scale_unit = None
  if bits == 8:
    scale, least = jnp.maximum(-low, high) / LARGEST, -LARGEST
    wide_scale = scale
  else:
    offset, offset_unit = _shorten(low, jnp.floor)
    wide_offset = offset.astype(jnp.float32) * offset_unit
    parts = parts - wide_offset[:, None]
    scale, scale_unit = _shorten((high - wide_offset) / 15, jnp.ceil)
    wide_scale, least = scale.astype(jnp.float32) * scale_unit, 0
  # A group without weights has a scale of 0, and values of 0.
  values = jnp.round(parts / jnp.where(wide_scale > 0, wide_scale, 1)[:, None])
  most = LARGEST if bits == 8 else 15
  values = jnp.clip(values, least, most).astype(jnp.int32).reshape(w.shape)
  return LowBits(
    pack(values, bits),
    scale,
    offset,
    bits,
    scale_unit=scale_unit,
    offset_unit=offset_unit,
    rounds=rounds,
  )


def _shorten(
  x: jax.Array, to_whole: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
  """Returns x [n, *outputs] in eight bits, rounded to one side, and its units.

  Args:
    x: scales or offsets.
    to_whole: rounds to whole numbers, up or down.
  """
  most = jnp.abs(x).max(0, keepdims=True)
  part = to_whole(x / jnp.where(most > 0, most, 1) * LARGEST)
  # Some devices divide a number by itself to slightly more than 1.
  part = jnp.clip(part, -LARGEST, LARGEST)
  return part.astype(jnp.int8), most / LARGEST
