"""Token streams of the embedded corpus, and batches drawn from them.

A batch depends on the seed and the step alone, so a resumed training sees
what an uninterrupted one sees.
"""

import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from specjax import corpus
from specjax.cli import progress
from specjax.corpus import packages
from specjax.corpus.names import is_test
from specjax.errors import UserError, writing

END = '<|endoftext|>'
TOKENS = 'tokens.npz'  # in a folder of data


def train_tokenizer(vocab_size: int, sample: int, seed: int):
  """Trains a byte-level BPE tokenizer on the embedded corpus.

  Args:
    vocab_size: tokens, the end-of-text token (id 0) included.
    sample: characters of each domain to learn from.
    seed: of the choice of documents.

  Returns:
    A `transformers.PreTrainedTokenizerFast`.
  """

  def texts() -> Iterator[str]:
    for domain in corpus.DOMAINS:
      documents = list(corpus.training_documents(domain))
      order = np.random.default_rng(seed).permutation(len(documents))
      left = sample
      for i in order:
        if left <= 0:
          break
        text = documents[i].text[:100_000]
        left -= len(text)
        yield text

  bpe = tokenizers.Tokenizer(models.BPE())
  bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = decoders.ByteLevel()
  bpe.train_from_iterator(
    texts(),
    trainers.BpeTrainer(
      vocab_size=vocab_size,
      special_tokens=[END],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    ),
  )
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=bpe, eos_token=END, bos_token=END
  )


def stream_of(document: corpus.Document) -> str:
  """The stream a document belongs to: its domain, with two exceptions.

  The library's tests are twice as long as the library, and the packages beside
  it five times: they are mixed in by weights of their own.
  """
  if document.name.startswith(packages.PREFIX):
    code = document.domain == 'code'
    return 'packages' if code else 'package_documentation'
  test = document.domain == 'code' and is_test(document.name)
  return 'tests' if test else document.domain


def write_arrays(field: str, path: pathlib.Path, arrays: Any) -> None:
  """Writes an array, or several by name, as a whole file or not at all."""
  part = path.with_name(f'part.{path.name}')
  with writing(field, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(arrays, dict):
      np.savez_compressed(part, **arrays)
    else:
      np.save(part, arrays)
    part.rename(path)


def read_arrays(field: str, path: pathlib.Path) -> Any:
  """Reads what `write_arrays` wrote.

  Raises:
    UserError: the file is damaged; names the field.
  """
  try:
    found = np.load(path)
    if isinstance(found, np.ndarray):
      return found
    with found:
      return dict(found)
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    raise UserError(
      f'{field}: {path} is damaged ({error}); remove it to have it made again'
    ) from error


def token_streams(
  tokenizer, folder: pathlib.Path, every: int = 1, with_packages: bool = False
) -> dict[str, np.ndarray]:
  """Tokens of the training documents by stream, kept in `folder`.

  Args:
    tokenizer: that reads them.
    folder: where they are kept; what is there is not made again.
    every: of the documents only each so many-th is used.
    with_packages: adds the streams of `corpus.packages`.
  """
  path = folder / TOKENS
  if not path.exists():
    if with_packages:
      print(*packages.describe_packages(), sep='\n')
    end = [tokenizer.eos_token_id]
    streams: dict[str, list[np.ndarray]] = {}
    for domain in corpus.DOMAINS:
      documents = list(corpus.training_documents(domain))
      if with_packages:
        documents.extend(packages.training_documents(domain))
      some = documents[::every]
      for document in progress.over(f'tokens of {domain}', some):
        ids = tokenizer.encode(document.text)
        streams.setdefault(stream_of(document), []).append(
          np.array(end + ids, np.uint32)
        )
    arrays = {k: np.concatenate(v) for k, v in streams.items()}
    write_arrays('data', path, arrays)
  return read_arrays('data', path)


def draw_batch(
  streams: dict[str, np.ndarray],
  weights: dict[str, float],
  shape: tuple[int, int],
  seed: int,
  step: int,
) -> np.ndarray:
  """Windows [B, T+1] at random places, streams mixed by their weights."""
  rng = np.random.default_rng((seed, step))
  rows, length = shape
  names = [name for name in weights if name in streams]
  share = np.array([weights[name] for name in names])
  chosen = rng.choice(len(names), rows, p=share / share.sum())
  windows = []
  for i in chosen:
    stream = streams[names[i]]
    start = rng.integers(max(1, len(stream) - length))
    windows.append(stream[start : start + length + 1])
  return np.stack(windows).astype(np.int32)


def held_out_windows(tokenizer, length: int, count: int, domain: str):
  """First windows of held-out documents, and the bytes that they decode to.

  Returns:
    tokens [n, length + 1] (each begins with end-of-text) and, for each, the
    number of UTF-8 bytes of the tokens after the first.
  """
  windows, sizes = [], []
  for document in corpus.evaluation_documents(domain):
    ids = tokenizer.encode(document.text)[:length]
    if len(ids) == length and len(windows) < count:
      windows.append([tokenizer.eos_token_id, *ids])
      sizes.append(len(tokenizer.decode(ids).encode()))
  return np.array(windows, np.int32), np.array(sizes)
