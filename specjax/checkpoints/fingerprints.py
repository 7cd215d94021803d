"""What tells one checkpoint from another, without reading all of it."""

import contextlib
import hashlib
import os

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints.files import open_tensors
from specjax.checkpoints.hub import locate

_VALUES = 64  # of each tensor


def fingerprint(path: str | os.PathLike) -> str:
  """A hash of the names, shapes and some values of a checkpoint's tensors.

  Values are rounded to bfloat16, so it is the same however the tensors are
  split over files, and for the same weights stored in 16 or 32 bits. Storing
  float32 weights as float16 rounds them, and may change it; as bfloat16 does
  not.

  Args:
    path: as for `checkpoints.load`.

  Raises:
    CheckpointError: it cannot be read.
  """
  digest = hashlib.sha256()
  with contextlib.ExitStack() as stack:
    tensors = open_tensors(locate(path, weights=True), stack)
    for name in sorted(tensors):
      tensor = tensors[name]
      size = int(np.prod(tensor.shape, dtype=np.int64))
      spread = np.linspace(0, size - 1, min(size, _VALUES)).astype(np.int64)
      places = np.unravel_index(spread, tensor.shape)
      values = [
        # One element, since a part is all that is read of the file.
        np.asarray(tensor.read(tuple(slice(i, i + 1) for i in place)))
        for place in zip(*places, strict=True)
      ]
      digest.update(f'{name} {tuple(tensor.shape)}\n'.encode())
      rounded = np.asarray(values, np.float32).astype(jnp.bfloat16)
      digest.update(rounded.ravel().view(np.uint16).tobytes())
  return digest.hexdigest()
