"""One layer of the decoder: attention and MLP on a residual stream."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax import native
from specjax.models import cache as caches
from specjax.models import recurrent, rotary
from specjax.models.attention import attend
from specjax.models.config import TransformerConfig
from specjax.models.experts import Experts
from specjax.models.latent import LatentHeads
from specjax.models.linear import Linear, declare
from specjax.types import KV, KVState


class Norm(nn.Module):
  """RMSNorm, or LayerNorm with bias; statistics in at least float32."""

  config: TransformerConfig
  width: int | None = None  # of what is normed, by default the model's
  axis: str = 'head'  # logical, of another width than the model's
  scaled: bool = True

  @nn.compact
  def __call__(self, x):
    c = self.config
    shape = (self.width or c.width,)
    axis = (self.axis if self.width else 'width',)
    start = nn.initializers.zeros if c.norm_plus_one else nn.initializers.ones
    if self.scaled:
      scale = declare(self, 'scale', shape, axis, start)
    else:
      scale = start(None, shape, x.dtype)
    y = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # What is normed in 16 bits is rounded before it is scaled.
    early = c.norm_plus_one or x.dtype == y.dtype
    factor = scale.astype(y.dtype) if early else None
    if c.native and y.dtype == jnp.float32:
      more = float(c.norm_plus_one)
      y = native.norm(y, factor, c.norm_eps, more=more, centre=c.layer_norm)
    else:
      if c.layer_norm:
        y = y - y.mean(-1, keepdims=True)
      y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + c.norm_eps)
      if early:
        y *= 1 + factor if c.norm_plus_one else factor
    y = y.astype(x.dtype)
    if not early:
      y *= scale
    if c.layer_norm and c.norm_bias:
      y += declare(self, 'bias', shape, axis, nn.initializers.zeros)
    return y


def query_scale(config: TransformerConfig) -> float:
  """Returns the factor that scales queries before the dot product."""
  scale = config.query_scale
  return config.head_dim**-0.5 if scale is None else scale


def grow_queries(config: TransformerConfig, q, positions):
  """Scales queries [B, T, ...] by their positions; see `query_growth`."""
  if config.query_growth is None:
    return q
  rate, each = config.query_growth
  factor = 1 + rate * jnp.log1p((positions // each).astype(jnp.float32))
  shape = *positions.shape, *(1,) * (q.ndim - 2)
  return q * factor.reshape(shape).astype(q.dtype)


def scale_queries(config: TransformerConfig, q):
  """Scales queries, so that their products with keys are scores."""
  scale = query_scale(config)
  return q if scale == 1 else q * scale


def _scaled(factor, y):
  return y if factor is None else y * factor


class Layer(nn.Module):
  """Attention and MLP, each behind a norm, on a residual stream."""

  config: TransformerConfig
  index: int

  @nn.compact
  def __call__(
    self,
    x,
    positions,
    cache,
    length,
    mask,
    flight,
    at,
    bias=None,
    reads=None,
    inputs=None,
  ):
    """The stream [B, T, E] after the layer, and the block's keys and values.

    Args:
      x: [B, T, E] the stream; a pass may have more rows, behind those of T
        tokens, which the block leaves out.
      positions: see `transformer.Transformer`, also for the next five.
      cache: of this layer, or of the one whose keys and values it attends to.
      length: of the cache.
      mask: of the block.
      flight: likewise.
      at: row of the block.
      bias: of relative positions.
      reads: [B, T, any width] what attention reads instead of the normed
        stream: heads join more to it.
      inputs: [B, T, their width] of this layer, see `LayerInputs`.
    """
    c = self.config
    attends = c.attends(self.index)
    y, new = jnp.zeros((), x.dtype), flight
    if new is None and not attends:  # A block without heads.
      _, *widths = caches.heads(c, self.index)
      shapes = ((*positions.shape, 0, width) for width in widths)
      new = caches.block_of_rows(*(jnp.zeros(s, x.dtype) for s in shapes))
    shared = self._normed('norm1', x, mask) if c.one_norm else None
    with jax.named_scope('attention'):
      if self.index not in c.without_attention:
        if reads is None:
          reads = shared if c.one_norm else self._normed('norm1', x, mask)
        where = mask, flight, at
        if attends:
          y, new = self._attention(
            reads, positions, cache, length, *where, bias
          )
        if c.has_state(self.index):
          more, rows = self._remember(reads, cache, *where)
          y, new = y + more if attends else more, KVState(new.k, new.v, rows)
        if c.post_norms:
          y = Norm(c, name='post1')(y)
        y = _scaled(c.residual_scale, y)
    maps = self.index not in c.without_mlp
    with jax.named_scope('mlp'):
      if c.parallel and maps:
        normed = shared if c.one_norm else self._normed('norm2', x, mask)
        return x + y + _scaled(c.residual_scale, self._mlp(normed)), new
      x += y
      if c.encoder is not None:
        x += self._read_source(Norm(c, name='norm_source')(x), cache)
      if maps:
        y = self._mlp(self._normed('norm2', x, mask))
        if c.experts is not None and c.experts.beside:
          y = Norm(c, name='post_dense')(y) + self._experts_beside(x)
        if c.post_norms:
          y = Norm(c, name='post2')(y)
        x += _scaled(c.residual_scale, y)
      if inputs is not None:
        x += self._read_inputs(x, inputs)
      if c.layer_scale:
        x *= declare(self, 'layer_scale', (1,), start=nn.initializers.ones)
    return x, new

  def _normed(self, name, x, mask):
    """The stream as attention or the MLP reads it; zeros where no token is."""
    c = self.config
    y = Norm(c, name=name)(x) if c.pre_norms else x
    return (
      jnp.where(mask.any(-1, keepdims=True), y, 0) if c.fills_padding else y
    )

  def _remember(self, x, cache, mask, flight, at):
    """Returns what the state of a layer gives [B, T, E], and its rows."""
    sizes = self.config.recurrent
    mixer = recurrent.LAYERS[type(sizes)](self.config, name='mixer')
    before, rows = (kv and kv.state for kv in (cache, flight))
    if before is None:  # An empty text.
      before = recurrent.empty(sizes, len(x), x.dtype)
    return mixer(x, before, mask, rows, at)

  def _heads(self, x, positions):
    """Returns scaled queries, keys and values as a block, and their gate."""
    c = self.config
    b, t = x.shape[:2]
    queries = c.group * (2 if c.attention_gate else 1)
    makes = self._makes()
    outputs = c.num_kv_heads, queries + len(makes) - 1, c.head_dim
    axes = 'width', 'kv_heads', None, 'head'
    qkv = self._map(makes, x, outputs, axes, c.qkv_bias)
    if makes == 'q':
      return self._queries(qkv, positions), None, None
    q, k, v = jnp.split(qkv, (queries, queries + 1), -2)
    if makes == 'qk':
      v = k
    if c.value_norm:
      v = Norm(c, c.head_dim, scaled=False)(v)
    gate = None
    if c.attention_gate:  # A query, and what it is multiplied by, in turns.
      pairs = q.reshape(b, t, c.num_kv_heads, c.group, 2, c.head_dim)
      q, gate = pairs[..., 0, :], pairs[..., 1, :]
    if c.qk_norm and not c.qk_norm_last:
      q, k = self._norm_heads(q, k)
    if c.native and qkv.dtype.name in native.DTYPES and not c.qk_norm_last:
      if c.qk_norm or c.attention_gate or c.value_norm or makes == 'qk':
        qkv = jnp.concatenate([q, k, v], -2)
      q, new = self._heads_of_kernel(qkv, positions)
    else:
      if c.turns(self.index):
        turn = self._rotation()
        if c.device.by_products:  # Both by one product.
          both = jnp.concatenate([q, k], -2)
          both = rotary.rotate(both, positions, *turn, by_product=True)
          q, k = jnp.split(both, (c.group,), -2)
        else:
          q = rotary.rotate(q, positions, *turn)
          k = rotary.rotate(k, positions, *turn)
      if c.qk_norm_last:
        q, k = self._norm_heads(q, k)
      q = scale_queries(c, q)
      new = caches.block_of_rows(k[..., 0, :], v[..., 0, :])
    return grow_queries(c, q, positions), new, gate

  def _makes(self) -> str:
    """Returns which of queries, keys and values the first map makes."""
    c = self.config
    if c.source(self.index) != self.index:
      return 'q'
    if c.wide is None or self.index not in c.wide.layers:
      return 'qkv'
    return 'qk' if c.wide.keys_as_values else 'qkv'

  def _queries(self, q, positions):
    """Returns scaled queries of a layer without keys and values of its own."""
    c = self.config
    if c.qk_norm:
      q = Norm(c, c.head_dim, name='q_norm')(q)
    if c.turns(self.index):
      q = rotary.rotate(q, positions, *self._rotation())
    return scale_queries(c, q)

  def _attention(self, x, positions, cache, length, mask, flight, at, bias):
    c = self.config
    b, t = x.shape[:2]
    count = positions.shape[1]
    if t > count:  # Rows behind those of tokens, see `devices.DeviceForm`.
      # Their places are the last token's: a window would begin at 0 else.
      positions = jnp.pad(positions, ((0, 0), (0, t - count)), 'edge')
      mask = caches.pad(mask, 1, t)
    up = gate = None
    first, last = c.attention_scales or (None, None)
    x = _scaled(first, x)
    if c.latent is None:
      q, new, gate = self._heads(x, positions)
    else:
      turn = self._rotation() if c.turns(self.index) else None
      q, new, up = LatentHeads(c, name='latent')(x, positions, turn)
      q = grow_queries(c, scale_queries(c, q), positions)
    if new is None:  # The block has the rows of these tokens already.
      new = flight
    elif flight is not None or t > count:
      by_product = c.device.by_products
      new = caches.put(flight, new, at, count, by_product, c.native)
    sink = None
    if c.sink_logits:
      shape, axes = (c.num_kv_heads, c.group), ('kv_heads', None)
      sink = declare(self, 'sinks', shape, axes, nn.initializers.zeros)
    y = attend(
      q,
      cache,
      length,
      new,
      mask,
      positions,
      c.reach(self.index),
      c.attention_cap,
      bias,
      c.attention,
      c.sinks(self.index),
      sink,
    )
    if gate is not None:
      y *= nn.sigmoid(gate.reshape(y.shape)).astype(y.dtype)
    if up is not None:  # Latents that were read, as values of each head.
      y = jnp.einsum('bthr,hvr->bthv', y[:, :, 0], up)
    y = y.reshape(b, t, -1).astype(x.dtype)
    if c.skips_padding:
      y = jnp.where(mask.any(-1, keepdims=True), y, 0)
    out = self._out('out', y.shape[-1], ('heads', 'width'), c.out_bias)
    return _scaled(last, out(y)), new

  def _norm_heads(self, q, k):
    """Norms queries [B, T, G, H/G, D] and keys [B, T, G, 1, D]."""
    c = self.config

    def norm(name, x):
      if not c.qk_norm_whole:
        return Norm(c, c.head_dim, name=name)(x)
      flat = x.reshape(*x.shape[:2], -1)
      return Norm(c, flat.shape[-1], 'heads', name=name)(flat).reshape(x.shape)

    return norm('q_norm', q), norm('k_norm', k)

  def _heads_of_kernel(self, qkv, positions):
    """Queries, scaled, and the block of keys and values, by the kernel."""
    c, turns = self.config, None
    if c.turns(self.index):
      turns = rotary.turns(positions.astype(jnp.float32), *self._rotation())
    q, keys, values = native.heads(qkv, turns, query_scale(c))
    return q, KV(keys.astype(qkv.dtype), values.astype(qkv.dtype))

  def _read_source(self, x, cache):
    """Attention to the source, whose keys and values are in the cache."""
    c = self.config
    b, t = x.shape[:2]
    outputs = c.num_kv_heads, c.group, c.head_dim
    axes = 'width', 'kv_heads', None, 'head'
    q = self._map('source_q', x, outputs, axes, c.qkv_bias)
    slots = cache.source.v.shape[2]
    mask = jnp.arange(slots) < cache.source_length[:, None, None]
    mask = jnp.broadcast_to(mask, (b, t, slots))
    y = attend(scale_queries(c, q), None, None, cache.source, mask)
    return self._out(
      'source_out', c.num_heads * c.head_dim, ('heads', 'width'), c.out_bias
    )(y.reshape(b, t, -1))

  def _rotation(self):
    c = self.config
    local = c.local_rope_theta is not None and c.window(self.index) is not None
    if local or c.rope_scaling is None:
      theta = c.local_rope_theta if local else c.rope_theta
      frequency, amplitude = rotary.frequencies(theta, c.turned), 1.0
    else:
      scaling = c.rope_scaling
      frequency, amplitude = scaling(c.rope_theta, c.turned, c.max_positions)
    if c.rotary_apart:  # A pair that is turned by nothing stays.
      frequency = np.pad(frequency, (0, c.head_dim // 2 - len(frequency)))
    return frequency, amplitude

  def _experts_beside(self, x):
    """Returns what experts add to the plain MLP; see `config.Experts`."""
    c = self.config
    seen = Norm(c, name='norm_router')(x) * c.width**-0.5
    y = Experts(c, name='experts')(Norm(c, name='norm_experts')(x), seen)
    return Norm(c, name='post_experts')(y)

  def _read_inputs(self, x, inputs):
    """Returns what the second embedding adds to the stream."""
    c = self.config
    y = self._map('inputs_gate', x, inputs.shape[-1:], ('width', None), False)
    y = c.activation(y) * inputs
    y = self._out('inputs_out', inputs.shape[-1], (None, 'width'), False)(y)
    return Norm(c, name='post_inputs')(y)

  def _mlp(self, x):
    c = self.config
    if c.is_sparse(self.index) and not c.experts.beside:
      y = self._experts(x)
      if not c.experts.shared:
        return y
      shared = self._dense('shared_', x, c.experts.shared)
      if not c.experts.shared_gate:
        return y + shared
      gate = self._map('shared_gate', x, (1,), ('width', None), False)
      return y + nn.sigmoid(gate) * shared
    return self._dense('', x, c.mlp_width)

  def _experts(self, x):
    c, experts = self.config, Experts(self.config, name='experts')
    if not c.experts.inner:
      return experts(x)
    outputs, axes = (c.experts.inner,), ('width', None)
    inner = self._map('experts_in', x, outputs, axes, c.mlp_bias)
    out = self._out('experts_out', c.experts.inner, (None, 'width'), c.mlp_bias)
    return out(experts(inner, x))

  def _dense(self, prefix, x, width):
    c = self.config
    outputs, axes = (2 if c.gated else 1, width), ('width', None, 'mlp')
    y = self._map(f'{prefix}up', x, outputs, axes, c.mlp_bias)
    first, last = c.mlp_scales or (None, None)
    here = c.native and first is None and y.dtype == jnp.float32
    if here and c.gated and c.activation in native.ACTIVATIONS:
      y = native.gated(y, c.activation)
    else:
      gate = c.activation(_scaled(first, y[..., 0, :]))
      y = gate * y[..., 1, :] if c.gated else gate
    out = self._out(f'{prefix}down', width, ('mlp', 'width'), c.mlp_bias)
    return _scaled(last, out(y))

  def _map(self, name, x, outputs, axes, bias):
    """Outputs of a linear map of x [B, T, any width]."""
    rows = self.config.device.rows
    return Linear(x.shape[-1], outputs, axes, bias, rows=rows, name=name)(x)

  def _out(self, name, inputs, axes, bias):
    """The linear map back to the residual stream."""
    c = self.config
    return Linear(
      inputs, (c.width,), axes, bias, c.out_scale, c.device.rows, name=name
    )


class LayerInputs(nn.Module):
  """The second embedding of tokens; see `config.LayerInputs`."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, tokens, x):
    """Inputs [B, T, layers, their width] of tokens [B, T] embedded as x."""
    c, s = self.config, self.config.layer_inputs
    shape = s.vocab_size, s.parts * s.width
    table = declare(self, 'table', shape, ('vocab', None), s.width**-0.5)
    outputs, axes = (s.parts, s.width), ('width', None, None)
    y = Linear(c.width, outputs, axes, rows=c.device.rows, name='map')(x)
    y = Norm(c, s.width, name='norm')(y * c.width**-0.5)
    own = jnp.take(table, tokens, 0, mode='clip').reshape(y.shape)
    return (y + own * s.width**0.5) * 2**-0.5
