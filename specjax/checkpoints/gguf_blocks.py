"""Blocks of GGUF files taken apart: integers, with a scale for each group.

Every type here is scale * (value - zero) + offset, so nothing is lost:
`low_bits` holds what a file holds, in little more than its bytes.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Blocks(NamedTuple):
  """A tensor [out, in] of few bits, its inputs first.

  Attributes:
    values: [in / 4, out] uint32, each of four values in bytes, the first in the
      lowest; with signs where `bits` is 8.
    bits: of a value, 8, 6 or 4.
    zero: the value that stands for 0 beside an offset.
    scale: [in / G, out] float16 or int8, of each group of G inputs.
    scale_unit: [in / S, out] float16, which scales are multiplied by, for each
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

  @property
  def inputs(self) -> int:
    """The number of inputs."""
    return 4 * len(self.values)


def _part(x: np.ndarray, begin: int, end: int, dtype: str) -> np.ndarray:
  """Returns bytes of every block [out, blocks, size] as [blocks, n, out]."""
  part = np.ascontiguousarray(x[..., begin:end]).view(dtype)
  return np.ascontiguousarray(part.transpose(1, 2, 0))


def _half(x: np.ndarray, begin: int) -> np.ndarray:
  """Returns the float16 at a byte of every block; [blocks, 1, out]."""
  return _part(x, begin, begin + 2, '<f2')


def _words(x: np.ndarray, begin: int, end: int) -> np.ndarray:
  """Returns bytes of every block in words of four; [blocks, n, out]."""
  return _part(x, begin, end, '<u4')


def _nibbles(words: np.ndarray) -> np.ndarray:
  """Returns the lower halves of bytes and the higher ones; [..., 2, n, out]."""
  low = np.uint32(0x0F0F0F0F)
  return np.stack([words & low, words >> 4 & low], -3)


def _fifth_bits(x: np.ndarray, begin: int) -> np.ndarray:
  """Returns bit 4 of 32 values, from 32 bits; [blocks, 2, 4, out]."""
  places = np.arange(0, 32, 4, dtype=np.uint32)[:, None]
  four = _words(x, begin, begin + 4) >> places & 15
  # Each of four bits goes to a byte of its own.
  bits = (four * np.uint32(0x00204081) & 0x01010101) << 4
  return bits.reshape(len(bits), 2, 4, -1)


def _q4_0(x):
  return Blocks(_nibbles(_words(x, 2, 18)), 4, 8, _half(x, 0))


def _q4_1(x):
  values = _nibbles(_words(x, 4, 20))
  return Blocks(values, 4, 0, _half(x, 0), offset=_half(x, 2))


def _q5_0(x):
  values = _nibbles(_words(x, 6, 22)) | _fifth_bits(x, 2)
  return Blocks(values, 6, 16, _half(x, 0))


def _q5_1(x):
  values = _nibbles(_words(x, 8, 24)) | _fifth_bits(x, 4)
  return Blocks(values, 6, 0, _half(x, 0), offset=_half(x, 2))


def _q8_0(x):
  return Blocks(_words(x, 2, 34), 8, 0, _half(x, 0))


def _of_k(x, values, bits):
  """Returns blocks of eight groups, with scales and offsets of six bits."""
  first, least, rest = (
    _part(x, 4, 16, 'u1').reshape(len(values), 3, 4, -1).swapaxes(0, 1)
  )
  scales = [first & 63, rest & 15 | first >> 6 << 4]
  least = [least & 63, rest >> 4 | least >> 6 << 4]
  scale, offset = (
    np.concatenate(part, 1).view(np.int8) for part in (scales, least)
  )
  return Blocks(values, bits, 0, scale, _half(x, 0), offset, -_half(x, 2))


def _q4_k(x):
  words = _words(x, 16, 144)
  return _of_k(x, _nibbles(words.reshape(len(words), 4, 8, -1)), 4)


def _q5_k(x):
  words = _words(x, 48, 176)
  values = _nibbles(words.reshape(len(words), 4, 8, -1))
  places = np.arange(8, dtype=np.uint32).reshape(4, 2, 1, 1)
  high = _words(x, 16, 48)[:, None, None] >> places & 0x01010101
  return _of_k(x, values | high << 4, 6)


def _q6_k(x):
  words = _words(x, 0, 128)
  low = _nibbles(words.reshape(len(words), 2, 16, -1))
  low = low.reshape(len(words), 2, 4, 8, -1)
  places = np.arange(0, 8, 2, dtype=np.uint32).reshape(4, 1, 1)
  words = _words(x, 128, 192)
  high = words.reshape(len(words), 2, 1, 8, -1) >> places & 0x03030303
  scale = _part(x, 192, 208, 'i1')
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
    name: x.reshape(-1, rows)
    for name, x in made._asdict().items()
    if isinstance(x, np.ndarray)
  }
  return made._replace(**arrays)
