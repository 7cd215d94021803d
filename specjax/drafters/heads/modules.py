"""Heads that draft for a target: read from files, and read otherwise."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from specjax import checkpoints
from specjax.arguments import check_path, check_target
from specjax.checkpoints import precision
from specjax.drafters.heads import files, formats, overrides, published
from specjax.drafters.heads.formats import Kind
from specjax.drafters.heads.frequencies import Reduction
from specjax.drafters.shapes import shape
from specjax.models import linear, low_bits, reduced_vocab_head, variants
from specjax.models.config import TransformerConfig
from specjax.types import Target


def layer_config(
  sizes: Any, target: TransformerConfig, **own: Any
) -> TransformerConfig:
  """The configuration of a head's layers.

  Args:
    sizes: of the head; those that a model has, too, are of its layers.
    target: of its target.
    **own: other fields.
  """
  known = {field.name for field in dataclasses.fields(TransformerConfig)}
  same = {name: x for name, x in vars(sizes).items() if name in known}
  given: dict[str, Any] = {'num_layers': sizes.layers, **same, **own}
  for name in ('vocab_size', 'max_positions', 'attention', 'device'):
    given[name] = getattr(target, name)
  if isinstance(target.attention, variants.OnEachDevice):
    given['attention'] = target.attention.otherwise  # Heads are split nowhere.
  return TransformerConfig(**given)


class Read(NamedTuple):
  """A head that was read.

  config: as its config.json has it, or would have, had it been trained here.
  params: its weights.
  pairing: how sure it is that the head is for the target: empty where its
    fingerprint says so, `published.UNVERIFIED` where it has none.
  stored: the head that its files name.
  head: the one that it is to be read as.
  """

  config: dict[str, Any]
  params: Any
  pairing: str
  stored: Any
  head: Any


def read(
  kind: Kind,
  target: Target,
  path: str,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  dtype: str = '',
) -> Read:
  """A head for a target: one that was trained here, or a published one.

  Args:
    kind: of head that is wanted.
    target: what it is to draft for.
    path: its directory, or the name of its model on the Hugging Face Hub.
    read_as: values that replace those of its configuration.
    dtype: of the weights; by default the target's.

  Raises:
    ValueError: there is none, or it is of another kind, for another target, or
      damaged, or cannot be read so. What is doubtful about a published one is
      warned of.
  """
  overrides.check(read_as, kind.fields)
  check_path(path, f'a trained {kind.name} head')
  place = checkpoints.resolve(path, of_head=True)
  dtype = precision.check_dtype(dtype or target.dtype)
  make = functools.partial(kind.make, target.model)
  found = published.find(place, target.model)
  if found is None:
    config, params = files.read(path, kind.name, target.fingerprint, dtype)
    params = files.fit(params, make(config).shapes(), path)
    return interpret(make, config, params, '', read_as)
  if found.kind != kind.name:
    raise ValueError(
      f'{path} holds no {kind.name} head, but {found.format}: load it with '
      f'specjax.drafters.{found.kind}.load'
    )
  for note in published.doubts(found, target):
    warnings.warn(note, published.PairingWarning, stacklevel=3)
  params = formats.read(found, dtype)
  return interpret(make, found.config, params, published.UNVERIFIED, read_as)


def interpret(
  make: Callable[[Mapping[str, Any]], Any],
  config: dict[str, Any],
  params: Any,
  pairing: str,
  read_as: Mapping[str, Any],
) -> Read:
  """Weights as the head that their files name, with other values.

  Args:
    make: (config) -> the head, see `Kind`.
    config: as the files have it.
    params: the weights.
    pairing: see `Read`.
    read_as: the other values, by name.

  Raises:
    ValueError: they need other weights.
  """
  head = make({**config, **read_as})
  if read_as:
    need, have = (
      {n: x.shape for n, x in traverse_util.flatten_dict(t, sep='.').items()}
      for t in (head.shapes(), params)
    )
    if lacking := [name for name in need if have.get(name) != need[name]]:
      raise ValueError(
        f'read_as: {dict(read_as)} needs other weights than the head has: '
        f'{", ".join(lacking)}'
      )
  return Read(config, params, pairing, make(config), head)


# (target, path, other values, type of weights) -> the head, as `read` does.
Reader = Callable[..., Read]


class Options(NamedTuple):
  """Options of the `load` of a head, beside those of `Reduction` and `Shape`.

  dtype: of its weights; by default the target's.
  bits: of a weight, 8 or 4, or 0 for floats; by default 8 where the target's
    weights are of few bits.
  read_as: values that replace those of its files, where these are wrong:
    `specjax probe` finds out.
  """

  dtype: str = ''
  bits: int | None = None
  read_as: Mapping[str, Any] = overrides.AS_STORED


def load_head(
  reader: Reader,
  target: Target,
  path: str,
  options: Mapping[str, Any],
  reduces: bool = True,
) -> tuple[Read, dict[str, Any]]:
  """A head that is ready to draft, and the options that are of its shape.

  Its weights are laid out as the target's are.

  Args:
    reader: see `Reader`.
    target: what is drafted for.
    path: directory of the head, or its name on the Hub.
    options: of `Options`, `Reduction` and `shapes.shape.Shape`.
    reduces: whether the head takes the options of `Reduction`.

  Raises:
    ValueError: an option is unknown or impossible, or as `reader` and
      `keep_tokens`.
  """
  own = overrides.pick(Options, options)
  reduction = overrides.pick(Reduction, options if reduces else {})
  taken = {*Options._fields, *(vars(reduction) if reduces else ())}
  rest = {name: x for name, x in options.items() if name not in taken}
  shape.check(target, rest)
  bits, form = own.bits, target.form
  if bits is None:
    bits = 8 if form and form.weights != 'floats' else 0
  if type(bits) is not int or bits not in (0, *low_bits.BITS):
    raise ValueError(f'bits is {bits!r}: choose 8 or 4, or 0 for floats')
  kept = reduction.choose(target)
  read = reader(target, path, own.read_as, own.dtype)
  read = keep_tokens(read, target, kept)
  params = read.params
  if bits:
    # Activations are rounded in its products if they are in the target's.
    params = linear.quantize(params, False, bits, bool(form and form.rounds))
  if target.model.config.native:
    params = linear.to_native(params)
  return read._replace(params=params), rest


def alternatives(
  reader: Reader,
  near: Callable[[Read, TransformerConfig], overrides.Readings],
  target: Target,
  path: str = '',
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  **options: Any,
) -> dict[str, dict[str, Any]]:
  """Other options for `load`, one mistake away, by what they change.

  Args:
    reader: see `Reader`.
    near: (head, configuration of the target) -> other readings of its weights.
    target: what is drafted for.
    path: directory of the head, or its name on the Hub.
    read_as: the reading that the others are near to.
    **options: others of `load`, which do not matter here.
  """
  del options
  check_target(target)
  found = near(reader(target, path, read_as), target.model.config)
  return overrides.options(found, read_as)


def keep_tokens(read: Read, target: Target, kept: np.ndarray | None) -> Read:
  """A head with logits of some tokens alone, by an output layer of its own.

  Args:
    read: the head, whose output layer may be the target's.
    target: what it drafts for.
    kept: [n] ids of these tokens; None: all.

  Raises:
    ValueError: it has fewer logits already, or the target's are no plain
      product with what the head makes.
  """
  if kept is None:
    return read
  sizes, config = read.head.sizes, target.model.config
  if sizes.draft_vocab:
    raise ValueError(
      f'vocabulary: the head has logits of {sizes.draft_vocab} tokens already; '
      'leave it out'
    )
  params = read.params
  if sizes.own_unembedding:
    whole = params['unembedding']
  elif config.logit_cap or config.head_scale or config.head_bias:
    raise ValueError(
      'vocabulary: the target caps, scales or shifts its logits, which a '
      'smaller output layer of the head would not; leave it out'
    )
  else:
    # Where weights are read later they are read here, too, for this layer.
    of_target = target.params
    if of_target is None:
      _, of_target = checkpoints.load(target.path, target.dtype)
    whole = linear.output_layer(of_target)
  smaller = dataclasses.replace(
    sizes, own_unembedding=True, draft_vocab=len(kept)
  )
  flat = traverse_util.flatten_dict(params) | {('unembedding',): whole}
  flat |= {  # That of a correction, too.
    path: linear.keep_outputs(x, kept)
    for path, x in flat.items()
    if path[-1] == 'unembedding'
  }
  params = traverse_util.unflatten_dict(flat) | {
    'places': jnp.asarray(reduced_vocab_head.places(kept, config.vocab_size))
  }
  head = dataclasses.replace(read.head, sizes=smaller)
  return read._replace(params=params, head=head)
