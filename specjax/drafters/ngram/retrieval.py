"""A reference text on the device, and the places in it where a text goes on.

A suffix array (Manber and Myers, 1993): the places of the text, sorted by what
begins there. All places that begin with given tokens are then neighbours, and
two binary searches find the first and the last of them: about 2 log2(C) steps
for a text of C tokens, whatever its length.

  tokens  b a n a n a     order  5 3 1 0 4 2     begin with "a n": 3 1
"""

import functools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters.ngram.copies import Copies

SORTED = 32  # tokens that places are sorted by; equal ones in order


class Corpus(NamedTuple):
  """A text of C tokens and its suffix array."""

  tokens: jax.Array  # [C]
  order: jax.Array  # [C] places, sorted by the `SORTED` tokens from there on


def sort_places(tokens: np.ndarray) -> np.ndarray:
  """The suffix array [C] of a text, by its first `SORTED` tokens.

  Prefix doubling: ranks by 1, 2, 4, ... tokens, each from the one before. An
  end of the text comes before every token.
  """
  rank = np.asarray(tokens, np.int64) + 1
  width = 1
  while width < SORTED:
    later = np.zeros_like(rank)
    later[:-width] = rank[width:]
    pairs = rank * (rank.max() + 1) + later
    rank = np.unique(pairs, return_inverse=True)[1] + 1
    width *= 2
  return np.argsort(rank, kind='stable')


def build(tokens: np.ndarray) -> Corpus:
  """A corpus on the device; sorted here, which takes a second per million."""
  return Corpus(
    jnp.asarray(tokens, jnp.int32), jnp.asarray(sort_places(tokens), jnp.int32)
  )


def read(path: str, vocab_size: int) -> Corpus:
  """The corpus of a `.npy` file of token ids, one axis, of any integer type.

  A file is made of texts by the target's own tokenizer, as in

    np.save('corpus.npy', np.array(tokenizer.encode(text), np.int32))

  and must not hold what is drafted for: an answer that is looked up is no
  measurement.

  Raises:
    ValueError: it is missing or no such file, or has other tokens.
  """
  if not os.path.isfile(path):
    raise ValueError(
      f'corpus: {path} is no file; give a .npy file of token ids'
    )
  try:
    tokens = np.load(path, mmap_mode='r', allow_pickle=False)
    axes, dtype = tokens.ndim, tokens.dtype
  except (ValueError, EOFError, AttributeError) as error:
    raise ValueError(
      f'corpus: {path} is no .npy file of token ids ({error}); write one with '
      'numpy.save'
    ) from error
  if axes != 1 or dtype.kind not in 'iu':
    raise ValueError(
      f'corpus: {path} has {axes} axes of {dtype}; token ids are integers in '
      'one axis'
    )
  check(tokens, vocab_size, path)
  return _read(os.path.abspath(path), os.stat(path).st_mtime_ns)


@functools.lru_cache(maxsize=1)  # Sorted once for all draft lengths of a run.
def _read(path: str, changed: int) -> Corpus:
  del changed  # A file that was written anew is read anew.
  return build(np.load(path, allow_pickle=False))


def check(tokens: np.ndarray, vocab_size: int, name: str) -> None:
  """Refuses token ids that a target does not have.

  Raises:
    ValueError: names the corpus, the token and the remedy.
  """
  if not 2 <= len(tokens) < 2**31:
    raise ValueError(
      f'corpus: {name} has {len(tokens)} tokens; at least 2 are needed, and '
      'less than 2^31'
    )
  least, most = int(tokens.min()), int(tokens.max())
  if least < 0 or most >= vocab_size:
    raise ValueError(
      f'corpus: {name} has token {most if least >= 0 else least}, but the '
      f'target has {vocab_size}; write it with the tokenizer of the target'
    )


def _compare(corpus: Corpus, place, pattern, count):
  """-1, 0 or 1: whether the text at a place comes before a pattern [P].

  Only the first `count` tokens count; 0 where all of them agree.
  """
  size, step = corpus.tokens.shape[0], jnp.arange(pattern.shape[0])
  index = place + step
  here = corpus.tokens[jnp.minimum(index, size - 1)]
  here = jnp.where(index < size, here, -1)
  differs = (here != pattern) & (step < count)
  at = jnp.argmax(differs)
  return jnp.where(differs.any(), jnp.sign(here[at] - pattern[at]), 0)


def find(corpus: Corpus, pattern, count):
  """The part [begin, end) of `order` whose text begins with a pattern.

  Args:
    corpus: of C tokens.
    pattern: [P] tokens, at most `SORTED`.
    count: how many of them count.

  Returns:
    begin, end: equal where there is none.
  """
  size = corpus.tokens.shape[0]

  def bound(passed):
    """How many places come before the pattern, or begin with it."""

    def halve(_, ends):
      low, high = ends
      middle = low + (high - low) // 2
      place = corpus.order[jnp.minimum(middle, size - 1)]
      after = _compare(corpus, place, pattern, count) < passed
      going = low < high
      low = jnp.where(going & after, middle + 1, low)
      return low, jnp.where(going & ~after, middle, high)

    ends = jnp.int32(0), jnp.int32(size)
    return jax.lax.fori_loop(0, size.bit_length(), halve, ends)[0]

  begin, end = jax.vmap(bound)(jnp.arange(2))
  return begin, end


def look_up(
  corpus: Corpus, tokens, length, depth: int, longest: int, places: int
) -> Copies:
  """Copies what follows the last tokens of a text in a corpus; one sequence.

  The last m tokens are looked for with m = longest, ..., 1. Of many places
  these are as many as asked for, spread evenly over the sorted ones: what
  follows comes about as often among them as among all.

  Args:
    corpus: where to look.
    tokens: [S] the text.
    length: committed tokens.
    depth: K, tokens to copy.
    longest: at most `SORTED`.
    places: for each m.

  Returns:
    Copies of longest * places places, of the longest match first.
  """
  counts = np.arange(longest, 0, -1)
  index = length - counts[:, None] + np.arange(longest)
  patterns = tokens[jnp.clip(index, 0, tokens.shape[0] - 1)]
  begin, end = jax.vmap(functools.partial(find, corpus))(patterns, counts)
  matches = jnp.where(counts <= length, end - begin, 0)[:, None]
  i = np.arange(places)
  # About (i + 1/2) matches / places, without numbers beyond those of places.
  whole, part = matches // places, matches % places
  spread = i * whole + whole // 2 + (2 * i + 1) * part // (2 * places)
  nth = begin[:, None] + jnp.where(matches <= places, i, spread)
  size = corpus.tokens.shape[0]
  place = corpus.order[jnp.minimum(nth, size - 1)] + counts[:, None]
  exists = (i < matches).reshape(-1)
  index = place.reshape(-1, 1) + np.arange(depth)
  remaining = jnp.clip(size - place.reshape(-1), 0, depth)
  return Copies(
    corpus.tokens[jnp.minimum(index, size - 1)],
    jnp.where(exists, remaining, 0).astype(jnp.int32),
    jnp.where(exists, np.repeat(counts, places), 0).astype(jnp.int32),
  )
