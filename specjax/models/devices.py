"""Forms that a model and its arrays take on each platform of devices.

A form changes results by rounding only. results/accelerators.md has the
estimates that these forms were chosen by.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental.layout import Format, Layout, with_layout_constraint

from specjax.models import cache_attention
from specjax.models.attention import AtOnce, CacheAttention
from specjax.types import KV, KVState

Order = tuple[int, ...]  # axes of an array in memory, the slowest first
_TILE = 128  # columns of a tile of a TPU's memory, and slots of a small cache


def by_outputs(name: str, shape: tuple[int, ...]) -> Order | None:
  """Returns the order in which a TPU reads a weight of a layer."""
  if name == 'unembedding':  # A part of it may have another by itself.
    return 0, 1
  if name == 'up' and len(shape) == 3:
    return 1, 0, 2
  if name == 'qkv':
    return (1, 2, 3, 0) if shape[-1] % _TILE else (1, 2, 0, 3)
  return None


def by_slots(width: int) -> tuple[Order, Order]:
  """Returns the orders in which a TPU reads keys and values of a cache."""
  if width % _TILE:
    return (0, 1, 2, 3), (0, 1, 3, 2)
  return (0, 3, 1, 2), (0, 2, 1, 3)


@dataclasses.dataclass(frozen=True)
class DeviceForm:
  """The choices that differ by the platform of a program.

  Arrays that lie in another order than a program reads are copied at each call.

  Attributes:
    rows: fewest rows of a product, and of all layers of a `Transformer` without
      experts and states. A TPU multiplies fewer rows on its vector unit, and
      reads the weights several times as slowly. For one row XLA may write the
      weights times the row to a GPU's memory, and sum them up then.
    attention: how a cache is read.
    order: (name of a linear map, shape of its weight) -> the order of its axes
      in memory, or None: as declared. None: so are all.
    cache: (width of a head) -> the orders of a cache's keys and values. None:
      as declared.
    by_products: products with zeros and ones turn heads and put rows in a
      block: one kernel each, where slices and copies are several.
  """

  rows: int = 1
  attention: CacheAttention = cache_attention.blocked
  order: Callable[[str, tuple[int, ...]], Order | None] | None = None
  cache: Callable[[int], tuple[Order, Order]] | None = None
  by_products: bool = False


CPU = DeviceForm()

# By `jax.Device.platform`. A program that is compiled for a device that is not
# there takes its form from here, too: the host's platform is another one.
FORMS: Mapping[str, DeviceForm] = {
  'cpu': CPU,
  'gpu': DeviceForm(2, cache_attention.split),
  'tpu': DeviceForm(8, cache_attention.few(8192), by_outputs, by_slots, True),
}


def here() -> DeviceForm:
  """Returns the form for the devices that JAX computes on."""
  platform = jax.default_backend()
  form = FORMS.get(platform, CPU)
  if platform == 'gpu' and isinstance(form.attention, AtOnce):
    # Triton needs one of NVIDIA's of 8.0 and more, which a T4 is not.
    version = getattr(jax.devices()[0], 'compute_capability', '')
    major = version.partition('.')[0]
    if not major.isdigit() or int(major) < 8:
      return dataclasses.replace(form, attention=form.attention.otherwise)
  return form


def lay_weights(form: DeviceForm, params: Any) -> Any:
  """Puts parameters where programs read them, and takes their buffers over.

  Args:
    form: of the devices.
    params: arrays, or shapes with shardings.
  """

  order = form.order
  if order is None:
    return params

  def one(path, x):
    keys = [getattr(key, 'key', None) for key in path]
    name = keys[-2] if len(keys) > 1 and keys[-1] == 'w' else keys[-1]
    return _lay(x, order(name, x.shape))

  return jax.tree_util.tree_map_with_path(one, params)


def lay_caches(form: DeviceForm, tree: Any) -> Any:
  """Puts the caches of a tree where programs read them, as `lay_weights`.

  Inside a program they are held there.
  """
  orders = form.cache
  if orders is None:
    return tree

  def one(kv):
    # Drafts in flight are small, and lie as they are declared.
    if not isinstance(kv, KV | KVState) or kv.v.shape[2] < _TILE:
      return kv
    k, v = map(_lay, (kv.k, kv.v), orders(kv.v.shape[3]))
    return kv._replace(k=k, v=v)

  return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, KV | KVState))


def _lay(x: Any, order: Order | None) -> Any:
  if order is None:
    return x
  if isinstance(x, jax.core.Tracer):
    return with_layout_constraint(x, Layout(order))
  where = Format(Layout(order), x.sharding)
  if isinstance(x, jax.ShapeDtypeStruct):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  lies = x.format.layout.major_to_minor == order
  return x if lies else jax.device_put(x, where, donate=True)
