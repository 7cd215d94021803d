"""Checkpoints as Hugging Face directories, read and written without torch.

A directory holds `config.json`, `model.safetensors` (or shards and their
index) and the tokenizer's files. Tensors are read one by one, and every check
that needs no weights comes before the first of them is read.
"""

from specjax.checkpoints import precision as precision
from specjax.checkpoints.files import CheckpointError
from specjax.checkpoints.hub import (
  locate,
  prepare,
  resolve,
  revision_of,
  title_of,
)
from specjax.checkpoints.loading import (
  Description,
  describe,
  fingerprint,
  load,
)
from specjax.checkpoints.tokenizer import eos_ids, has_tokenizer, load_tokenizer
from specjax.checkpoints.writing import save

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
  'precision',
  'prepare',
  'resolve',
  'revision_of',
  'save',
  'title_of',
]
