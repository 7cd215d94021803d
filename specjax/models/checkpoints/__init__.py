"""Checkpoints as Hugging Face directories, read and written without torch.

A directory holds `config.json`, `model.safetensors` (or shards and their
index) and the tokenizer's files. Tensors are read one by one, and every check
that needs no weights comes before the first of them is read.
"""

from specjax.models.checkpoints.files import CheckpointError, locate
from specjax.models.checkpoints.fingerprints import fingerprint
from specjax.models.checkpoints.reading import Description, describe, load
from specjax.models.checkpoints.texts import (
  eos_ids,
  has_tokenizer,
  load_tokenizer,
)
from specjax.models.checkpoints.writing import save

__all__ = [
  'CheckpointError',
  'Description',
  'describe',
  'eos_ids',
  'fingerprint',
  'has_tokenizer',
  'load',
  'load_tokenizer',
  'locate',
  'save',
]
