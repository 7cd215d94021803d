"""Features of a frozen target, kept on a disk for all that learn from them.

A drafter reads features of some layers, and learns from logits, which are the
product of the last features and the output layer. Both are the same for every
drafter that is trained on the same windows. A file holds one layer of one
window, in 16 bits, under a hash of its tokens: two bytes for each entry of a
feature, where the text has a few bytes a token.
"""

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints
from specjax.checkpoints.files import CONFIG, read_json
from specjax.errors import blame
from specjax.models import transformer
from specjax.models.transformer import Model
from specjax.training import data, folders
from specjax.training.recipes import Heads

KEPT = jnp.bfloat16
LAST = 'last'  # what the output layer reads


def forward(
  target: Model, weights: Any, tokens: jax.Array, taps: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
  """Returns features [B, T, len(taps), E] of texts, and what the head reads."""
  mask, positions = transformer.causal(*tokens.shape)
  out = target.forward(
    weights, tokens, positions, None, None, mask, taps=tuple(taps)
  )
  return out.taps, out.hidden


class Store:
  """A folder of features, which grows to a limit.

  Args:
    x: the recipe, which names the folder.
    target: the model.
    weights: its parameters.
    taps: layers that are wanted.

  Raises:
    UserError: the folder holds features of another target.
  """

  def __init__(
    self, x: Heads, target: Model, weights: Any, taps: Sequence[int]
  ):
    self.folder = pathlib.Path(x.features)
    self.weights, self.taps = weights, taps
    with blame('target: '):
      of = {
        'target': checkpoints.fingerprint(x.target),
        # What the weights do not say, such as the base of rotary positions.
        'config': read_json(checkpoints.locate(x.target) / CONFIG),
        'dtype': x.dtype,
      }
    others = f'{self.folder} holds those of another target or dtype'
    folders.hold('features', self.folder / 'features.json', of, others)
    used = sum(one.stat().st_size for one in self.folder.glob('*.npy'))
    self.left = x.features_gib * 2**30 - used

    def read(weights, tokens):
      hidden, last = forward(target, weights, tokens, taps)
      every = jnp.concatenate([hidden, last[:, :, None]], 2)
      return jnp.moveaxis(every, 2, 1).astype(KEPT)  # [B, layers, T, E]

    self._read = jax.jit(read)

  def files(self, row: np.ndarray) -> list[pathlib.Path]:
    """The files of a window, one for each layer."""
    name = hashlib.sha256(np.asarray(row, np.int32).tobytes()).hexdigest()[:32]
    return [self.folder / f'{name}-{one}.npy' for one in (*self.taps, LAST)]

  def of(self, tokens: np.ndarray) -> np.ndarray:
    """Features [B, T, len(taps) + 1, E] of windows [B, T], the last one behind.

    What is not in the folder is computed, and kept where there is room.
    """
    rows = [self.files(row) for row in tokens]
    if all(file.exists() for files in rows for file in files):
      kept = [[data.read_arrays('features', x) for x in row] for row in rows]
      made = np.stack(kept).view(KEPT)
    else:
      made = np.asarray(self._read(self.weights, tokens))
      for files, layers in zip(rows, made, strict=True):
        self._keep(files, layers)
    return np.moveaxis(made, 1, 2)

  def _keep(self, files: list[pathlib.Path], layers: np.ndarray) -> None:
    for file, layer in zip(files, layers, strict=True):
      if not file.exists() and layer.nbytes <= self.left:
        data.write_arrays('features', file, layer.view(np.uint16))
        self.left -= layer.nbytes

  def beside(
    self, batch: Callable[[int, Any], dict[str, Any]]
  ) -> Callable[[int, Any], dict[str, Any]]:
    """Returns batches with the features of their tokens."""

    def made(number, params):
      drawn = batch(number, params)
      return drawn | {'features': self.of(drawn['tokens'])}

    return made
