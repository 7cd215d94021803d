"""One decoder for every family, with explicit caches.

Prefill, drafting and verification are the same forward pass. The cache is
read only: new keys and values go to a small in-flight block, attention merges
cache and block by their softmax statistics, and whoever decides which tokens
stay writes their rows to the cache (`cache.commit`). So a rejected token
leaves no trace, and a token tree is nothing but a mask over the block.

Layers are unrolled: a scan over stacked weights copies a layer's slice at
every step on a CPU.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models import cache as caches
from specjax.models import reduced_vocab_head
from specjax.models.attention import (
  Bias,
  distance,
  look_up,
  soften,
)
from specjax.models.config import TransformerConfig
from specjax.models.encoder_decoder import Encoder, RelativeCurve
from specjax.models.layers import Layer, LayerInputs, Norm
from specjax.models.linear import (
  declare,
  embed,
  head_of,
  multiply,
  pad_rows,
)
from specjax.models.low_bits import is_low_bits
from specjax.models.sharding import Placement
from specjax.types import KV, Cache, Source


class Output(NamedTuple):
  """Result of a forward pass."""

  hidden: jax.Array  # [B, T, E] after the last norm: what the head reads
  taps: jax.Array  # [B, T, len(taps), E] outputs of the layers asked for
  flight: Cache  # keys and values of the block, N slots


class Model(NamedTuple):
  """A transformer as a value: pure functions of explicit parameters.

  Functions are compared by identity: make a model once, or its programs are
  compiled again.
  """

  config: TransformerConfig | Any  # of a model of other code `own.Sizes`
  init: Callable[..., Any]  # (key) -> params
  # As `Transformer.__call__`, params first; of `build` it takes `apart` as well
  forward: Callable[..., Output]
  head: Callable[..., jax.Array]  # (params, hidden [..., E]) -> [..., V]
  # (params, tokens [B, R], length [B]) -> one KV a layer, of the source
  encode: Callable[..., tuple[KV, ...]] | None = None
  placement: Placement | None = None  # on a mesh of devices, see `place`
  # (params, features [..., E] of the last layer) -> what the head reads
  norm: Callable[..., jax.Array] = lambda params, features: features
  # (params, batch, slots) -> the empty cache of a model that owns it
  empty: Callable[..., Cache] | None = None


_TracedOnce = nn.jit(Layer)


class Transformer(nn.Module):
  """The decoder. Use it through `build`.

  Attributes:
    config: its sizes.
    apart: trace every layer on its own, so that interceptors see the arrays of
      each. Otherwise layers that differ in weights alone are traced once.
  """

  config: TransformerConfig
  apart: bool = False

  def setup(self):
    c = self.config
    shape, axes = (c.vocab_size, c.width), ('vocab', 'width')
    self.embedding = declare(self, 'embedding', shape, axes, c.width**-0.5)
    if c.learned_positions:
      shape = c.max_positions + c.position_offset, c.width
      self.position = declare(self, 'position', shape, (None, 'width'), 0.02)
    kind = Layer if self.apart else _TracedOnce
    self.layers = [
      kind(c.at(i), c.like(i), name=f'layer{i}') for i in range(c.num_layers)
    ]
    if c.layer_inputs is not None:
      self.inputs = LayerInputs(c)
    self.norm = Norm(c, name='norm')
    if c.relative is not None:
      self.relative = RelativeCurve(c)
    if c.encoder is not None:
      self.encoder = Encoder(c)
    if not c.tied_embeddings:
      shape = c.width, c.kept or c.vocab_size
      self.unembedding = declare(self, 'unembedding', shape, ('width', 'vocab'))
    if c.head_bias:
      shape, zeros = (c.kept or c.vocab_size,), nn.initializers.zeros
      self.unembedding_bias = declare(
        self, 'unembedding_bias', shape, ('vocab',), zeros
      )
    if c.kept:
      self.places = reduced_vocab_head.declare_places(
        self, c.kept, c.vocab_size
      )

  def __call__(
    self,
    tokens,
    positions,
    cache,
    length,
    mask,
    flight=None,
    at=0,
    taps=(),
  ):
    """Feeds T tokens; see `Output`.

    Args:
      tokens: [B, T].
      positions: [B, T] position of each token in its sequence.
      cache: one KV a layer, or None to attend only within the block.
      length: [B] cache slots in use.
      mask: [B, T, N] which rows of the block are of each token's text. A token
        that is of none itself is padding; with the kernel of a CPU it takes
        less time, or none.
      flight: the block so far, or None when these tokens are all of it.
      at: row of the block where these tokens go.
      taps: layers whose outputs to return.
    """
    c = self.config
    x = embed(self.embedding, tokens)
    if c.embedding_scale is not None:
      x *= jnp.asarray(c.embedding_scale, x.dtype)
    if c.learned_positions:
      x += self.position[positions + c.position_offset]
    if c.skips_padding:
      x = jnp.where(mask.any(-1, keepdims=True), x, 0)
    bias = None
    if c.relative is not None:
      curve = self.relative()
      bias = Bias(curve, look_up(curve, distance(mask)))
    inputs = None if c.layer_inputs is None else self.inputs(tokens, x)
    count = x.shape[1]
    # More rows would have experts of their own, and change a state.
    if c.experts is None and c.recurrent is None:
      x = pad_rows(x, c.device.rows)
    if bias is not None:
      bias = bias._replace(block=caches.pad(bias.block, 2, x.shape[1]))
    if inputs is not None:
      inputs = caches.pad(inputs, 1, x.shape[1])
    new, tapped = [], []
    for i, layer in enumerate(self.layers):
      source = c.source(i)
      block = new if source < i else flight
      x, kv = layer(
        x,
        positions,
        None if cache is None else cache[source],
        length,
        mask,
        None if block is None else block[source],
        at,
        bias,
        inputs=None if inputs is None else inputs[:, :, i],
      )
      if source < i:  # No head, as in the cache of the layer.
        kv = jax.tree.map(lambda z: z[:, :0], kv)
      new.append(kv)
      if i in taps:
        tapped.append(x[:, :count])
    x = x[:, :count]
    shape = (*x.shape[:2], 0, x.shape[2])
    tapped = jnp.stack(tapped, 2) if tapped else jnp.zeros(shape, x.dtype)
    hidden = self.norm(x)
    if c.fills_padding:
      hidden = jnp.where(mask.any(-1, keepdims=True), hidden, 0)
    return Output(hidden, tapped, tuple(new))

  def encode(self, tokens, length):
    x = embed(self.embedding, tokens)
    if self.config.embedding_scale is not None:
      x *= jnp.asarray(self.config.embedding_scale, x.dtype)
    return self.encoder(x, length)

  def head(self, hidden):
    c = self.config
    if c.head_scale is not None:
      hidden = hidden * jnp.asarray(c.head_scale, hidden.dtype)
    tied = c.tied_embeddings
    w = head_of(self.embedding) if tied else self.unembedding
    logits = multiply(hidden, w, c.device.rows)
    if c.head_bias:
      logits += self.unembedding_bias
    if c.logit_cap is not None:
      logits = soften(logits, c.logit_cap)
    return reduced_vocab_head.spread(logits, self.places) if c.kept else logits


def _init_boxed(config: TransformerConfig, key, apart=False):
  """Fresh parameters, each in a box with its logical axes.

  Their numbers depend on whether layers are traced apart, their shapes do not.
  """
  token = jnp.zeros((1, 1), jnp.int32)
  mask = jnp.ones((1, 1, 1), bool)

  def touch(m, t):
    cache, length = None, jnp.zeros(1, jnp.int32)
    if config.encoder is not None:
      cache = caches.empty(config, 1, 1, jnp.float32)
      cache = caches.with_source(cache, m.encode(t, length + 1), length + 1)
    return m.head(m(t, t, cache, length, mask).hidden)

  module = Transformer(config, apart)
  return module.init(key, token, method=touch)['params']


@functools.cache
def shape_params(config: TransformerConfig):
  """Returns the shapes of a model's parameters, nested as these are."""
  boxed = functools.partial(_init_boxed, config)
  return nn.meta.unbox(jax.eval_shape(boxed, jax.random.key(0)))


@functools.cache
def build(config: TransformerConfig) -> Model:
  """Returns the model of a configuration; the same object every time."""
  module = Transformer(config)

  def init(key):
    return nn.meta.unbox(_init_boxed(config, key, apart=True))

  def forward(params, *args, apart=False, **kwargs):
    chosen = module.clone(apart=apart)
    return chosen.apply({'params': params}, *args, **kwargs)

  def call(method):
    return lambda params, *x: module.apply(
      {'params': params}, *x, method=method
    )

  reads = None if config.encoder is None else call(Transformer.encode)
  norm = call(lambda decoder, features: decoder.norm(features))
  return Model(config, init, forward, call(Transformer.head), reads, norm=norm)


def shardings(config: TransformerConfig, placement: Placement):
  """Returns the NamedSharding of each parameter, nested as parameters are."""
  boxed = jax.eval_shape(
    functools.partial(_init_boxed, config), jax.random.key(0)
  )
  # Query heads go with the keys they read. Split without these, the compiler
  # would split the cache for them, and gather it again at every step.
  counts = {config.at(i).num_kv_heads for i in range(config.num_layers)}
  whole = any(placement.keeps_whole('kv_heads', count) for count in counts)

  def place(box):
    axes = [None if whole and x == 'heads' else x for x in box.names]
    return placement.place(axes, box.value.shape)

  return jax.tree.map(
    place, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned)
  )


def causal(batch: int, length: int):
  """Mask [B, T, T] of a plain sequence and its positions [B, T]."""
  mask = jnp.tril(jnp.ones((length, length), bool))
  positions = jnp.arange(length)
  return (
    jnp.broadcast_to(mask, (batch, length, length)),
    jnp.broadcast_to(positions, (batch, length)),
  )


@functools.partial(jax.jit, static_argnums=0)
def choose_experts(model: Model, params, tokens) -> jax.Array:
  """Returns the experts that each token of whole sequences goes to.

  Args:
    model: with a mixture of experts, and no encoder.
    params: of the model.
    tokens: [B, T].

  Returns:
    Numbers of experts [L, B, T, chosen], of the layers with a mixture alone.
  """
  mask, positions = causal(*tokens.shape)
  config = model.config
  _, kept = Transformer(config).apply(
    {'params': params},
    *(tokens, positions, None, None, mask),
    mutable=['intermediates'],
  )
  layers = [i for i in range(config.num_layers) if config.is_sparse(i)]
  kept = kept['intermediates']
  return jnp.stack([kept[f'layer{i}']['experts']['chosen'][0] for i in layers])


def dtype_of(params) -> Any:
  """Returns the type that a model computes in: of weights not quantised."""
  return next(
    leaf.dtype
    for leaf in jax.tree.leaves(params, is_leaf=is_low_bits)
    if not is_low_bits(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
  )


def open_cache(
  model: Model, params, batch: int, slots: int, source: Source | None = None
) -> Cache:
  """Returns an empty cache; that of an encoder-decoder has read its source.

  Args:
    model: the model; one without an encoder leaves the source alone.
    params: its parameters.
    batch: rows.
    slots: of the text, see `cache.round_slots`.
    source: of each row.

  Raises:
    ValueError: an encoder-decoder without a source.
  """
  if model.empty is not None:
    return model.empty(params, batch, slots)
  cache = caches.empty(model.config, batch, slots, dtype_of(params))
  if model.placement is not None:
    cache = model.placement.constrain(cache)
  if model.encode is None:
    return cache
  if source is None:
    raise ValueError(
      'source is None, but the model is an encoder-decoder, which reads one: '
      'draft with it for an encoder-decoder target only, or use a model '
      'without an encoder'
    )
  with jax.named_scope('encode'):
    read = model.encode(params, *source)
  return caches.with_source(cache, read, source.length)


def score(
  model: Model, params, tokens, source: Source | None = None, only=None
):
  """Logits [B, T, V] of whole sequences, without what a cache remembers.

  Args:
    model: that reads them.
    params: of the model.
    tokens: [B, T].
    source: of an encoder-decoder.
    only: one place [], if logits [B, 1, V] after its token are all that is
      wanted.
  """
  mask, positions = causal(*tokens.shape)
  cache = used = None
  if model.encode is not None:
    cache = open_cache(model, params, len(tokens), 1, source)
    used = jnp.zeros(len(tokens), jnp.int32)
  hidden = model.forward(params, tokens, positions, cache, used, mask).hidden
  if only is not None:
    hidden = jax.lax.dynamic_slice_in_dim(hidden, only, 1, 1)
  return model.head(params, hidden)
