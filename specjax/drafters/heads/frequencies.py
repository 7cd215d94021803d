"""How often tokens and pairs of tokens occur, and the tokens worth drafting.

What a draft's head costs grows with its tokens, and most of what is ever said
are few of them (Zhao et al., 2025, "FR-Spec", arXiv:2502.14856). The target
keeps all of them, so the output stays exact: a token that the draft leaves out
has q = 0, and comes from the target alone.
"""

import dataclasses
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from specjax.arguments import check_number
from specjax.types import Target

SUCCESSORS = 32


class Tables(NamedTuple):
  """Counts of tokens; M successors are kept (32, or 0 for unigrams)."""

  unigram: jax.Array  # [V] probabilities, all positive
  successor: jax.Array  # [V, M] token ids
  share: jax.Array  # [V, M] probability of each successor


def count(streams, vocab_size: int, successors: int = SUCCESSORS) -> Tables:
  """Counts tokens and pairs.

  Args:
    streams: arrays of token ids; no pair is counted across two of them.
    vocab_size: V.
    successors: kept for each token; 0 makes a unigram table.
  """
  single = np.ones(vocab_size)  # One more each: no token is impossible.
  codes = [np.zeros(0, np.int64)]
  for stream in streams:
    stream = np.asarray(stream, np.int64)
    single += np.bincount(stream, minlength=vocab_size)
    codes.append(stream[:-1] * vocab_size + stream[1:])
  top = np.zeros((vocab_size, successors), np.int32)
  share = np.zeros((vocab_size, successors))
  if successors:
    pairs, times = np.unique(np.concatenate(codes), return_counts=True)
    first, second = np.divmod(pairs, vocab_size)
    order = np.lexsort((second, -times, first))
    first, second, times = first[order], second[order], times[order]
    begin = np.searchsorted(first, np.arange(vocab_size))
    rank = np.arange(len(first)) - begin[first]
    kept = rank < successors
    at = first[kept], rank[kept]
    seen = np.bincount(first, times, vocab_size)
    top[at], share[at] = second[kept], times[kept] / seen[at[0]]
  return Tables(
    jnp.asarray(single / single.sum(), jnp.float32),
    jnp.asarray(top, jnp.int32),
    jnp.asarray(share, jnp.float32),
  )


def save(path: str | pathlib.Path, tables: Tables) -> None:
  """Writes `tables.safetensors` into a new directory."""
  folder = pathlib.Path(path)
  folder.mkdir(parents=True)
  arrays = {name: np.asarray(a) for name, a in tables._asdict().items()}
  arrays['successor'] = arrays['successor'].astype(np.uint32)
  safetensors.numpy.save_file(arrays, folder / 'tables.safetensors')


def read(path: str | pathlib.Path) -> Tables:
  """Reads what `save` wrote.

  Raises:
    ValueError: there is no such file.
  """
  file = pathlib.Path(path) / 'tables.safetensors'
  if not file.is_file():
    raise ValueError(f'{file} is missing: these are no tables of counts')
  arrays = safetensors.numpy.load_file(file)
  return Tables(
    jnp.asarray(arrays['unigram']),
    jnp.asarray(arrays['successor'], jnp.int32),
    jnp.asarray(arrays['share']),
  )


def read_for(target: Target, path: str | pathlib.Path) -> Tables:
  """Reads the tables of a target's tokens.

  Raises:
    ValueError: there are none, or of another vocabulary.
  """
  tables, vocab = read(path), target.model.config.vocab_size
  if len(tables.unigram) != vocab:
    raise ValueError(
      f'{path} counts {len(tables.unigram)} tokens, but the target has {vocab}'
    )
  return tables


@dataclasses.dataclass(frozen=True)
class Reduction:
  """Options of drafters whose head can be made smaller.

  Attributes:
    vocabulary: tokens that get a logit, the most frequent ones; 0: all.
    frequencies: directory of the tables that say how frequent they are, see
      `save`; empty: in the order of their ids, which is that of frequency in
      the text that byte pairs were merged on.
  """

  vocabulary: int = 0
  frequencies: str = ''

  def __post_init__(self):
    check_number('vocabulary', self.vocabulary, 0)
    if self.frequencies and not self.vocabulary:
      raise ValueError(
        f'vocabulary is 0, so frequencies ({self.frequencies!r}) have no use: '
        'give the number of tokens to keep, or leave frequencies out'
      )

  def choose(self, target: Target) -> np.ndarray | None:
    """Ids [n] of the tokens, ascending; None: all.

    Tokens that end a text are among them, however rare.

    Raises:
      ValueError: as `read_for`; or more tokens are asked for than there are, or
        fewer than end a text.
    """
    if not self.vocabulary:
      return None
    if self.frequencies:
      frequency = np.array(read_for(target, self.frequencies).unigram)
    else:
      frequency = -np.arange(target.model.config.vocab_size, dtype=np.float64)
    least = max(1, len(target.eos))
    if not least <= self.vocabulary <= len(frequency):
      raise ValueError(
        f'vocabulary must be from {least}, the tokens that end a text, to '
        f'{len(frequency)}, all of the target, got {self.vocabulary}'
      )
    frequency[list(target.eos)] = np.inf
    order = np.argsort(-frequency, kind='stable')
    return np.sort(order[: self.vocabulary])
