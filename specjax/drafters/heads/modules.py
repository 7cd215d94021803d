"""Heads that are a module with sizes: read from files, and read otherwise."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from specjax import checkpoints
from specjax.drafters.heads import files, overrides
from specjax.drafters.heads.files import Loaded
from specjax.models import linear, low_bits, reduced_vocab_head
from specjax.models.transformer import Model
from specjax.types import Target


class Read(NamedTuple):
  """A head that was read.

  loaded: its configuration, and its weights.
  stored: the head that its files name.
  head: the one that it is to be read as.
  """

  loaded: Loaded
  stored: Any
  head: Any


def read(
  kind: str,
  head: Callable[[Model, Any], Any],
  sizes: type,
  target: Target,
  path: str,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  dtype: str = '',
) -> Read:
  """A head for a target.

  Args:
    kind: of head that is wanted.
    head: (model of the target, sizes) -> the head, with shapes() of weights.
    sizes: class of its sizes, which have `taps`.
    target: what it is to draft for.
    path: directory of the head, or its name on the Hub.
    read_as: values of the sizes that are read otherwise.
    dtype: of its weights; by default the target's.

  Raises:
    ValueError: no such head, one for another target, or taps that the target
      has not.
  """
  overrides.check(read_as, sizes.__annotations__)
  config = target.model.config

  def make(values: Mapping[str, Any]) -> Any:
    made: Any = overrides.pick(sizes, values)
    files.check_taps(config.num_layers, made.taps)
    return head(target.model, made)

  def shapes(values: Mapping[str, Any]) -> Any:
    return make(values).shapes()

  loaded = files.load(path, kind, target, shapes, dtype, read_as)
  return Read(loaded, make(loaded.config), make(loaded.read_as))


def choose_bits(target: Target, bits: int | None) -> int:
  """Returns how many bits a weight of a head is rounded to; 0: it is a float.

  Args:
    target: what the head drafts for.
    bits: as they were asked for; None: eight, where the target is read with
      `weights` other than floats, or else 0.

  Raises:
    ValueError: weights of so many bits are not multiplied.
  """
  if bits is None:
    return 8 if target.form and target.form.weights != 'floats' else 0
  if type(bits) is not int or bits not in (0, *low_bits.BITS):
    raise ValueError(f'bits is {bits!r}: choose 8 or 4, or 0 for floats')
  return bits


def lay(params: Any, target: Target, bits: int = 0) -> Any:
  """Returns weights of a head in few bits, and in blocks if its target's are.

  Activations are rounded in its products if they are in those of the target.

  Args:
    params: weights, which are whole.
    target: what the head drafts for.
    bits: see `choose_bits`.
  """
  if bits:
    rounds = bool(target.form and target.form.rounds)
    params = linear.quantize(params, False, bits, rounds)
  return linear.to_native(params) if target.model.config.native else params


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
  params = read.loaded.params
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
    if config.tied_embeddings:
      whole = linear.head_of(of_target['embedding'])
    else:
      whole = of_target['unembedding']
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
  return read._replace(
    loaded=read.loaded._replace(params=params),
    head=dataclasses.replace(read.head, sizes=smaller),
  )
