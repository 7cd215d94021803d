"""Counts the tokens of texts, and pairs of them."""

import pathlib
from typing import Any

import jax
import numpy as np

from specjax import checkpoints, corpus
from specjax.cli import fields, progress
from specjax.drafters.heads import frequencies
from specjax.errors import blame, need, writing
from specjax.prompts import files
from specjax.training.recipes import Counts


def read(x: Counts) -> list[str]:
  """The texts that are counted.

  Raises:
    UserError: the file cannot be read, or has no text in it.
  """
  if not x.texts:
    documents = [
      document.text
      for domain in corpus.DOMAINS
      for document in corpus.training_documents(domain)
    ]
    return documents[:: x.every]
  if files.kind_of(x.texts) == 'text':
    return [files.read_text(x.texts, 'texts')]
  records = files.read_records(x.texts, 'texts')
  values = jax.tree.leaves([record.fields for record in records])
  found = [text for text in values if isinstance(text, str)]
  need(any(found), f'texts: no record of {x.texts} has a text')
  return found


def main(x: Counts) -> dict[str, Any]:
  """Writes the tables; returns where they are, and what they count.

  Raises:
    UserError: a field is wrong, or the folder is taken.
  """
  fields.check_fields(x)
  path = pathlib.Path(x.folder)
  need(not path.exists(), f'folder: {path} exists; name another, or remove it')
  with blame('target: '):
    size = checkpoints.describe(x.target).model.config.vocab_size
    tokenizer = checkpoints.load_tokenizer(x.target)
  need(
    x.successors <= size,
    f'successors is {x.successors}, but the target has {size} tokens',
  )
  streams = [
    np.asarray(tokenizer.encode(text), np.int64)
    for text in progress.over('texts', read(x))
  ]
  tables = frequencies.count(streams, size, x.successors)
  with writing('folder', path):
    frequencies.save(path, tables)
  total = sum(len(stream) for stream in streams)
  share = np.sort(np.asarray(tables.unigram))[::-1].cumsum()
  for part in (0.5, 0.9, 0.99):
    print(f'{np.searchsorted(share, part) + 1} tokens are {part:.0%} of all')
  print(f'{total} tokens of {size} kinds are counted in {path}')
  return {'folder': str(path), 'tokens': total, 'kinds': size}
