"""Prompts: windows of held-out documents of the embedded corpus."""

import hashlib
import zlib

import numpy as np

from experiments import corpus


def choose(tokenizer, domain: str, count: int, length: int, seed: int):
  """Windows of `length` tokens that begin at a line of a held-out document.

  Args:
    tokenizer: of the target.
    domain: of the corpus.
    count: windows; documents are used again, elsewhere, once all were.
    length: tokens of each.
    seed: of documents and places.

  Returns:
    A list of `count` lists of token ids.

  Raises:
    ValueError: no document is long enough.
  """
  name = zlib.crc32(domain.encode())
  rng = np.random.default_rng((seed, name))
  documents = corpus.evaluation_documents(domain)
  order = rng.permutation(len(documents))
  prompts: list[list[int]] = []
  for turn in range(100 * count):
    text = documents[order[turn % len(order)]].text
    lines = np.flatnonzero(np.array(list('\n' + text)) == '\n')
    start = int(rng.choice(lines[: max(1, len(lines) * 3 // 4)]))
    part = text[start : start + 40 * length]
    ids = tokenizer.encode(part, truncation=True, max_length=length)
    if len(ids) == length:
      prompts.append(ids)
    if len(prompts) == count:
      return prompts
  raise ValueError(
    f'prompts.length {length} is longer than the held-out documents of '
    f'{domain}: choose less'
  )


def digest(prompts) -> str:
  """A short hash of token ids: the same prompts have the same."""
  text = repr([list(map(int, p)) for p in prompts])
  return hashlib.sha256(text.encode()).hexdigest()[:12]
