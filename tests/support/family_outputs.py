"""What transformers says about a tiny checkpoint of each family.

Made by `python -m tests.support.store_family_outputs`, which needs torch, and
stored, so that the comparison runs without it.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

FOLDER = pathlib.Path(__file__).parent / 'family_outputs'
_LOGITS, _TOKENS = 'expected.logits', 'expected.tokens'
NAMES = tuple(sorted(file.stem for file in FOLDER.glob('*.json')))
NEW = 20  # tokens that greedy decoding adds


class Reference(NamedTuple):
  """A checkpoint and what is expected of it.

  config: the content of `config.json`.
  tensors: of `model.safetensors`.
  tokens: [2, T] two texts.
  logits: [2, T, V] after each of their tokens.
  prompts: of many lengths; an encoder reads them where there is one.
  texts: the NEW tokens that greedy decoding puts after each.
  sources: what an encoder reads for `tokens`.
  """

  config: dict[str, Any]
  tensors: dict[str, np.ndarray]
  tokens: np.ndarray
  logits: np.ndarray
  prompts: list[list[int]]
  texts: list[list[int]]
  sources: list[list[int]] | None = None

  def write(self, folder: pathlib.Path) -> pathlib.Path:
    """Writes the checkpoint as a directory."""
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(self.config))
    safetensors.numpy.save_file(self.tensors, folder / 'model.safetensors')
    return folder

  def store(self, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    expected = {_LOGITS: self.logits, _TOKENS: self.tokens}
    safetensors.numpy.save_file(
      self.tensors | expected, FOLDER / f'{name}.safetensors'
    )
    texts = {
      'config': self.config,
      'prompts': self.prompts,
      'texts': self.texts,
    }
    if self.sources is not None:
      texts['sources'] = self.sources
    content = json.dumps(texts, sort_keys=True)
    (FOLDER / f'{name}.json').write_text(content + '\n')


def load(name: str) -> Reference:
  """Reads a stored reference."""
  tensors = safetensors.numpy.load_file(FOLDER / f'{name}.safetensors')
  logits, tokens = tensors.pop(_LOGITS), tensors.pop(_TOKENS)
  content = json.loads((FOLDER / f'{name}.json').read_text())
  return Reference(tensors=tensors, tokens=tokens, logits=logits, **content)
