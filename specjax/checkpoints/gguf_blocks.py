"""Blocks of GGUF files taken apart: integers, with a scale for each group.

Every type here is scale * (value - zero) + offset, so nothing is lost:
`low_bits` holds what a file holds, in little more than its bytes.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Blocks(NamedTuple):
  """A tensor [out, in] of few bits.

  Attributes:
    values: [out, in] uint8, or int8 where `bits` is 8.
    bits: of a value, 8, 6 or 4.
    zero: the value that stands for 0 beside an offset.
    scale: [out, in / G] float16 or int8, of each group of G inputs.
    scale_unit: [out, in / S] float16, which scales are multiplied by, for each
      S inputs; None: 1.
    offset: as scale; None: 0.
    offset_unit: as scale_unit.
  """

  values: np.ndarray
  bits: int
  zero: int
  scale: np.ndarray
  scale_unit: np.ndarray | None = None
  offset: np.ndarray | None = None
  offset_unit: np.ndarray | None = None


# Of every byte, its bits as bit 4 of eight values.
_FIFTH = (
  np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], 1, bitorder='little')
  << 4
)


def _half(blocks: np.ndarray, begin: int) -> np.ndarray:
  """Returns the float16 at a byte of every block; [..., 1]."""
  part = np.ascontiguousarray(blocks[..., begin : begin + 2])
  return part.view(np.float16)


def _nibbles(part: np.ndarray) -> np.ndarray:
  """Returns the lower halves of bytes and the higher ones; [..., 2, n]."""
  made = np.empty((*part.shape[:-1], 2, part.shape[-1]), np.uint8)
  np.bitwise_and(part, 15, made[..., 0, :])
  np.right_shift(part, 4, made[..., 1, :])
  return made


def _fifth_bits(blocks: np.ndarray, begin: int) -> np.ndarray:
  """Returns bit 4 of 32 values, from 32 bits; [..., 2, 16]."""
  bits = _FIFTH[blocks[..., begin : begin + 4]]
  return bits.reshape(*bits.shape[:-2], 2, 16)


def _q4_0(x):
  return Blocks(_nibbles(x[..., 2:18]), 4, 8, _half(x, 0))


def _q4_1(x):
  values = _nibbles(x[..., 4:20])
  return Blocks(values, 4, 0, _half(x, 0), offset=_half(x, 2))


def _q5_0(x):
  values = _nibbles(x[..., 6:22]) | _fifth_bits(x, 2)
  return Blocks(values, 6, 16, _half(x, 0))


def _q5_1(x):
  values = _nibbles(x[..., 8:24]) | _fifth_bits(x, 4)
  return Blocks(values, 6, 0, _half(x, 0), offset=_half(x, 2))


def _q8_0(x):
  return Blocks(x[..., 2:34].view(np.int8), 8, 0, _half(x, 0))


def _of_k(x, values, bits):
  """Returns blocks of eight groups, with scales and offsets of six bits."""
  packed = x[..., 4:16]
  first, least, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
  scales = [first & 63, rest & 15 | first >> 6 << 4]
  least = [least & 63, rest >> 4 | least >> 6 << 4]
  scale, offset = (
    np.concatenate(part, -1).view(np.int8) for part in (scales, least)
  )
  return Blocks(values, bits, 0, scale, _half(x, 0), offset, -_half(x, 2))


def _q4_k(x):
  values = _nibbles(x[..., 16:].reshape(*x.shape[:-1], 4, 32))
  return _of_k(x, values, 4)


def _q5_k(x):
  values = _nibbles(x[..., 48:].reshape(*x.shape[:-1], 4, 32))
  places = np.arange(8, dtype=np.uint8).reshape(4, 2, 1)
  high = x[..., None, None, 16:48] >> places & 1
  return _of_k(x, values | high << 4, 6)


def _q6_k(x):
  low = _nibbles(x[..., :128].reshape(*x.shape[:-1], 2, 64))
  low = low.reshape(*x.shape[:-1], 2, 4, 32)
  places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
  high = x[..., 128:192].reshape(*x.shape[:-1], 2, 1, 32) >> places & 3
  scale = x[..., 192:208].view(np.int8)
  return Blocks(low | high << 4, 6, 32, scale, _half(x, 208))


# By the name of a type: bytes of a block, and what takes blocks apart.
TYPES: dict[str, tuple[int, Callable[[np.ndarray], Blocks]]] = {
  'Q4_0': (18, _q4_0),
  'Q4_1': (20, _q4_1),
  'Q5_0': (22, _q5_0),
  'Q5_1': (24, _q5_1),
  'Q8_0': (34, _q8_0),
  'Q4_K': (144, _q4_k),
  'Q5_K': (176, _q5_k),
  'Q6_K': (210, _q6_k),
}


def take_apart(data: np.ndarray, kind: str) -> Blocks:
  """Takes a tensor apart.

  Args:
    data: [out, bytes of a row] uint8.
    kind: one of `TYPES`.
  """
  size, function = TYPES[kind]
  rows = len(data)
  made = function(data.reshape(rows, -1, size))
  arrays: dict[str, Any] = {
    name: x.reshape(rows, -1)
    for name, x in made._asdict().items()
    if isinstance(x, np.ndarray)
  }
  return made._replace(**arrays)
