"""Weights in MXFP4, as gpt-oss stores its experts, read as floats.

32 inputs of an output have one exponent, and each of them four bits: a sign,
two bits of an exponent and one of a mantissa (OCP Microscaling Formats
Specification, 2023). Every value is exact in bfloat16.

  NAME_blocks [X, out, in / 32, 16]   two values a byte, the lower bits first
  NAME_scales [X, out, in / 32]       exponents, 127 more than they are
  NAME        [X, in, out]            here
"""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from specjax.checkpoints.files import CheckpointError, Tensor

METHOD = 'mxfp4'
_BLOCKS, _SCALES = '_blocks', '_scales'
_GROUP = 32
_HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([_HALF, -_HALF])


class Mxfp4(NamedTuple):
  """A tensor [X, in, out] that has not been read yet."""

  blocks: Tensor
  scales: Tensor
  path: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str = 'BF16'

  @property
  def parts(self) -> tuple[Tensor, ...]:
    """The tensors of the file."""
    return self.blocks, self.scales

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """A part of it, as floats."""
    experts, inputs, outputs = index
    start, stop, _ = inputs.indices(self.shape[1])
    groups = slice(start // _GROUP, -(-stop // _GROUP))
    whole = slice(None)
    words = np.asarray(self.blocks.read((experts, outputs, groups, whole)))
    powers = np.asarray(self.scales.read((experts, outputs, groups)))
    values = np.stack([VALUES[words & 15], VALUES[words >> 4]], -1)
    values = values.reshape(*words.shape[:-1], _GROUP)
    values = np.ldexp(values, powers[..., None].astype(np.int32) - 127)
    values = values.reshape(*words.shape[:2], -1).swapaxes(1, 2)
    first = start - groups.start * _GROUP
    return values[:, first : first + stop - start]


def join_blocks(tensors: dict[str, Tensor]) -> dict[str, Any]:
  """Joins blocks with their scales; the others stay.

  Raises:
    CheckpointError: blocks or scales have another type or shape; it names them.
  """
  joined: dict[str, Any] = {}
  for name, tensor in tensors.items():
    base = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
    blocks, scales = (tensors.get(base + end) for end in (_BLOCKS, _SCALES))
    if blocks is None or scales is None:
      joined[name] = tensor
      continue
    good = len(blocks.shape) == 4 and blocks.shape[3] == _GROUP // 2
    good = good and scales.shape == blocks.shape[:3]
    if not good or {blocks.dtype, scales.dtype} != {'U8'}:
      raise CheckpointError(
        f'{base}{_BLOCKS} {blocks.dtype} {blocks.shape} and {base}{_SCALES} '
        f'{scales.dtype} {scales.shape} in {blocks.path} must be U8 of shapes '
        f'[X, out, in / 32, {_GROUP // 2}] and [X, out, in / 32]; replace the '
        'damaged checkpoint'
      )
    experts, outputs, groups, _ = blocks.shape
    shape = experts, groups * _GROUP, outputs
    joined[base] = Mxfp4(blocks, scales, blocks.path, base, shape)
  return joined
