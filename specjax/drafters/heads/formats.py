"""Formats of published heads, and how their parameters are read."""

import collections
import math
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import flax.traverse_util
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import parameters
from specjax.checkpoints.families import conversion, llama, rope, values
from specjax.checkpoints.families.table import Row, Tensors
from specjax.checkpoints.files import (
  CONFIG,
  CheckpointError,
  Tensor,
  shorten,
)
from specjax.checkpoints.precision import STORED
from specjax.errors import blame
from specjax.models import reduced_vocab_head
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model

# Tensors of which no kind of head makes a parameter.
UNUSED = (
  'rotary_emb.inv_freq',
  'verifier_norm.weight',
  'verifier_lm_head.weight',
  't2d',
  'd2t',  # Of a head that has all tokens.
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


# The tensors of every parameter that a head may have, as of a `Family`.
Table = Mapping[str, Tensors | Made]


class Kind(NamedTuple):
  """A kind of head that has files of its own.

  name: the module of `drafters` that loads it.
  fields: names of its configuration that may be read otherwise.
  make(target, config) -> head: for a target, as a configuration says; it has
    `shapes()` of its weights. Raises a ValueError where there is no such head.
  """

  name: str
  fields: tuple[str, ...]
  make: Callable[[Model, Mapping[str, Any]], Any]


class Files(NamedTuple):
  """The content of a directory, without the numbers.

  attributes: of config.json.
  tensors: by name, without a prefix that all of them share.
  target: configuration of the model to draft for.
  """

  directory: pathlib.Path
  attributes: dict[str, Any]
  tensors: Mapping[str, Tensor]
  target: TransformerConfig

  def refuse(self, why: str) -> NoReturn:
    """Raises a CheckpointError that names the directory."""
    raise CheckpointError(f'{self.directory}: {why}')

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
    with blame(f'{self.directory}: {CONFIG}: ', CheckpointError):
      for each in inside:
        found = values.take(dict(found), each, mapping, {})
      return values.take(dict(found), name, decode, default)

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
      self.refuse(f'tensor {name} is missing')
    shape = self.tensors[name].shape
    if len(shape) != axes:
      self.refuse(
        f'tensor {name} has shape {shape} where {axes} axes are expected; it '
        'is damaged, or of another head'
      )
    return shape

  def read_layers(
    self,
    attributes: Mapping[str, Any],
    width: int,
    activations: Iterable[str],
    *rows: Row,
  ) -> dict[str, Any]:
    """Fields of `TransformerConfig` that config.json says of the layers.

    Args:
      attributes: of the layers.
      width: of their tensors.
      activations: names of those that there are; the field is one of these.
      *rows: rows of a family's table for the other fields; those of positions,
        activation and norms are added.

    Raises:
      CheckpointError: names the attribute.
    """
    told, rest = f'{self.directory}: {CONFIG}', dict(attributes)
    norm = values.attribute('rms_norm_eps', 'norm_eps', values.number, 1e-6)
    fields: dict[str, Any] = {}
    with blame(f'{told}: ', CheckpointError):
      for row in (*rows, rope.rope_row(), values.SILU, norm):
        fields |= row(rest, fields)
    if fields['width'] != width:
      raise CheckpointError(
        f'{told} has layers of width {fields["width"]}, and its tensors of '
        f'width {width}: copy the {CONFIG} that is theirs'
      )
    if fields['head_dim'] % 2:
      raise CheckpointError(
        f'{told} makes head_dim {fields["head_dim"]}, which must be even: copy '
        f'the {CONFIG} that is of the tensors'
      )
    for name in activations:
      if values.ACTIVATIONS[name] is fields['activation']:
        return fields | {'layers': fields['num_layers'], 'activation': name}
    raise CheckpointError(
      f'{told}: hidden_act must be one of {", ".join(activations)}'
    )

  def read_taps(
    self, name: str, ids: Sequence[int], first: int, count: float
  ) -> tuple[int, ...]:
    """Layers of the target that are read.

    Args:
      name: of the attribute that names them.
      ids: its value.
      first: the id that the output of the first layer has.
      count: of the layers that the tensor fc reads.

    Raises:
      CheckpointError: there are more or fewer, or the target has fewer.
    """
    told = f'{self.directory}: {CONFIG}: {name} {[*ids]}'
    if len(ids) != count:
      raise CheckpointError(
        f'{told} are {len(ids)} layers of the target, and fc reads {count:g}'
      )
    taps, layers = tuple(i - first for i in ids), self.target.num_layers
    if min(taps) < 0 or max(taps) >= layers:
      raise CheckpointError(
        f'{told} name layers that do not exist: the target has {layers}'
      )
    return taps


class Found(NamedTuple):
  """A published head, of which no numbers have been read.

  format: its name, for people.
  config: as one of our own has it in config.json, but with Python's values.
  table: where its parameters are.
  width: of the target's features.
  vocab_size: of the target.
  verifier: the target that config.json names; empty where it names none.
  positions: longest text of its training; None where nothing says so.
  unused: names of tensors that are of no parameter, and endings of such names.
  kind: the module of `drafters` that loads it.
  directory: where it lies.
  sources: of each parameter that it has, '/' between the keys; see `match`.
  shapes: of the parameters.
  tensors: of the directory, by name.
  """

  format: str
  config: dict[str, Any]
  table: Table
  width: int
  vocab_size: int
  verifier: str = ''
  positions: int | None = None
  unused: tuple[str, ...] = ()
  kind: str = ''
  directory: pathlib.Path = pathlib.Path()
  sources: Table = types.MappingProxyType({})
  shapes: Mapping[str, Any] = types.MappingProxyType({})
  tensors: Mapping[str, Tensor] = types.MappingProxyType({})

  @property
  def names(self) -> set[str]:
    """The names of the tensors that its parameters are made of."""
    return {name for source in self.sources.values() for name in source.names}

  @property
  def plain(self) -> dict[str, Tensors]:
    """The sources of the parameters that are not calculated."""
    return {k: x for k, x in self.sources.items() if isinstance(x, Tensors)}

  def measure(self) -> tuple[int, str]:
    """Returns how many numbers it has, and the type that most of them have."""
    counts: collections.Counter[str] = collections.Counter()
    for name in self.names:
      counts[self.tensors[name].dtype] += math.prod(self.tensors[name].shape)
    ((most, _),) = counts.most_common(1)
    return counts.total(), STORED.get(most, most)


class Format(NamedTuple):
  """A row of the table of formats.

  name: for people.
  kind: of head.
  holds(names) -> bool: whether these are the tensors of such a head.
  describe(files, name) -> Found: raises a CheckpointError where the files are
    no head that can be read.
  """

  name: str
  kind: Kind
  holds: Callable[[frozenset[str]], bool]
  describe: Callable[[Files, str], Found]


def match(found: Found, tensors: Mapping[str, Tensor], head: Any) -> Found:
  """Finds the tensors of the parameters of a head; few numbers are read.

  Args:
    found: the head, as its format describes it.
    tensors: of the directory, by name.
    head: what it is for its target.

  Raises:
    CheckpointError: parameters and tensors do not belong together one by one,
      tensors have other shapes or types, or those that are calculated with are
      damaged; names them.
  """
  shapes = flax.traverse_util.flatten_dict(head.shapes(), sep='/')
  try:
    sources = conversion.fill(found.table, shapes)
  except KeyError as error:
    raise CheckpointError(
      f'{found.directory}: its tensors are not those of {found.format}; unset '
      f'parameters: {error}'
    ) from None
  found = found._replace(sources=sources, shapes=shapes, tensors=tensors)
  used = found.names
  unset = [
    f'{key} ({name})'
    for key, source in sources.items()
    for name in source.names
    if name not in tensors
  ]
  rest = [
    name
    for name in tensors
    if name not in used and not name.endswith(found.unused)
  ]
  if unset or rest:
    raise CheckpointError(
      f'{found.directory}: its tensors are not those of {found.format}; unset '
      f'parameters: {shorten(unset)}; unused tensors: {shorten(rest)}'
    )
  parameters.check_tensors(found.plain, shapes, tensors)
  _calculate(found)
  return found


def _calculate(found: Found) -> dict[str, Any]:
  """The parameters that are calculated, where their tensors are here.

  Raises:
    CheckpointError: their tensors are damaged.
  """
  params = {}
  for key, source in found.sources.items():
    whole = [found.tensors[name] for name in source.names]
    if not isinstance(source, Made) or any(x.file is None for x in whole):
      continue
    arrays = (x.read((slice(None),) * len(x.shape)) for x in whole)
    with blame(f'{found.directory}: ', CheckpointError):
      params[key] = jnp.asarray(source.make(*arrays))
  return params


def read(found: Found, dtype: Any) -> Any:
  """The parameters of a head, those that are calculated of their own type."""
  params = parameters.read_parameters(
    found.plain, found.shapes, found.tensors, dtype
  )
  return flax.traverse_util.unflatten_dict(params | _calculate(found), sep='/')


def options(files: Files, vocab: int) -> dict[str, Any]:
  """Which tokens a head embeds and has logits of, as options of its sizes."""
  tensors = files.tensors
  made = {
    'own_embedding': 'embed_tokens.weight' in tensors,
    'own_unembedding': 'lm_head.weight' in tensors,
  }
  if not made['own_unembedding']:
    return made
  count = files.shape('lm_head.weight', 2)[0]
  if count == vocab:
    return made
  if 'd2t' not in tensors:
    files.refuse(
      f'lm_head has {count} of {vocab} tokens, and d2t, which says of which, '
      'is missing'
    )
  for name, size in (('d2t', count), ('t2d', vocab)):
    if name in tensors and tensors[name].shape != (size,):
      files.refuse(
        f'{name} has shape {tensors[name].shape}, and lm_head {count} of '
        f'{vocab} tokens: they are of different heads'
      )
  return made | {'draft_vocab': count}


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


def rename(table: Table, change: Callable[[str], str]) -> dict[str, Any]:
  """Returns a table with other names of tensors."""
  return {
    key: source._replace(names=tuple(map(change, source.names)))
    for key, source in table.items()
  }


_LLAMA = rename(llama.SOURCES, lambda name: name.removeprefix('model.'))


def table_of(names: Iterable[str], vocab: int) -> Table:
  """Where a head has what a Llama has, too, and the places of its tokens.

  Args:
    names: of all tensors.
    vocab: tokens of the target.
  """
  places = Made(
    lambda d2t, t2d=None: _places(d2t, t2d, vocab),
    tuple(name for name in ('d2t', 't2d') if name in names),
  )
  return _LLAMA | {'places': places}
