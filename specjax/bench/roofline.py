"""What a pass of a model must take on a device, from its sizes alone.

It reads the weights and the cache of every row, multiplies, and exchanges with
the devices that the model is split over. The longest of the three is a bound
from below (Williams et al. 2009, the roofline): latencies, what does not
overlap and kernels below their peak come on top.

Weights, caches and where they lie are those that runs here take, so the bytes
are the ones that `specjax.bench.memory` predicts; the exchange
is checked against the operations of a compiled program (`collectives`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax.bench import memory
from specjax.bench.config import Accelerator, PaperModel
from specjax.models import sharding, transformer
from specjax.models.config import TransformerConfig
from specjax.models.sharding import Placement

LIMITS = ('memory', 'arithmetic', 'exchange')
_SLOTS = 128  # of a cache whose bytes are counted


class Exchange(NamedTuple):
  """What a pass exchanges: bytes of the results on one device."""

  sums: int  # how many
  sum_bytes: int
  gather_bytes: int  # of the logits, which come together once


class Work(NamedTuple):
  """What each device does in a pass."""

  bytes: float
  operations: float  # a product and a sum are two
  exchange: Exchange


def config_of(size: PaperModel, positions: int = 1) -> TransformerConfig:
  """The configuration of a model of these sizes."""
  return TransformerConfig(
    vocab_size=size.vocab_size,
    width=size.width,
    num_layers=size.num_layers,
    num_heads=size.num_heads,
    num_kv_heads=size.num_kv_heads,
    head_dim=size.head_dim,
    mlp_width=size.mlp_width,
    max_positions=positions,
    tied_embeddings=size.tied,
  )


def split_over(devices: int) -> Placement:
  """Everything split over so many devices that are not there."""
  return Placement(sharding.plan_mesh(1, devices))


@functools.cache
def held(
  config: TransformerConfig, placement: Placement, dtype: str
) -> tuple[int, int, int]:
  """Bytes on each device: all weights, those a pass reads, a token's cache."""
  model = transformer.build(config)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  places = transformer.shardings(config, placement)
  parts = jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(place.shard_shape(x.shape), dtype),
    shapes,
    places,
  )
  read, _ = memory.bytes_per_token(model, parts, _SLOTS)
  cache = memory.of_cache(config, placement, 1, _SLOTS, 0, dtype)
  whole = memory.of_parameters(config, placement, dtype)
  return whole, read, cache // _SLOTS


def exchange(
  config: TransformerConfig, placement: Placement, tokens: int, dtype: str
) -> Exchange:
  """What devices exchange in a pass over so many tokens of all rows.

  The embedding, attention and the MLP end in a sum over the devices wherever
  the mesh divides their sizes; the logits are put together.
  """
  if placement.mesh.shape['model'] == 1:
    return Exchange(0, 0, 0)
  layers = config.num_layers
  sums = int(not placement.keeps_whole('vocab', config.vocab_size))
  gathered = sums
  sums += layers * (not placement.keeps_whole('kv_heads', config.num_kv_heads))
  sums += layers * (not placement.keeps_whole('mlp', config.mlp_width))
  size = jnp.dtype(dtype).itemsize
  return Exchange(
    sums,
    sums * tokens * config.width * size,
    gathered * tokens * config.vocab_size * size,
  )


def work(
  config: TransformerConfig,
  placement: Placement,
  rows: int,
  tokens: int,
  context: int,
  dtype: str,
) -> Work:
  """One pass.

  Args:
    config: of the model.
    placement: of it.
    rows: of the batch.
    tokens: of each row that are scored together.
    context: tokens in the cache of each row.
    dtype: of weights and cache.
  """
  _, weights, cache = held(config, placement, dtype)
  whole = placement.keeps_whole('kv_heads', config.num_kv_heads)
  devices = 1 if whole else placement.mesh.shape['model']
  heads = config.num_layers * config.num_heads * config.head_dim // devices
  # Every weight once, and for each key and value as many as a head has.
  products = weights // jnp.dtype(dtype).itemsize + 2 * context * heads
  return Work(
    weights + rows * context * cache,
    2 * products * rows * tokens,
    exchange(config, placement, rows * tokens, dtype),
  )


def seconds(work: Work, device: Accelerator, devices: int) -> dict[str, float]:
  """What each limit asks of a pass.

  A sum over n devices in a ring sends its bytes 2 (n - 1) / n times, putting
  together (n - 1) / n times.
  """
  ring = (devices - 1) / devices
  sent = ring * (2 * work.exchange.sum_bytes + work.exchange.gather_bytes)
  return {
    'memory': work.bytes / device.bandwidth,
    'arithmetic': work.operations / device.operations,
    'exchange': sent / device.exchange,
  }
