"""One decoder-only transformer for every family, with explicit caches.

Prefill, drafting and verification are the same forward pass. The cache is
read only: new keys and values go to a small in-flight block, attention merges
cache and block by their softmax statistics, and whoever decides which tokens
stay writes their rows to the cache (`cache.commit`). So a rejected token
leaves no trace, and a token tree is nothing but a mask over the block.

Layers are unrolled: a scan over stacked weights copies a layer's slice at
every step on a CPU.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models.attention import attend, rotate
from specjax.models.linear import Linear, declare_weight, multiply
from specjax.types import KV, Cache


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes and options of a decoder; options are functions, not names.

  Attributes:
    activation: of the MLP, e.g. `nn.silu`.
    gated: whether the MLP multiplies by a gate (Llama) or not (GPT-2).
    layer_norm: LayerNorm (mean and bias) instead of RMSNorm.
    rope_theta: base of the rotary positions; None means learned positions.
    max_positions: longest sequence the model was made for.
    blocked: weights are stored in blocks of columns, see `block`.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  max_positions: int
  activation: Callable[[jax.Array], jax.Array] = nn.silu
  gated: bool = True
  layer_norm: bool = False
  norm_eps: float = 1e-5
  rope_theta: float | None = 10000.0
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  tied_embeddings: bool = False
  blocked: bool = False

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_heads ({self.num_heads}) must be a multiple of num_kv_heads '
        f'({self.num_kv_heads})'
      )

  @property
  def group(self) -> int:
    """Query heads that share one key-value head."""
    return self.num_heads // self.num_kv_heads


class Output(NamedTuple):
  """Result of a forward pass."""

  hidden: jax.Array  # [B, T, E] after the last norm: what the head reads
  taps: jax.Array  # [B, T, len(taps), E] outputs of the layers asked for
  flight: Cache  # keys and values of the block, [B, G, N, D] a layer


class Model(NamedTuple):
  """A transformer as a value: pure functions of explicit parameters."""

  config: TransformerConfig
  init: Callable[..., Any]  # (key) -> params
  forward: Callable[..., Output]
  head: Callable[..., jax.Array]  # (params, hidden [..., E]) -> [..., V]


class Norm(nn.Module):
  """RMSNorm, or LayerNorm with bias; statistics in at least float32."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    declare = nn.with_logical_partitioning
    scale = self.param(
      'scale', declare(nn.initializers.ones, ('width',)), (c.width,)
    )
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if c.layer_norm:
      y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + c.norm_eps)
    y = y.astype(x.dtype) * scale
    if c.layer_norm:
      y += self.param(
        'bias', declare(nn.initializers.zeros, ('width',)), (c.width,)
      )
    return y


class Layer(nn.Module):
  """Attention and MLP, each behind a norm, on a residual stream."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, positions, cache, length, mask, flight, at):
    c = self.config
    b, t = x.shape[:2]
    out_scale = (2 * c.num_layers * c.width) ** -0.5
    with jax.named_scope('attention'):
      qkv = Linear(
        c.blocked,
        c.width,
        (c.num_kv_heads, c.group + 2, c.head_dim),
        ('width', 'kv_heads', None, 'head'),
        c.qkv_bias,
        c.width**-0.5,
        name='qkv',
      )(Norm(c, name='norm1')(x))
      q, k, v = jnp.split(qkv, (c.group, c.group + 1), -2)
      if c.rope_theta is not None:
        q = rotate(q, positions, c.rope_theta)
        k = rotate(k, positions, c.rope_theta)
      new = KV(k[..., 0, :].swapaxes(1, 2), v[..., 0, :].swapaxes(1, 2))
      if flight is not None:
        new = jax.tree.map(
          lambda f, n: jax.lax.dynamic_update_slice_in_dim(
            f, n.astype(f.dtype), at, axis=2
          ),
          flight,
          new,
        )
      y = attend(q * c.head_dim**-0.5, cache, length, new, mask)
      x += Linear(
        c.blocked,
        c.num_heads * c.head_dim,
        (c.width,),
        ('heads', 'width'),
        c.out_bias,
        out_scale,
        name='out',
      )(y.reshape(b, t, -1))
    with jax.named_scope('mlp'):
      y = Norm(c, name='norm2')(x)
      ways = 2 if c.gated else 1
      y = Linear(
        c.blocked,
        c.width,
        (ways, c.mlp_width),
        ('width', None, 'mlp'),
        c.mlp_bias,
        c.width**-0.5,
        name='up',
      )(y)
      y = c.activation(y[..., 0, :]) * (y[..., 1, :] if c.gated else 1)
      x += Linear(
        c.blocked,
        c.mlp_width,
        (c.width,),
        ('mlp', 'width'),
        c.mlp_bias,
        out_scale,
        name='down',
      )(y)
    return x, new


class Transformer(nn.Module):
  """The decoder. Use it through `build`."""

  config: TransformerConfig

  def setup(self):
    c = self.config
    declare = nn.with_logical_partitioning
    self.embedding = self.param(
      'embedding',
      declare(nn.initializers.normal(c.width**-0.5), ('vocab', 'width')),
      (c.vocab_size, c.width),
    )
    if c.rope_theta is None:
      self.position = self.param(
        'position',
        declare(nn.initializers.normal(0.02), (None, 'width')),
        (c.max_positions, c.width),
      )
    self.layers = [Layer(c, name=f'layer{i}') for i in range(c.num_layers)]
    self.norm = Norm(c, name='norm')
    if not c.tied_embeddings:
      self.unembedding = declare_weight(
        self,
        'unembedding',
        c.blocked,
        c.width,
        (c.vocab_size,),
        ('width', 'vocab'),
        c.width**-0.5,
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
      mask: [B, T, N] which rows of the block each token sees.
      flight: the block so far, or None when these tokens are all of it.
      at: row of the block where these tokens go.
      taps: layers whose outputs to return.
    """
    x = self.embedding[tokens]
    if self.config.rope_theta is None:
      x += self.position[positions]
    new, tapped = [], []
    for i, layer in enumerate(self.layers):
      x, kv = layer(
        x,
        positions,
        None if cache is None else cache[i],
        length,
        mask,
        None if flight is None else flight[i],
        at,
      )
      new.append(kv)
      if i in taps:
        tapped.append(x)
    shape = (*x.shape[:2], 0, x.shape[2])
    tapped = jnp.stack(tapped, 2) if tapped else jnp.zeros(shape, x.dtype)
    return Output(self.norm(x), tapped, tuple(new))

  def head(self, hidden):
    if self.config.tied_embeddings:
      return hidden @ self.embedding.T
    return multiply(hidden, self.unembedding)


@functools.cache
def build(config: TransformerConfig) -> Model:
  """Returns the model of a configuration; the same object every time."""
  module = Transformer(config)

  def boxed(key):
    token = jnp.zeros((1, 1), jnp.int32)
    mask = jnp.ones((1, 1, 1), bool)

    def touch(m, t):
      return m.head(m(t, t, None, None, mask).hidden)

    return module.init(key, token, method=touch)['params']

  def init(key):
    return nn.meta.unbox(boxed(key))

  def forward(params, *args, **kwargs):
    return module.apply({'params': params}, *args, **kwargs)

  def head(params, hidden):
    return module.apply({'params': params}, hidden, method=Transformer.head)

  return Model(config, init, forward, head)


def causal(batch: int, length: int):
  """Mask [B, T, T] of a plain sequence and its positions [B, T]."""
  mask = jnp.tril(jnp.ones((length, length), bool))
  positions = jnp.arange(length)
  return (
    jnp.broadcast_to(mask, (batch, length, length)),
    jnp.broadcast_to(positions, (batch, length)),
  )


def score(model: Model, params, tokens):
  """Logits [B, T, V] of whole sequences, without any cache."""
  mask, positions = causal(*tokens.shape)
  out = model.forward(params, tokens, positions, None, None, mask)
  return model.head(params, out.hidden)


def block(model: Model, params) -> tuple[Model, Any]:
  """The same model with its weights in blocks of columns, for decoding.

  For a CPU and few rows at once (batch times tokens of a step up to eight),
  where it makes scoring five tokens cost little more than one. A block is
  [in, 64]; weights whose columns do not come out even stay as they are.
  """
  blocked = build(dataclasses.replace(model.config, blocked=True))
  shapes = jax.eval_shape(blocked.init, jax.random.key(0))

  def arrange(weight, goal):
    if weight.shape == goal.shape:
      return weight
    count, inputs, columns = goal.shape
    return weight.reshape(inputs, count, columns).transpose(1, 0, 2)

  return blocked, jax.tree.map(arrange, params, shapes)
