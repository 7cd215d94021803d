"""Functions that change one thing of a model, and their parameters.

with_cache_attention  another attention over the cache    the same parameters
for_device            as a platform's compiler wants it   the same parameters
place                 on a mesh of devices                the same parameters
narrow                sees less of a text                 the same parameters
first_layers          fewer layers                        the same parameters
without               no attention or MLP in some layers  the same parameters
resize_head           logits of another vocabulary        the same parameters
keep_tokens           logits of some tokens               a smaller head
to_native             weights in blocks for the kernel    rearranged ones
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import (
  cache_attention,
  linear,
  reduced_vocab_head,
  transformer,
)
from specjax.models.attention import AtOnce, CacheAttention
from specjax.models.config import TransformerConfig, narrowed_to
from specjax.models.devices import DeviceForm
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.types import KV


def _changed(model: Model, keeps_head: bool = True, **changes: Any) -> Model:
  """The model with fields of its configuration changed, on the same mesh.

  A head that was resized for a draft stays so.
  """
  config = dataclasses.replace(_ours(model, *changes), **changes)
  made = transformer.build(config)
  if model.placement is not None:
    made = place(made, model.placement)
  return made._replace(head=model.head) if keeps_head else made


def _ours(model: Model, *names: str) -> TransformerConfig:
  """Returns the configuration of a model, of which some fields are changed.

  Raises:
    ValueError: it is a model of other code; names these fields.
  """
  if not isinstance(model.config, TransformerConfig):
    raise ValueError(
      f'{", ".join(names)}: a model of other code cannot be changed; choose a '
      'drafter that needs no layers of it, such as lm, ngram or suffix'
    )
  return model.config


def with_cache_attention(model: Model, attention: CacheAttention) -> Model:
  """Returns the model with another attention over the cache.

  Args:
    model: the model; its parameters stay as they are.
    attention: one of `models.cache_attention`.
  """
  return _with(model, attention=attention)


def _with(model: Model, **changes: Any) -> Model:
  config = dataclasses.replace(_ours(model, *changes), **changes)
  if config == model.config:
    return model
  # A head of its own stays, the usual one becomes the new model's.
  whole = model == _changed(model, keeps_head=False)
  return _changed(model, not whole, **changes)


def for_device(model: Model, form: DeviceForm) -> Model:
  """Returns the model as a platform of devices runs it best.

  Args:
    model: the model; its parameters stay as they are.
    form: of `devices.FORMS`, or one of your own.
  """
  return _with(model, attention=form.attention, device=form)


class OnEachDevice(AtOnce):
  """Attention by kernels of every device of a placement: XLA splits none."""


@functools.cache
def _on_each_device(placement: Placement) -> OnEachDevice:
  whole = cache_attention.split

  def attend(q, cache, view, flight, mask, bias, sink):
    def alone(q, sink, cache, length, flight, mask, first):
      seen = view._replace(length=length, first=first)
      return whole.attend(q, cache, seen, flight, mask, bias, sink)

    heads = 'batch', None, 'kv_heads', None, None
    where = placement.place(heads, q.shape).spec
    rest = KV(cache.k, cache.v), view.length, flight, mask, view.first
    specs = jax.tree.map(lambda x: x.spec, placement.of_rows(rest))
    heads = None if sink is None else placement.place(heads[2:4], sink.shape)
    run = jax.shard_map(
      alone,
      mesh=placement.mesh,
      in_specs=(where, heads and heads.spec, *specs),
      out_specs=where,
      check_vma=False,
    )
    return run(q, sink, *rest)

  return OnEachDevice(whole.fits, attend, whole.otherwise)


@functools.cache
def place(model: Model, placement: Placement) -> Model:
  """The model on a mesh; its parameters must lie as `shardings` says.

  Logits are whole on every device of a row: to draw from them there costs one
  exchange, where a split distribution would cost many.
  """
  attention = model.config.attention
  if attention is cache_attention.split or isinstance(attention, OnEachDevice):
    model = with_cache_attention(model, _on_each_device(placement))

  def forward(params, tokens, *args, **kwargs):
    out = model.forward(params, placement.constrain(tokens), *args, **kwargs)
    return placement.constrain(out)

  def head(params, hidden):
    # All rows of a product are gathered: a TPU is slow with a few of them.
    rows = linear.pad_rows(hidden, model.config.device.rows)
    logits = placement.gather_logits(model.head(params, rows))
    return logits[..., : hidden.shape[-2], :]

  return model._replace(forward=forward, head=head, placement=placement)


def narrow(model: Model, window: int, sinks: int = 0) -> Model:
  """Returns the model with a view of the end and the first tokens of a text.

  Args:
    model: the model; its parameters stay as they are.
    window: tokens that a query sees, itself included, see `config.Narrowed`;
      0: it sees all.
    sinks: first tokens of the text that it sees besides.

  Raises:
    ValueError: there is no such window, or sinks without one.
  """
  narrowed = narrowed_to(window, sinks, model.config.max_positions)
  if narrowed is None:
    return model
  if model.config.encoder is not None:
    raise ValueError(
      'window: an encoder-decoder has none, since what is long there is its '
      'source; leave it out'
    )
  return _changed(model, narrowed=narrowed)


@functools.cache
def first_layers(model: Model, layers: int) -> Model:
  """A model's first layers, its last norm and its head; same parameters."""
  windows = _ours(model, 'layers').windows[:layers]
  return _changed(model, num_layers=layers, windows=windows)


@functools.cache
def without(
  model: Model, attention: tuple[int, ...], mlp: tuple[int, ...]
) -> Model:
  """Returns the model without some sub-layers; same parameters and cache.

  What a layer without attention has in the cache is neither read nor written.

  Args:
    model: the model; its parameters stay as they are.
    attention: layers whose attention is left out, from 0.
    mlp: layers whose MLP is.

  Raises:
    ValueError: other layers read the keys and values of one of these.
  """
  config = _ours(model, 'attention')
  for i in range(config.num_layers):
    source = config.source(i)
    if source != i and source in attention and i not in attention:
      raise ValueError(
        f'attention: layer {i} attends to the keys and values of layer '
        f'{source}, which cannot be left out: leave out other layers'
      )
  fewer = (*attention, *config.without_attention), (*mlp, *config.without_mlp)
  attention, mlp = (tuple(sorted({*layers})) for layers in fewer)
  return _changed(model, without_attention=attention, without_mlp=mlp)


@functools.cache
def resize_head(model: Model, vocab: int) -> Model:
  """The model with logits of another vocabulary, to which ids mean the same.

  A smaller head is filled with minus infinity, so that q is 0 there; of a
  larger one the rest is left out. Ids beyond the embedding are read as its
  last, as JAX reads beyond an array's end.

  Args:
    model: the model; its parameters stay as they are.
    vocab: entries of the logits.
  """
  own = model.config.vocab_size
  if own == vocab:
    return model

  def head(params, hidden):
    logits = model.head(params, hidden)[..., :vocab]
    widths = [(0, 0)] * (logits.ndim - 1) + [(0, vocab - logits.shape[-1])]
    return jnp.pad(logits, widths, constant_values=-jnp.inf)

  return model._replace(head=head)


def with_kept(model: Model, count: int) -> Model:
  """Returns the model for parameters with logits of so many tokens."""
  return _changed(model, False, kept=count, tied_embeddings=False)


def keep_tokens(model: Model, params, kept: np.ndarray) -> tuple[Model, Any]:
  """Returns the model with logits of some tokens; q is 0 at the others.

  Its head is as much smaller (Zhao et al., 2025, arXiv:2502.14856).

  Args:
    model: the model, on a mesh or not.
    params: its parameters, floats, whole or in blocks.
    kept: [n] ids of these tokens, each once.

  Raises:
    ValueError: a token is beyond the vocabulary, or there twice.
  """
  vocab, whole = model.config.vocab_size, linear.output_layer(params)
  params = params | {
    'unembedding': linear.keep_outputs(whole, kept),
    'places': jnp.asarray(reduced_vocab_head.places(kept, vocab)),
  }
  if model.config.head_bias:
    params['unembedding_bias'] = params['unembedding_bias'][kept]
  made = with_kept(model, len(kept))
  if made.placement is not None:
    where = transformer.shardings(made.config, made.placement)
    params = jax.device_put(params, where)
  return made, params


def for_native(model: Model) -> Model:
  """Returns the model for weights in blocks, which the kernel multiplies.

  The kernel also attends, unless an attention over the cache was chosen.

  Args:
    model: the model, on a single device.
  """
  attention = model.config.attention
  if attention is cache_attention.blocked:
    attention = cache_attention.kernel
  return _changed(model, False, native=True, attention=attention)


def to_native(model: Model, params) -> tuple[Model, Any]:
  """Returns the model with its parameters in blocks; see `for_native`."""
  made = linear.to_native(params, model.config.tied_embeddings)
  return for_native(model), made
