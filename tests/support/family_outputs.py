"""What transformers says about a tiny checkpoint of each family.

Made by `python -m tests.support.store_family_outputs`, which needs torch, and
stored, so that the comparison runs without it.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from tests.support import directories

FOLDER = pathlib.Path(__file__).parent / 'family_outputs'
_LOGITS, _TOKENS = 'expected.logits', 'expected.tokens'
NAMES = tuple(sorted(file.stem for file in FOLDER.glob('*.json')))
NEW = 20  # tokens that greedy decoding adds


class Reference(NamedTuple):
  """A checkpoint and what is expected of it."""

  config: dict[str, Any]  # the content of `config.json`
  tensors: dict[str, np.ndarray]  # of `model.safetensors`
  tokens: np.ndarray  # [2, T] two texts
  logits: np.ndarray  # [2, T, V] after each of their tokens
  prompts: list[list[int]]  # an encoder reads them where there is one
  texts: list[list[int]]  # the NEW tokens of greedy decoding after each
  sources: list[list[int]] | None = None  # what an encoder reads for `tokens`

  def write(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes the checkpoint as a directory."""
    return directories.write(folder, self.config, self.tensors)

  def store(self, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    expected = {_LOGITS: self.logits, _TOKENS: self.tokens}
    safetensors.numpy.save_file(
      self.tensors | expected, FOLDER / f'{name}.safetensors'
    )
    names = ('config', 'prompts', 'texts', 'sources')
    texts = {name: getattr(self, name) for name in names}
    if self.sources is None:
      del texts['sources']
    content = json.dumps(texts, sort_keys=True)
    (FOLDER / f'{name}.json').write_text(content + '\n')


def load(name: str) -> Reference:
  """Reads a stored reference."""
  tensors = safetensors.numpy.load_file(FOLDER / f'{name}.safetensors')
  logits, tokens = tensors.pop(_LOGITS), tensors.pop(_TOKENS)
  content = json.loads((FOLDER / f'{name}.json').read_text())
  return Reference(tensors=tensors, tokens=tokens, logits=logits, **content)
