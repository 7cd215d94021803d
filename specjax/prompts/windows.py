"""Prompts that are windows of documents, from the beginning of a line."""

import re
import zlib
from collections.abc import Sequence

import numpy as np

from specjax import corpus
from specjax.errors import UserError

LENGTH = 96  # tokens of a window where the experiment names none


def generator(seed: int, name: str) -> np.random.Generator:
  """Random numbers for one domain, whichever others there are."""
  return np.random.default_rng((seed, zlib.crc32(name.encode())))


def cut(
  tokenizer,
  documents: Sequence[str],
  count: int,
  length: int,
  rng: np.random.Generator,
) -> list[list[int]]:
  """Windows of `length` tokens that begin at a line of a document.

  Args:
    tokenizer: of the target.
    documents: used again, elsewhere, once all were.
    count: windows.
    length: tokens of each.
    rng: draws documents and places.

  Returns:
    Lists of token ids; fewer than `count` where documents are too short.
  """
  order = rng.permutation(len(documents))
  lines: dict[int, np.ndarray] = {}  # where the lines of a document begin
  windows: list[list[int]] = []
  for turn in range(100 * count):
    which = order[turn % len(order)]
    text = documents[which]
    if which not in lines:
      ends = [match.end() for match in re.finditer('\n', text)]
      lines[which] = np.array([0, *ends])
    places = lines[which]
    start = int(rng.choice(places[: max(1, len(places) * 3 // 4)]))
    part = text[start : start + 40 * length]
    ids = tokenizer.encode(part, truncation=True, max_length=length)
    if len(ids) == length:
      windows.append(ids)
    if len(windows) == count:
      break
  return windows


def choose(tokenizer, domain: str, count: int, length: int, seed: int):
  """Windows of held-out documents of the embedded corpus.

  Args:
    tokenizer: of the target.
    domain: of the corpus.
    count: windows.
    length: tokens of each.
    seed: of documents and places.

  Returns:
    A list of `count` lists of token ids.

  Raises:
    UserError: no document is long enough.
  """
  documents = [d.text for d in corpus.evaluation_documents(domain)]
  rng = generator(seed, domain)
  windows = cut(tokenizer, documents, count, length, rng)
  if len(windows) < count:
    raise UserError(
      f'prompts.length {length} is longer than the held-out documents of '
      f'{domain}: choose less'
    )
  return windows
