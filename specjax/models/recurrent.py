"""Linear attention with a gated delta rule (Yang et al., 2024,
arXiv:2412.06464), as Qwen3-Next and Qwen3.5 have it.

A layer keeps a matrix S of keys x values for each head. A token decays it and
replaces what S says of the token's key:

  S <- exp(g) S,    u = beta (v - S^T k),    S <- S + k u^T,    y = S^T q

As with keys and values, a pass reads S and never writes it. Over a block, the u
of all rows follow from the S before it by one triangular system, in which each
row sees its ancestors: so a tree is a mask here, too.

  u_i = beta_i (v_i - e^G_i S^T k_i - sum over ancestors j of
                e^(G_i - G_j) (k_i k_j) u_j),   G_i: sum of g along its path

What a row leaves in flight is k, u, g and G. S after an accepted path is a sum
over its rows, and nothing is ever rolled back.

Mamba-2 (Dao and Gu, 2024, arXiv:2405.21060) decays S too, and replaces nothing
in it: the u of a row is its own value times its step, and needs no system.
Layers that only convolve (LFM2) keep the last inputs of their convolution, and
S has no entries.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.initializers import ones, zeros

from specjax.models.config import (
  GatedDelta,
  Mamba2,
  ShortConv,
  TransformerConfig,
)
from specjax.models.linear import Linear, declare
from specjax.types import Recurrence, RecurrentRows

# A TPU would multiply in 16 bits.
_einsum = functools.partial(jnp.einsum, precision='highest')
_GRAIN = 256  # of a decay's coarse part, in 1: sums of these are exact
Sizes = GatedDelta | Mamba2 | ShortConv


def _apart(rows: jax.Array, others: jax.Array) -> jax.Array:
  """Differences of totals [..., 2]: exact where they are small."""
  return (rows - others).sum(-1)


def _wide(dtype: Any) -> Any:
  return jnp.promote_types(dtype, jnp.float32)


def empty(sizes: Sizes, batch: int, dtype: Any) -> Recurrence:
  """Returns the state of a layer before a text."""
  shape = batch, sizes.value_heads, sizes.key_dim, sizes.value_dim
  last = batch, sizes.kernel - 1, sizes.channels
  return Recurrence(jnp.zeros(shape, _wide(dtype)), jnp.zeros(last, dtype))


def open_rows(before: Recurrence, sizes: Sizes, rows: int):
  """Returns a block in flight of so many rows, behind a state."""
  wide, (batch, heads) = before.state.dtype, before.state.shape[:2]
  numbers = jnp.zeros((batch, rows, heads, 2), wide)
  return RecurrentRows(
    jnp.zeros((batch, rows, sizes.key_heads, sizes.key_dim), wide),
    jnp.zeros((batch, rows, heads, sizes.value_dim), wide),
    numbers,
    numbers,
    jnp.zeros((batch, rows), jnp.int32),
    jnp.zeros((batch, rows, sizes.channels), before.last.dtype),
  )


def put(rows: RecurrentRows, new: RecurrentRows, at: Any) -> RecurrentRows:
  """Returns a block with new rows from `at` on."""
  return jax.tree.map(
    lambda x, y: jax.lax.dynamic_update_slice_in_dim(
      x, y.astype(x.dtype), at, 1
    ),
    rows,
    new,
  )


def _begin(sizes, before, flight, at, mask, **known):
  """Puts what is known of T new rows into the block in flight.

  Args:
    sizes: of the layer.
    before: state of the text.
    flight: the block so far; None: these rows are all of it.
    at: row of the block where they go.
    mask: [B, T, N] ancestors of each row, itself included.
    **known: fields of the rows.

  Returns:
    The block, the new rows, and where they begin.
  """
  count = mask.shape[1]
  if flight is None:
    flight, at = open_rows(before, sizes, count), 0
  # What is not known of them yet is 0: an older block may have left more.
  new = open_rows(before, sizes, count)
  new = new._replace(depth=mask.sum(-1) - 1, **known)
  return put(flight, new, at), new, at


def advance(
  before: Recurrence, rows: RecurrentRows, path: jax.Array, count: jax.Array
) -> Recurrence:
  """Returns the state behind the first rows of a path.

  Args:
    before: the state, [B, ...].
    rows: in flight behind it.
    path: [B, P] rows, each the child of the one before.
    count: [B] of them that stay; 0: the state stays.
  """

  def one(before, rows, path, count):
    rows = jax.tree.map(lambda x: jnp.take(x, path, 0, mode='clip'), rows)
    stays = jnp.arange(len(path)) < count
    total = jnp.where(
      count > 0, jnp.take(rows.total, count - 1, 0, mode='clip'), 0
    )
    fades = jnp.where(stays[:, None], _apart(total, rows.total), -jnp.inf)
    share = len(total) // rows.keys.shape[1]
    keys = jnp.repeat(rows.keys, share, 1) * jnp.exp(fades)[..., None]
    state = before.state * jnp.exp(total.sum(-1))[:, None, None]
    updates = jnp.where(stays[:, None, None], rows.updates, 0)
    state += _einsum('phk,phv->hkv', keys, updates)
    seen = jnp.concatenate([before.last, rows.inputs.astype(before.last.dtype)])
    last = jax.lax.dynamic_slice_in_dim(seen, count, len(before.last))
    return Recurrence(state, last)

  return jax.vmap(one)(before, rows, path, count)


def _unit(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def _convolve(module, before, depth, block, mask, bias=False):
  """Convolves each row with its ancestors [B, T, C].

  Args:
    module: whose weight [C, 1, W] has the token itself at the end.
    before: [B, W - 1, C] inputs of the text.
    depth: [B, T] ancestors of each row, itself left out.
    block: N rows in flight.
    mask: [B, T, N] ancestors of each row, itself included.
    bias: whether it has one.
  """
  sizes = module.config.recurrent
  width, channels = sizes.kernel, sizes.channels
  weight = declare(module, 'conv', (channels, 1, width), start=0.5)
  at_depth = block.depth
  seen = jnp.concatenate([before.astype(block.inputs.dtype), block.inputs], 1)

  def back(count):
    wanted = depth - count
    found = mask & (at_depth[:, None] == wanted[..., None])
    inside = width - 1 + jnp.argmax(found, -1)
    place = jnp.where(wanted < 0, width - 1 + wanted, inside)
    return jnp.take_along_axis(seen, place[..., None], 1, mode='clip')

  mixed = sum(back(width - 1 - i) * weight[:, 0, i] for i in range(width))
  if bias:
    mixed += declare(module, 'conv_b', (channels,), start=zeros)
  return mixed


def _decays(module, steps):
  """Returns steps [B, T, heads] > 0, and logarithms of decays with a grain.

  Args:
    module: has a rate of each head, and what is added to its steps.
    steps: before that.
  """
  wide, heads = _wide(steps.dtype), steps.shape[-1:]
  rate = declare(module, 'rate', heads, start=zeros).astype(wide)
  shift = declare(module, 'shift', heads, start=ones).astype(wide)
  steps = nn.softplus(steps.astype(wide) + shift)
  g = -jnp.exp(rate) * steps
  coarse = jnp.round(g * _GRAIN) / _GRAIN
  return steps, jnp.stack([coarse, g - coarse], -1)


def _read(module, outputs, bias, name='in'):
  """The map of the stream into a layer."""
  c, axes = module.config, ('width', *[None] * len(outputs))
  return Linear(c.width, outputs, axes, bias, rows=c.device.rows, name=name)


def _give(module, inputs, bias):
  """The map of a layer back to the stream."""
  c, axes = module.config, (None, 'width')
  return Linear(
    inputs, (c.width,), axes, bias, c.out_scale, c.device.rows, name='out'
  )


class ShortConvLayer(nn.Module):
  """Mixes a token with a few before it."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, before, mask, flight, at):
    """Returns the output [B, T, E] and the block, as `GatedDeltaLayer`."""
    s = self.config.recurrent
    made = _read(self, (3, s.channels), s.bias)(x)
    gate, opened, inputs = (made[..., i, :] for i in range(3))
    block, new, _ = _begin(s, before, flight, at, mask, inputs=gate * inputs)
    mixed = _convolve(self, before.last, new.depth, block, mask, s.bias)
    return _give(self, s.channels, s.bias)(opened * mixed), block


class GatedDeltaLayer(nn.Module):
  """Mixes tokens by a state."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, before, mask, flight, at):
    """Returns the output [B, T, E] of the layer, and the block in flight.

    Args:
      x: [B, T, E].
      before: state of the text.
      mask: [B, T, N] ancestors of each row, itself included.
      flight: the block so far; None: these T tokens are all of it.
      at: row of the block where they go.
    """
    s, (batch, count) = self.config.recurrent, x.shape[:2]
    wide = _wide(x.dtype)
    inputs, z, beta, g = self._project(x)
    block, new, at = _begin(s, before, flight, at, mask, decay=g, inputs=inputs)
    mixed = _convolve(self, before.last, new.depth, block, mask)
    q, k, v = jnp.split(
      nn.silu(mixed).astype(wide), (s.keys, 2 * s.keys), axis=-1
    )
    heads = batch, count, s.key_heads, s.key_dim
    q = _unit(q.reshape(heads)) * s.key_dim**-0.5
    k = _unit(k.reshape(heads))
    v = v.reshape(batch, count, s.value_heads, s.value_dim)
    total = _einsum('btn,bnhd->bthd', mask.astype(wide), block.decay)
    block = put(block, new._replace(keys=k, total=total), at)
    y, updates = _mix(s, before.state, block, mask, at, q, k, v, beta, total)
    block = block._replace(updates=updates)
    scale = declare(self, 'norm', (s.value_dim,), start=ones)
    size = jnp.mean(y * y, -1, keepdims=True)
    y *= jax.lax.rsqrt(size + self.config.norm_eps)
    y = (y.astype(x.dtype) * scale).astype(wide) * nn.silu(z.astype(wide))
    y = y.reshape(batch, count, -1).astype(x.dtype)
    return _give(self, s.values, False)(y), block

  def _project(self, x):
    """Inputs of the convolution, gates z, beta and the logarithm of decays."""
    s = self.config.recurrent

    def linear(name, outputs):
      return _read(self, outputs, False, name)(x)

    group = s.value_heads // s.key_heads
    values = group * s.value_dim
    if s.by_head:
      made = linear('in', (s.key_heads, 2 * s.key_dim + 2 * values))
      rates = linear('rates', (s.key_heads, 2 * group))
      cuts = s.key_dim, 2 * s.key_dim, 2 * s.key_dim + values
      parts = jnp.split(made, cuts, -1)
      b, a = jnp.split(rates, 2, -1)
    else:
      made = linear('in', (s.channels + s.values,))
      parts = [made[..., : s.channels], made[..., s.channels :]]
      b, a = jnp.split(linear('rates', (2 * s.value_heads,)), 2, -1)
    *parts, z, b, a = (y.reshape(*x.shape[:2], -1) for y in (*parts, b, a))
    z = z.reshape(*x.shape[:2], s.value_heads, s.value_dim)
    beta = nn.sigmoid(b).astype(_wide(x.dtype))
    return jnp.concatenate(parts, -1), z, beta, _decays(self, a)[1]


class Mamba2Layer(nn.Module):
  """Mixes tokens by a state that only decays."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, before, mask, flight, at):
    """Returns the output [B, T, E] and the block, as `GatedDeltaLayer`."""
    s, (batch, count) = self.config.recurrent, x.shape[:2]
    wide = _wide(x.dtype)
    parts = s.values, s.values, s.keys, s.keys, s.value_heads
    if s.scales:
      x *= s.scales[0]
    made = _read(self, (sum(parts),), s.bias)(x)
    if s.scales:
      made *= np.repeat(s.scales[1:-1], parts).astype(x.dtype)
    cuts = s.values, s.values + s.channels
    z, inputs, steps = jnp.split(made, cuts, -1)
    steps, g = _decays(self, steps)
    block, new, at = _begin(s, before, flight, at, mask, decay=g, inputs=inputs)
    mixed = _convolve(self, before.last, new.depth, block, mask, s.conv_bias)
    mixed = s.activation(mixed).astype(wide)
    v, k, q = jnp.split(mixed, (s.values, s.values + s.keys), -1)
    k, q = (y.reshape(batch, count, s.key_heads, s.key_dim) for y in (k, q))
    v = v.reshape(batch, count, s.value_heads, s.value_dim)
    total = _einsum('btn,bnhd->bthd', mask.astype(wide), block.decay)
    new = new._replace(keys=k, updates=v * steps[..., None], total=total)
    block = put(block, new, at)
    said, near = _reads(s, before.state, block, mask, total)
    y = said(q) + _einsum('bhtn,bnhv->bthv', near(q), block.updates)
    skip = declare(self, 'skip', (s.value_heads,), start=ones)
    y += skip.astype(wide)[:, None] * v
    y = self._gated(y.reshape(batch, count, -1), nn.silu(z.astype(wide)))
    y = _give(self, s.values, s.out_bias)(y.astype(x.dtype))
    return (y * s.scales[-1] if s.scales else y), block

  def _gated(self, y, gate):
    """Returns y [B, T, values] behind its gate, and its norm if any."""
    s = self.config.recurrent
    if not s.norm:
      return y * gate
    if s.gate_first:
      y *= gate
    groups = y.reshape(*y.shape[:2], s.key_heads, -1)
    size = jnp.mean(groups * groups, -1, keepdims=True)
    y = (groups * jax.lax.rsqrt(size + self.config.norm_eps)).reshape(y.shape)
    y *= declare(self, 'norm', (s.values,), start=ones)
    return y if s.gate_first else y * gate


LAYERS = {
  GatedDelta: GatedDeltaLayer,
  Mamba2: Mamba2Layer,
  ShortConv: ShortConvLayer,
}


def _reads(s, state, block, mask, total):
  """Returns two functions of T keys: what the state says, and rows of a block.

  Args:
    s: sizes.
    state: [B, heads, keys, values] before the block.
    block: N rows.
    mask: [B, T, N] ancestors of each row, itself included.
    total: [B, T, heads, 2] of each row, see `RecurrentRows`.

  Returns:
    said(keys [B, T, key heads, keys]) -> [B, T, heads, values], and near(keys)
    -> [B, heads, T, N] products with the keys of rows, as they have faded.
  """
  group = s.value_heads // s.key_heads
  fades = _apart(total[:, :, None], block.total[:, None])  # [B, T, N, heads]
  fades = jnp.exp(jnp.where(mask[..., None], fades, -jnp.inf))
  fades = fades.transpose(0, 3, 1, 2)  # [B, heads, T, N]

  def near(x):
    products = _einsum('btgd,bngd->bgtn', x, block.keys)
    return jnp.repeat(products, group, 1) * fades

  def said(x):
    read = _einsum('bthk,bhkv->bthv', jnp.repeat(x, group, 2), state)
    return read * jnp.exp(total.sum(-1))[..., None]

  return said, near


def _mix(s, state, block, mask, at, q, k, v, beta, total):
  """Returns the reads of T rows of a block, and the updates of all its rows.

  Args:
    s: sizes.
    state: [B, heads, keys, values] before the block.
    block: N rows; updates of the new ones are zeros.
    mask: [B, T, N] ancestors of each row, itself included.
    at: first of the new rows.
    q: [B, T, key heads, keys].
    k: the same.
    v: [B, T, heads, values].
    beta: [B, T, heads].
    total: [B, T, heads, 2] of each row, see `RecurrentRows`.

  Returns:
    [B, T, heads, values], and [B, N, heads, values].
  """
  said, near = _reads(s, state, block, mask, total)
  count = q.shape[1]
  own = at + jnp.arange(count)
  itself = own[:, None] == jnp.arange(block.total.shape[1])
  between = jnp.where(itself, 0, near(k)) * beta.transpose(0, 2, 1)[..., None]
  told = _einsum('bhtn,bnhv->bthv', between, block.updates)
  wanted = (v - said(k)) * beta[..., None] - told
  if count > 1:
    among = jax.lax.dynamic_slice_in_dim(between, at, count, 3)
    system = among + jnp.eye(count, dtype=among.dtype)
    wanted = jax.scipy.linalg.solve_triangular(
      system, wanted.transpose(0, 2, 1, 3), lower=True, unit_diagonal=True
    ).transpose(0, 2, 1, 3)
  updates = jax.lax.dynamic_update_slice_in_dim(block.updates, wanted, at, 1)
  return said(q) + _einsum('bhtn,bnhv->bthv', near(q), updates), updates
