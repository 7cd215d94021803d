"""Places of weights, caches and states on a mesh of devices.

A mesh has the axes `data`, over which the rows of a batch are split, and
`model`, over which weights, heads and caches are. Parameters declare logical
axes beside their shapes; one table says what mesh axis each of these goes to.
The compiler derives the communication from that.

  mesh 2 x 4, values [B, G, S, D]    model 0    1    2    3
                           data 0    rows of the first half, G/4 heads each
                           data 1    rows of the second half, G/4 heads each
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specjax.models import devices
from specjax.types import KV, CrossKV, KVState, SpecState

if TYPE_CHECKING:
  from specjax.models.transformer import Model

NAMES = ('data', 'model')

# Logical axes and the mesh axis each is split over. The walk over a mixture
# reads one expert at a time: every device needs its part of each.
TABLE: Mapping[str, str | None] = {
  'batch': 'data',
  'vocab': 'model',
  'kv_heads': 'model',
  'heads': 'model',
  'mlp': 'model',
  'width': None,
  'head': None,
  'experts': None,
}
_CACHE = ('batch', 'kv_heads', None, None)


def make_mesh(data: int, model: int, devices: Sequence | None = None) -> Mesh:
  """A mesh of the first data * model devices, or of those given.

  Raises:
    ValueError: there are not so many.
  """
  available = jax.devices() if devices is None else devices
  size = data * model
  if size > len(available):
    raise ValueError(
      f'a mesh of {data} x {model} needs {size} devices, but there are '
      f'{len(available)}'
    )
  return jax.make_mesh(
    (data, model), NAMES, (AxisType.Auto,) * 2, devices=available[:size]
  )


def plan_mesh(data: int, model: int) -> AbstractMesh:
  """A mesh without devices, to predict with."""
  return AbstractMesh((data, model), NAMES, (AxisType.Auto,) * 2)


@dataclasses.dataclass(frozen=True)
class Placement:
  """The place of one model on a mesh, and of the state of its loop.

  Attributes:
    mesh: with the axes of `NAMES`.
    split: whether the model's weights and heads are split over `model`;
      otherwise every device has them whole.
    split_draft: the same for a draft of its own.
  """

  mesh: Mesh | AbstractMesh
  split: bool = True
  split_draft: bool = False

  @property
  def for_draft(self) -> 'Placement':
    """The placement of a draft beside this target."""
    return dataclasses.replace(self, split=self.split_draft)

  def place(
    self, axes: Sequence[str | None], shape: Sequence[int]
  ) -> NamedSharding:
    """Returns the sharding of an array.

    An axis that the mesh does not divide stays whole, and so does a second
    one that the table gives to the same mesh axis. It is said in as few words
    as a compiled program says it of what it returns, so that the two are equal.

    Args:
      axes: logical names, one for each axis of the array, or None.
      shape: of the array.
    """
    names: list[str | None] = []
    for axis, size in zip(axes, shape, strict=True):
      name = None if axis is None else TABLE[axis]
      if name == 'model' and not self.split:
        name = None
      devices = self.mesh.shape[name] if name else 1
      if name in names or devices == 1 or size % devices:
        name = None
      names.append(name)
    while names and names[-1] is None:
      names.pop()
    return NamedSharding(self.mesh, P(*names))

  def keeps_whole(self, axis: str, size: int) -> bool:
    """Returns true if an axis of a size is split over no devices."""
    return not self.place((axis,), (size,)).spec

  def of_rows(self, tree: Any) -> Any:
    """Shardings of arrays whose first axis is the batch; caches by heads."""

    def one(x):
      if isinstance(x, KV | CrossKV | KVState):
        own = (self.place(_CACHE, a.shape) for a in x[:2])
        return type(x)(*own, *map(self.of_rows, x[2:]))
      return self.place(('batch', *[None] * x.ndim)[: x.ndim], x.shape)

    return jax.tree.map(
      one, tree, is_leaf=lambda x: isinstance(x, KV | CrossKV | KVState)
    )

  def of_state(self, state: SpecState) -> SpecState:
    """Shardings of a state; those of a drafter's follow its own placement."""
    drafter = self.for_draft.of_rows(state.drafter)
    return self.of_rows(state)._replace(drafter=drafter)

  def constrain(self, tree: Any) -> Any:
    """Arrays of rows inside a program, held where they lie."""
    return jax.lax.with_sharding_constraint(tree, self.of_rows(tree))

  def gather_logits(self, logits: jax.Array) -> jax.Array:
    """Logits [B, ..., V] of a split head, whole on every device of a row.

    Said in two steps, or the weights would be gathered instead.
    """
    axes = ('batch', *[None] * (logits.ndim - 2), 'vocab')
    split = self.place(axes, logits.shape)
    return self.constrain(jax.lax.with_sharding_constraint(logits, split))

  def constrain_state(self, state: SpecState) -> SpecState:
    """Holds a state where it lies: a step returns it where it was given."""
    return jax.lax.with_sharding_constraint(state, self.of_state(state))

  def put_rows(self, tree: Any) -> Any:
    """Puts arrays of rows that every process has in full onto the mesh."""
    return jax.tree.map(_put, tree, self.of_rows(tree))

  def put_whole(self, tree: Any) -> Any:
    """Puts whole arrays onto every device; leaves those of the mesh alone."""
    whole = NamedSharding(self.mesh, P())

    def put(x):
      placed = getattr(getattr(x, 'sharding', None), 'mesh', None) == self.mesh
      return x if placed else _put(x, whole)

    return jax.tree.map(put, tree)


def _put(x, sharding: NamedSharding) -> jax.Array:
  """An array from the copy that each process has."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    inner = NamedSharding(sharding.mesh, P(*sharding.spec))
    data = _put(jax.random.key_data(x), inner)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
  if isinstance(x, jax.core.Tracer):
    return jax.lax.with_sharding_constraint(x, sharding)
  host = np.asarray(x)
  return jax.make_array_from_callback(
    host.shape, sharding, lambda index: host[index]
  )


@functools.lru_cache(maxsize=64)
def _places(placement: Placement, structure, shapes) -> list[NamedSharding]:
  """Lists the shardings of a state's arrays between two steps."""
  leaves = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
  state = placement.of_state(jax.tree.unflatten(structure, leaves))
  return jax.tree.leaves(state)


def _lies(x: jax.Array, where: NamedSharding) -> bool:
  """Returns true if an array lies where it should, in the same words."""
  if isinstance(x, jax.core.Tracer):  # Its program has said where.
    return True
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # Has words of its own.
    return x.sharding.is_equivalent_to(where, x.ndim)
  return x.sharding == where


def laid(model: 'Model', state: SpecState) -> SpecState:
  """Puts a state of a target where it lies between two steps.

  A program may return it elsewhere on a mesh, or in another order in memory,
  and each program is compiled once for every place that its state comes from.
  On a mesh the order is the compiler's: no program holds it inside the loop.
  """
  if model.placement is None:
    return devices.lay_caches(model.config.device, state)
  leaves, structure = jax.tree.flatten(state)
  places = _places(model.placement, structure, tuple(x.shape for x in leaves))
  pairs = zip(leaves, places, strict=True)
  # What lies there already is not looked at again: that takes the host longer
  # than a step of a small model.
  return jax.tree.unflatten(
    structure,
    [x if _lies(x, own) else jax.device_put(x, own) for x, own in pairs],
  )


@functools.lru_cache(maxsize=256)
def _whole(placement: Placement, number: int) -> jax.Array:
  """An int32 on every device of a mesh."""
  return placement.put_whole(np.int32(number))


def numbers(placement: Placement | None, values: Any) -> Any:
  """A tree of numbers as int32, on every device of a mesh."""
  if placement is None:
    return jax.tree.map(np.int32, values)
  return jax.tree.map(lambda x: _whole(placement, int(x)), values)


def fetch(tree: Any) -> Any:
  """Arrays as numpy, whole, in every process."""
  leaves = jax.tree.leaves(tree)
  if all(getattr(x, 'is_fully_addressable', True) for x in leaves):
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def bytes_per_device(shapes: Any, shardings: Any) -> int:
  """Bytes that each device holds of arrays or their shapes."""

  def size(x, sharding):
    return math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize

  return sum(jax.tree.leaves(jax.tree.map(size, shapes, shardings)))
