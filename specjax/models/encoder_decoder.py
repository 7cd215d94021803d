"""The parts of an encoder-decoder beside the decoder (Raffel et al., 2020,
arXiv:1910.10683): relative positions, and an encoder.

The encoder runs once for a source. Its result is all that decoding looks at:
the keys and values that each layer of the decoder attends to, which lie in the
cache beside those of the text. They belong to the encoder here, so that none
of its weights is read again at a step.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from specjax.models import cache as caches
from specjax.models.attention import Bias, look_up
from specjax.models.config import Relative, TransformerConfig
from specjax.models.layers import Layer, Norm
from specjax.models.linear import Linear, declare


def bucket_distances(relative: Relative, both_sides: bool) -> np.ndarray:
  """The bucket of every distance up to the longest, in order.

    buckets 8, longest 20     distance  0 1 2 3 4 5 6 7 8 9 10 .. 14 .. 20
                              bucket    0 1 2 3 4 4 5 5 5 6  6 ..  7 ..  7

  Args:
    relative: how distances are put into buckets.
    both_sides: whether tokens that come later are seen: then the distances
      go from -longest (after the query) to longest, and otherwise from 0.
  """
  count = relative.buckets // 2 if both_sides else relative.buckets
  exact = count // 2
  distance = np.arange(relative.longest + 1)
  # In float32, as models were trained: rounding decides where a range ends.
  ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
  whole = np.float32(np.log(relative.longest / exact))
  far = np.log(ratio) / whole * np.float32(count - exact)
  far = np.minimum(exact + far.astype(int), count - 1)
  bucket = np.where(distance < exact, distance, far)
  if not both_sides:
    return bucket
  return np.concatenate([bucket[:0:-1] + count, bucket])


class RelativeCurve(nn.Module):
  """The bias [distances, H] of each distance, see `bucket_distances`."""

  config: TransformerConfig
  both_sides: bool = False

  @nn.compact
  def __call__(self):
    c = self.config
    shape = c.relative.buckets, c.num_heads
    table = declare(self, 'table', shape, (None, 'heads'), c.width**-0.5)
    return table[bucket_distances(c.relative, self.both_sides)]


class Encoder(nn.Module):
  """Reads a source for every layer of a decoder; `config` is the decoder's."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, length):
    """Reads sources x [B, R, E] of `length` [B] tokens.

    Returns:
      KV of R slots for each layer of the decoder.
    """
    c = self.config
    own = dataclasses.replace(c, num_layers=c.encoder.num_layers, encoder=None)
    slots = x.shape[1]
    place = jnp.arange(slots)
    mask = place < length[:, None, None]
    mask = jnp.broadcast_to(mask, (x.shape[0], slots, slots))
    positions = jnp.broadcast_to(place, x.shape[:2])
    bias = None
    if c.relative is not None:
      curve = RelativeCurve(own, True, name='relative')()
      distance = place[:, None] - place
      block = look_up(curve, distance[None] + c.relative.longest)
      bias = Bias(curve, jnp.broadcast_to(block, (len(x), *block.shape[1:])))
    for i in range(own.num_layers):
      layer = Layer(own, i, name=f'layer{i}')
      x, _ = layer(x, positions, None, None, mask, None, 0, bias)
    x = Norm(own, name='norm')(x)
    return tuple(self._keys(x, i) for i in range(c.num_layers))

  def _keys(self, x, layer):
    c = self.config
    both = Linear(
      c.width,
      (c.num_kv_heads, 2, c.head_dim),
      ('width', 'kv_heads', None, 'head'),
      c.qkv_bias,
      name=f'source{layer}',
    )(x)
    return caches.block_of_rows(both[..., 0, :], both[..., 1, :])
