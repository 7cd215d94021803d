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
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.types import KV, Cache

# Cache slots read by one turn of the attention loop: a cache that is longer
# is walked only as far as it is used.
BLOCK = 512
# Columns of a block of weights, and the rows up to which blocks pay.
_COLUMNS = 64
_FEW_ROWS = 8


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


def rotate(x, positions, theta):
  """Rotary positions (Su et al., arXiv:2104.09864), halves as in Llama.

  Args:
    x: [B, T, ..., D].
    positions: [B, T].
    theta: base of the frequencies.
  """
  half = x.shape[-1] // 2
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  frequency = theta ** (-jnp.arange(half, dtype=dtype) / half)
  angle = positions.astype(dtype)[..., None] * frequency
  angle = angle.reshape(*positions.shape, *(1,) * (x.ndim - 3), half)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  a, b = jnp.split(x.astype(dtype), 2, -1)
  turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
  return turned.astype(x.dtype)


class _Partial(NamedTuple):
  """Attention over some of the keys: enough to merge with the others."""

  top: jax.Array  # [B, G, M] largest score
  total: jax.Array  # [B, G, M] sum of exp(score - top)
  value: jax.Array  # [B, G, M, D] values weighted by exp(score - top)


def _attend_some(q, k, v, keep):
  """q [B, G, M, D] on k, v [B, G, N, D] where keep [B, 1, M or 1, N]."""
  dtype = jnp.promote_types(q.dtype, jnp.float32)
  score = jnp.einsum('bgmd,bgnd->bgmn', q, k, preferred_element_type=dtype)
  score = jnp.where(keep, score, jnp.finfo(dtype).min / 2)
  top = score.max(-1)
  weight = jnp.where(keep, jnp.exp(score - top[..., None]), 0)
  value = jnp.einsum(
    'bgmn,bgnd->bgmd', weight.astype(v.dtype), v, preferred_element_type=dtype
  )
  return _Partial(top, weight.sum(-1), value)


def _merge(a, b):
  top = jnp.maximum(a.top, b.top)
  scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
  return _Partial(
    top,
    a.total * scale_a + b.total * scale_b,
    a.value * scale_a[..., None] + b.value * scale_b[..., None],
  )


def attend(q, cache, length, flight, mask):
  """Attention of T queries over the cache and the in-flight block.

  Args:
    q: [B, T, G, H/G, D], already scaled.
    cache: KV of S slots, or None when everything is in flight.
    length: [B] slots in use; the others are never looked at.
    flight: KV of N rows.
    mask: [B, T, N], true where query t sees row n.

  Returns:
    [B, T, G, H/G, D].
  """
  b, t, g, r, d = q.shape
  q = q.transpose(0, 2, 3, 1, 4).reshape(b, g, r * t, d)
  keep = jnp.tile(mask[:, None], (1, 1, r, 1))
  part = _attend_some(q, flight.k, flight.v, keep)
  if cache is not None:
    part = _attend_cache(q, cache, length, part)
  # A row that sees nothing (padding) has total 0: it gets 0, not NaN.
  out = part.value / jnp.maximum(part.total, 1e-30)[..., None]
  out = out.astype(q.dtype).reshape(b, g, r, t, d)
  return out.transpose(0, 3, 1, 2, 4)


def _attend_cache(q, cache, length, part):
  slots = cache.k.shape[2]
  if slots <= BLOCK:
    keep = (jnp.arange(slots) < length[:, None])[:, None, None]
    return _merge(part, _attend_some(q, cache.k, cache.v, keep))
  if slots % BLOCK:
    raise ValueError(f'a cache of {slots} slots is no multiple of {BLOCK}')

  def body(i, part):
    cut = functools.partial(
      jax.lax.dynamic_slice_in_dim,
      start_index=i * BLOCK,
      slice_size=BLOCK,
      axis=2,
    )
    slot = i * BLOCK + jnp.arange(BLOCK)
    keep = (slot < length[:, None])[:, None, None]
    return _merge(part, _attend_some(q, cut(cache.k), cut(cache.v), keep))

  used = (length.max() + BLOCK - 1) // BLOCK
  return jax.lax.fori_loop(0, used, body, part)


def multiply(x, w):
  """x [..., in] times w, which is [in, out] or [out/64, in, 64] in blocks.

  A library's matrix product repacks the weights even for two rows, and costs
  a CPU twice a single row. One pass over a block that fits the innermost
  cache serves up to eight rows at the price of reading it once. Each row's
  sums run in the same order whatever the number of rows, so one token and
  five give the same bits.
  """
  if w.ndim == 2:
    return x @ w
  rows = x.reshape(-1, w.shape[1])
  if len(rows) > _FEW_ROWS:
    y = rows @ w.transpose(1, 0, 2).reshape(w.shape[1], -1)
  elif len(rows) == 1:
    y = (rows[0][:, None] * w).sum(1)
  else:
    y = (rows[:, :, None] * w[:, None]).sum(2).swapaxes(0, 1)
  return y.reshape(*x.shape[:-1], -1)


def _declare_weight(module, name, config, inputs, outputs, axes, scale):
  """A weight [inputs, *outputs], as its product takes it.

  Where the configuration asks for blocks and they come out even it is
  [out/64, in, 64], otherwise [in, *outputs].
  """
  shape, total = (inputs, *outputs), math.prod(outputs)
  if config.blocked and total % _COLUMNS == 0:
    shape, axes = (total // _COLUMNS, inputs, _COLUMNS), (None, None, None)
  initializer = nn.initializers.normal(scale)
  w = module.param(name, nn.with_logical_partitioning(initializer, axes), shape)
  return w if len(axes) == 3 and axes[0] is None else w.reshape(inputs, -1)


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


class Linear(nn.Module):
  """x [..., inputs] -> [..., *outputs]."""

  config: TransformerConfig
  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...]  # logical names of (inputs, *outputs)
  bias: bool
  scale: float

  @nn.compact
  def __call__(self, x):
    w = _declare_weight(
      self, 'w', self.config, self.inputs, self.outputs, self.axes, self.scale
    )
    y = multiply(x, w).reshape(*x.shape[:-1], *self.outputs)
    if self.bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
      y += self.param('b', zeros, self.outputs)
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
        c,
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
        c,
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
        c,
        c.width,
        (ways, c.mlp_width),
        ('width', None, 'mlp'),
        c.mlp_bias,
        c.width**-0.5,
        name='up',
      )(y)
      y = c.activation(y[..., 0, :]) * (y[..., 1, :] if c.gated else 1)
      x += Linear(
        c,
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
      self.unembedding = _declare_weight(
        self,
        'unembedding',
        c,
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
