"""Formats of published heads, and how their parameters are read."""

import collections
import math
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import parameters
from specjax.checkpoints.families import values
from specjax.checkpoints.families.table import KEEP, LINEAR, Tensors
from specjax.checkpoints.files import (
  CONFIG,
  CheckpointError,
  Tensor,
  open_tensors,
  shorten,
)
from specjax.checkpoints.precision import STORED
from specjax.models import reduced_vocab_head
from specjax.models.config import TransformerConfig

# Tensors of which no kind of head makes a parameter.
UNUSED = (
  'rotary_emb.inv_freq',
  'verifier_norm.weight',
  'verifier_lm_head.weight',
  't2d',
)


def text(value: Any) -> str:
  """Decodes a string of config.json."""
  if not isinstance(value, str):
    raise ValueError('a string')
  return value


def mapping(value: Any) -> dict[str, Any]:
  """Decodes an object of config.json."""
  if not isinstance(value, dict):
    raise ValueError('an object')
  return value


class Made(NamedTuple):
  """A parameter that is calculated: make(*tensors) -> array of its own type."""

  make: Callable[..., np.ndarray]
  names: tuple[str, ...]


class Files(NamedTuple):
  """The content of a directory, without the numbers.

  attributes: of config.json.
  tensors: by name, without a prefix that all of them share.
  target: configuration of the model to draft for; None where it is not known.
  """

  directory: pathlib.Path
  attributes: dict[str, Any]
  tensors: Mapping[str, Tensor]
  target: TransformerConfig | None = None

  def take(
    self, name: str, decode: Callable[[Any], Any], default: Any, *inside: str
  ) -> Any:
    """A value of config.json.

    Args:
      name: of the value.
      decode: of `families.values`, for example.
      default: of files without it.
      *inside: names of the objects around it, the outermost first.

    Raises:
      CheckpointError: it has another type.
    """
    found = self.attributes
    try:
      for each in inside:
        found = values.take(dict(found), each, mapping, {})
      return values.take(dict(found), name, decode, default)
    except ValueError as error:
      raise CheckpointError(f'{self.directory}: {CONFIG}: {error}') from None

  @property
  def layer(self) -> dict[str, Any]:
    """The attributes of the head's layers in config.json, flat or apart."""
    return dict(
      self.take('transformer_layer_config', mapping, {}) or self.attributes
    )

  @property
  def verifier(self) -> str:
    """The target that speculators' form names; empty where it names none."""
    return self.take('name_or_path', text, '', 'speculators_config', 'verifier')

  def shape(self, name: str, axes: int) -> tuple[int, ...]:
    """That of a tensor which a head must have.

    Raises:
      CheckpointError: it is missing, or has other axes.
    """
    if name not in self.tensors:
      raise CheckpointError(f'{self.directory}: tensor {name} is missing')
    shape = self.tensors[name].shape
    if len(shape) != axes:
      raise CheckpointError(
        f'{self.directory}: tensor {name} has shape {shape} where {axes} axes '
        'are expected; it is damaged, or of another head'
      )
    return shape


class Found(NamedTuple):
  """A published head, of which no numbers have been read.

  format: its name, for people.
  kind: of head, as `heads.files` calls it; also the module that drafts.
  config: as one of our own has it in config.json, but with Python's values.
  sources: of each parameter, '/' between the keys.
  width: of the target's features.
  vocab_size: of the target.
  verifier: the target that config.json names; empty where it names none.
  positions: longest text of its training; None where nothing says so.
  unused: names of tensors that are of no parameter, and endings of such names.
  directory: where it lies.
  parameters: numbers in its tensors.
  dtype: that most of them have.
  """

  format: str
  kind: str
  config: dict[str, Any]
  sources: Mapping[str, Tensors | Made]
  width: int
  vocab_size: int
  verifier: str = ''
  positions: int | None = None
  unused: tuple[str, ...] = ()
  directory: pathlib.Path = pathlib.Path()
  parameters: int = 0
  dtype: str = 'float32'

  @property
  def names(self) -> set[str]:
    """The names of the tensors that its parameters are made of."""
    return {name for source in self.sources.values() for name in source.names}


class Format(NamedTuple):
  """A row of the table.

  name: for people.
  holds(names) -> bool: whether these are the tensors of such a head.
  describe(files, name) -> Found: raises a CheckpointError where the files are
    no head that can be read.
  """

  name: str
  holds: Callable[[frozenset[str]], bool]
  describe: Callable[[Files, str], Found]


def open_head(directory: pathlib.Path) -> dict[str, Tensor]:
  """The tensors of a head by name, without a prefix that all of them share."""
  return without_prefix(open_tensors(directory, of_head=True))


def without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """Tensors without the `model.` that some writers put before every name."""
  return {name.removeprefix('model.'): x for name, x in tensors.items()}


def measure(found: Found, tensors: Mapping[str, Tensor]) -> Found:
  """Adds the number of parameters, and the type they are stored in."""
  counts: collections.Counter[str] = collections.Counter()
  for name in found.names:
    counts[tensors[name].dtype] += math.prod(tensors[name].shape)
  ((most, _),) = counts.most_common(1)
  dtype = STORED.get(most, most)
  return found._replace(parameters=counts.total(), dtype=dtype)


def check_names(found: Found, tensors: Mapping[str, Tensor]) -> None:
  """Raises unless parameters and tensors belong together one by one.

  Raises:
    CheckpointError: names what is missing and what is left.
  """
  unset = [
    f'{key} ({name})'
    for key, source in found.sources.items()
    for name in source.names
    if name not in tensors
  ]
  rest = [
    name
    for name in tensors
    if name not in found.names and not name.endswith(found.unused or ('\n',))
  ]
  if unset or rest:
    raise CheckpointError(
      f'{found.directory}: its tensors are not those of {found.format}; unset '
      f'parameters: {shorten(unset)}; unused tensors: {shorten(rest)}'
    )


def calculate(
  found: Found, tensors: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
  """The parameters that are calculated, where their tensors are here.

  Raises:
    CheckpointError: their tensors are damaged.
  """
  params = {}
  for key, source in found.sources.items():
    whole = [tensors[name] for name in source.names]
    if not isinstance(source, Made) or any(x.file is None for x in whole):
      continue
    arrays = (x.read((slice(None),) * len(x.shape)) for x in whole)
    try:
      params[key] = source.make(*arrays)
    except ValueError as error:
      raise CheckpointError(f'{found.directory}: {error}') from None
  return params


def read(found: Found, shapes: Any, dtype: Any) -> Any:
  """The parameters of a head.

  Args:
    found: the head.
    shapes: of its parameters, nested as they are.
    dtype: of all but those that are calculated.

  Raises:
    CheckpointError: the files are damaged, or the shapes are others.
  """
  flat = flax.traverse_util.flatten_dict(shapes, sep='/')
  if odd := flat.keys() ^ found.sources.keys():
    raise CheckpointError(
      f'{found.directory}: no tensors are known for {shorten(sorted(odd))}'
    )
  plain = {
    key: source
    for key, source in found.sources.items()
    if not isinstance(source, Made)
  }
  tensors = open_head(found.directory)
  check_names(found, tensors)
  params = parameters.read_parameters(plain, flat, tensors, dtype)
  params |= {k: jnp.asarray(x) for k, x in calculate(found, tensors).items()}
  return flax.traverse_util.unflatten_dict(params, sep='/')


def options(files: Files, vocab: int) -> dict[str, Any]:
  """Which tokens a head has logits of, as options of its sizes."""
  tensors = files.tensors
  if 'lm_head.weight' not in tensors:
    return {'own_unembedding': False}
  count = files.shape('lm_head.weight', 2)[0]
  if count == vocab:
    return {'own_unembedding': True}
  if 'd2t' not in tensors:
    raise CheckpointError(
      f'{files.directory}: lm_head has {count} of {vocab} tokens, and d2t, '
      'which says of which, is missing'
    )
  for name, size in (('d2t', count), ('t2d', vocab)):
    if name in tensors and tensors[name].shape != (size,):
      raise CheckpointError(
        f'{files.directory}: {name} has shape {tensors[name].shape}, and '
        f'lm_head {count} of {vocab} tokens: they are of different heads'
      )
  return {'own_unembedding': True, 'draft_vocab': count}


def _places(d2t: np.ndarray, t2d: np.ndarray | None, vocab: int) -> np.ndarray:
  """Places of the target's tokens, from offsets of the head's."""
  ids = np.arange(len(d2t)) + d2t.astype(np.int64)
  where = reduced_vocab_head.places(ids, vocab)
  if t2d is not None and not np.array_equal(where < len(d2t), t2d.astype(bool)):
    raise ValueError(
      'd2t and t2d disagree: they name different tokens of the target, so that '
      'one of them is damaged or of another head'
    )
  return where


def sources(
  names: Collection[str], sizes: Any, vocab: int
) -> dict[str, Tensors | Made]:
  """The tensors of the parameters that a head's sizes say are its own.

  Args:
    names: of all tensors.
    sizes: of the head, of either kind.
    vocab: tokens of the target.
  """
  made: dict[str, Tensors | Made] = {}
  if sizes.own_embedding:
    made['embedding'] = Tensors(KEEP, ('embed_tokens.weight',))
  if sizes.own_unembedding:
    made['unembedding'] = Tensors(LINEAR, ('lm_head.weight',))
  if sizes.draft_vocab:
    made['places'] = Made(
      lambda d2t, t2d=None: _places(d2t, t2d, vocab),
      tuple(name for name in ('d2t', 't2d') if name in names),
    )
  return made
