"""An independent small language model.

Speculative decoding as Leviathan et al. (arXiv:2211.17192) and Chen et al.
(arXiv:2302.01318) describe it: the draft prefills the prompt into a cache of
its own. One with another tokenizer reads and drafts through tables of the
tokens that both have, see `specjax.checkpoints.vocabularies`.
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np

from specjax import checkpoints
from specjax.arguments import check_path
from specjax.checkpoints import (
  parameters,
  precision,
  quantization,
  vocabularies,
)
from specjax.checkpoints.families import conversion
from specjax.checkpoints.files import CONFIG, read_json
from specjax.checkpoints.vocabularies import reading
from specjax.drafters import pard
from specjax.drafters.heads import files, masked
from specjax.drafters.heads.frequencies import Reduction
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.shapes import chain, shape, static_tree
from specjax.drafters.shapes.language_model import walk as walk
from specjax.drafters.shapes.policies import Policy
from specjax.models import own, transformer, variants
from specjax.models.config import TransformerConfig, narrowed_to
from specjax.models.transformer import Model
from specjax.types import Drafter, LoadedDrafter, Target


def make(model: Model, depth: int, policy: Policy | None = None) -> Drafter:
  """A chain of a model; see `shapes.chain`."""
  return chain.make(walk(model), depth, policy)


def make_tree(
  model: Model,
  parents: tuple[int, ...],
  replacement: bool = False,
  hub: bool = False,
) -> Drafter:
  """A static tree of a model; see `shapes.static_tree`."""
  return static_tree.make(walk(model), parents, replacement, hub)


def check_encoder(target: Model, draft: Model, name: str) -> None:
  """Raises where the encoder of a draft has no source.

  A draft without one fits any target: it reads the new text alone.

  Raises:
    ValueError: there is none; names the draft.
  """
  if draft.encode is not None and target.encode is None:
    raise ValueError(
      f'{name} is an encoder-decoder, and the target has no encoder: there is '
      'no source for it to read; use a draft without an encoder, or an '
      'encoder-decoder target'
    )


def compare(target: Target, path: str) -> vocabularies.Other | None:
  """The vocabulary of a draft; None where its ids are the target's.

  Or where there is no tokenizer to tell: then the ids must mean the same, which
  is for the caller to see to.

  Raises:
    ValueError: as `vocabularies.compare`.
  """
  if target.tokenizer is None or not checkpoints.has_tokenizer(path):
    return None
  return vocabularies.compare(
    target.tokenizer,
    checkpoints.load_tokenizer(path, target.tokenizer),
    target.model.config.vocab_size,
    checkpoints.describe(path).model.config.vocab_size,
    target.eos,
    checkpoints.eos_ids(path),
  )


def mask_token(path: str, other: vocabularies.Other | None) -> int | None:
  """The token of a draft's masks, see `pard`; None where it has none.

  Args:
    path: a Hugging Face directory, or the name of a model on the Hub.
    other: its vocabulary, where it is another one: see `compare`.

  Raises:
    ValueError: it has masks and another vocabulary.
  """
  mask = pard.mask_token(checkpoints.locate(path))
  if mask is not None and other is not None:
    raise ValueError(
      "a draft with masks (pard_token) needs the target's tokenizer: choose "
      'one of the family of the target'
    )
  return mask


def _longest(
  target: Target, path: str, other: vocabularies.Other | None
) -> int | None:
  """Tokens of the draft's that a run of the target has at most."""
  if other is None or target.max_length is None:
    return target.max_length
  sizes = reading.sizes_of(other.tables)
  positions = checkpoints.describe(path).model.config.max_positions
  longest = sizes.longest_text(target.max_length)
  return max(min(longest, positions), target.max_length)


def read(
  target: Target,
  path: str,
  quantized: bool = False,
  dtype: str = '',
  other: vocabularies.Other | None = None,
  kept: np.ndarray | None = None,
  window: int = 0,
  sinks: int = 0,
  form: parameters.WeightForm | None = None,
) -> tuple[Model, Any]:
  """The draft model of a directory, laid out and run as the target is.

  On the target's mesh, where it has one, as its placement has it for drafts.

  Heads may differ in size where the rest of the larger is unused.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, or the name of a model on the Hub.
    quantized: see `checkpoints.load`.
    dtype: of its weights and cache; by default the target's.
    other: its vocabulary, where it is another one: see `compare`.
    kept: ids of the tokens that it may propose; None: all.
    window: see `variants.narrow`, also for `sinks`.
    sinks: see there.
    form: of its matrices; None: that of the target's.

  Raises:
    ValueError: it is a trained head, or has an encoder and the target none; or
      there is no such type or window; or it has a token of `kept` not.
  """
  if kept is not None and other is not None:
    raise ValueError(
      f'vocabulary: {path} has a tokenizer of its own, and proposes the tokens '
      'of both alone; leave it out'
    )
  host = target.model
  placement = host.placement and host.placement.for_draft
  path = str(checkpoints.locate(path))
  files.refuse(path)
  model, params = checkpoints.load(
    path,
    precision.check_dtype(dtype or target.dtype),
    _longest(target, path, other),
    placement,
    quantized,
    form or target.form or parameters.FLOATS,
  )
  check_encoder(host, model, path)
  if kept is not None:
    model, params = variants.keep_tokens(model, params, kept)
  model = variants.narrow(model, window, sinks)
  ours = isinstance(model.config, TransformerConfig)
  if ours and isinstance(host.config, TransformerConfig):
    model = variants.with_cache_attention(model, host.config.attention)
    if host.config.native and not model.config.native:
      model, params = variants.to_native(model, params)
  if other is not None:
    return model, params
  return variants.resize_head(model, host.config.vocab_size), params


def describe(
  path: str, vocabulary: int = 0, quantized: bool = False, **options: Any
) -> checkpoints.Description:
  """The draft model of a directory without its weights; see `read`."""
  del options  # Any shape drafts with the whole model.
  whole = checkpoints.describe(path, quantized=quantized)
  if not 0 < vocabulary <= whole.model.config.vocab_size:
    return whole  # `Reduction` refuses other numbers.

  def keep(params):
    return variants.keep_tokens(whole.model, params, np.arange(vocabulary))[1]

  return whole._replace(
    model=variants.with_kept(whole.model, vocabulary),
    shapes=lambda dtype, form: jax.eval_shape(keep, whole.shapes(dtype, form)),
  )


def of(
  target: Target,
  model: Model,
  params: Any,
  other: vocabularies.Other | None = None,
  mask: int | None = None,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of a model at hand, of other code too; see `models.own`.

  Args:
    target: what is drafted for.
    model: that drafts.
    params: its weights.
    other: its vocabulary, where it is another one: see `compare`.
    mask: token of the masks with which it drafts in one pass, see `pard`.
    **options: of `shapes.shape.Shape`; chains without any.

  Raises:
    ValueError: it has another number of tokens than the target.
  """
  shape.check(target, options)
  if mask is not None:
    at_once = functools.partial(pard.make, model, mask, **options)
    return LoadedDrafter(target.model, at_once, params)
  if other is not None:
    walker = walk(model, reading.other(reading.sizes_of(other.tables)))
    spelled = reading.Spelled(params, other.tables)
    loaded = shape.load(target, walker, options, spelled)
    return dataclasses.replace(loaded, draft=(model, params))
  own.check_kinds(model, params)
  vocab, width = target.model.config.vocab_size, model.config.width
  hidden = jax.ShapeDtypeStruct((1, 1, width), transformer.dtype_of(params))
  entries = jax.eval_shape(model.head, params, hidden).shape[-1]
  if entries != vocab:
    raise ValueError(
      f'model has {entries} logits and the target {vocab}: a draft needs the '
      "target's vocabulary"
    )
  loaded = shape.load(target, walk(model), options, params)
  loaded = dataclasses.replace(loaded, draft=(model, params))
  if model.empty is None:
    return loaded

  def make(depth):  # Its cache is written by nodes that are rejected, too.
    made = loaded.make(depth)
    return made._replace(beyond=made.beyond + made.nodes - made.depth + 1)

  return dataclasses.replace(loaded, make=make)


def load(
  target: Target,
  path: str,
  dtype: str = '',
  vocabulary: int = 0,
  frequencies: str = '',
  window: int = 0,
  sinks: int = 0,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of a checkpoint, for a target; see `read`.

  One whose config.json names a `pard_token` drafts in one pass, see `pard`. One
  whose tokenizer is not the target's proposes the tokens of both; see
  `specjax.checkpoints.vocabularies`.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, or the name of a model on the Hub.
    dtype: of its weights and cache; by default the target's.
    vocabulary: tokens that get a logit, see `frequencies.Reduction`; 0: all.
    frequencies: how frequent they are, likewise.
    window: of its tokens, those that it sees of a text at most; 0: all. See
      `variants.narrow`.
    sinks: first tokens that it sees besides.
    **options: of `shapes.shape.Shape`; chains without any.

  Raises:
    ValueError: as `read` and `vocabularies.compare`.
  """
  shape.check(target, options)  # Before anything is read.
  check_path(path, 'a language model')
  narrowed_to(window, sinks, target.model.config.max_positions)
  kept = Reduction(vocabulary, frequencies).choose(target)
  other = compare(target, path)
  mask = mask_token(path, other)
  model, params = read(
    target,
    path,
    dtype=dtype,
    other=other,
    kept=kept,
    window=window,
    sinks=sinks,
  )
  return of(target, model, params, other, mask, **options)


TRAINING = 'training.json'  # beside a finished draft: what it cost


def trainable(
  target: Model,
  path: str = '',
  next_token: bool = False,
  mask_token: int | None = None,
  places: int | None = None,
  keep: float | None = None,
  **sizes: Any,
) -> Trainable:
  """A draft to train: one that is there already, or one of given sizes.

  With a `mask_token` it learns to draft in one pass, too, see `pard`.

  Args:
    target: the target model.
    path: of the checkpoint that training begins with, a Hugging Face directory
      or the name of a model on the Hub; empty: random weights.
    next_token: it learns the tokens that follow, whatever the target gives.
    mask_token: of its masks, one that no text has; by default that of the
      checkpoint, where it has one.
    places: that it learns of each draft, see `masked.Masks`.
    keep: share of the drafts of a place that have the next one, see there.
    **sizes: of a model with random weights, those of
      `models.transformer.TransformerConfig` but the vocabulary and, unless they
      are given, the positions, which are the target's.

  Raises:
    ValueError: both or neither are given, the draft has another vocabulary or
      an encoder, no family writes such sizes, or no draft has such masks.
  """
  if bool(path) == bool(sizes):
    raise ValueError(
      'options: give path, a draft to begin with, or the sizes of a new one: '
      'width, num_layers, num_heads, num_kv_heads, head_dim and mlp_width'
    )
  vocab = target.config.vocab_size
  if path:
    check_path(path, 'a language model')
    path = str(checkpoints.locate(path))
    files.refuse(path)
    if mask_token is None:
      mask_token = pard.mask_token(pathlib.Path(path))
    model = checkpoints.describe(path).model
    if model.encode is not None:
      raise ValueError(f'{path} is an encoder-decoder: give a decoder')
    if model.config.vocab_size != vocab:
      raise ValueError(
        f'{path} has {model.config.vocab_size} tokens and the target {vocab}: '
        "a draft learns the target's distribution over the target's tokens"
      )
  else:
    own: dict[str, Any] = {'max_positions': target.config.max_positions}
    model = transformer.build(
      transformer.TransformerConfig(vocab_size=vocab, **(own | sizes))
    )
    # Refused here, or the trained draft could not be saved.
    conversion.write_attributes(model.config, {})

  masks = masked.masks_of(mask_token, vocab, places, keep)

  def init(key, target_params):
    if path:
      return checkpoints.load(path, 'float32')[1]
    return model.init(key)

  def loss(params, seen, key):
    if next_token:
      seen = seen.following(vocab)
    if masks:
      return pard.loss(model, masks, params, seen, key)
    said = transformer.score(model, params.drafter, seen.tokens)
    return {'token': seen.judge(seen.logits, said, seen.weights)}

  def save(place, config, params, tokenizer):
    more: dict[str, Any] = {}
    if path:
      file = checkpoints.locate(path) / CONFIG
      more, _ = quantization.split(file.parent, read_json(file))
    more |= {pard.MASK: mask_token} if masks else {}
    checkpoints.save(place, model, params, tokenizer, attributes=more)
    known = {k: v for k, v in config.items() if k != 'training'}
    facts = {**config.get('training', {}), **known}
    (pathlib.Path(place) / TRAINING).write_text(
      json.dumps(facts, indent=1) + '\n'
    )

  def drafter(depth):
    if masks:
      return pard.make(model, masks.token, depth)
    return chain.make(walk(model), depth)

  config = {'kind': 'lm', 'from': path, 'next_token': next_token, **sizes}
  return Trainable(
    config | ({'mask_token': mask_token} if masks else {}),
    (),
    init,
    loss,
    drafter,
    save=save,
    read=lambda place: checkpoints.load(place)[1],
    model=model,
  )
