"""Models of other code: two doors, and a check of what comes through them.

A model that leaves its cache to the loop is a `transformer.Model` with `Sizes`
for its config; `check` says what is wrong with one.

A model that owns its cache, as models of most samplers do, is made one by
`adapt`. Each pass writes the cache, rows that are rejected later too. These lie
at or beyond the length of the text, where nothing is seen:

  text     t0 t1 t2      pass   t0 t1 t2 root x0 x1      accepted: root, x1
  slot     0  1  2              0  1  2  3    4  5
                         after  t0 t1 t2 root x1 .
"""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_eos, check_number, named
from specjax.models import transformer
from specjax.models.attention import CacheAttention
from specjax.models.cache import OwnCache
from specjax.models.devices import CPU, DeviceForm
from specjax.models.transformer import Model, Output
from specjax.types import Target


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a model: all that the loop reads of its config.

  Attributes:
    vocab_size: V, entries of the logits.
    width: E, entries of `Output.hidden`.
    num_layers: L, entries of a cache.
    num_kv_heads: G.
    head_dim: D.
    max_positions: tokens of the longest text.

  Raises:
    ValueError: one is no whole number above 0.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_kv_heads: int
  head_dim: int
  max_positions: int

  # There is no encoder and no latent. Weights and caches lie as the model has
  # them.
  encoder: ClassVar[None] = None
  latent: ClassVar[None] = None
  device: ClassVar[DeviceForm] = CPU
  attention: ClassVar[CacheAttention] = staticmethod(CPU.attention)
  native: ClassVar[bool] = False
  skips_padding: ClassVar[bool] = False

  def at(self, layer: int) -> 'Sizes':
    """Returns the sizes of a layer: all have the same."""
    return self

  def source(self, layer: int) -> int:
    """Returns the layer: each has keys and values of its own."""
    return layer

  def has_state(self, layer: int) -> bool:
    """Returns false: a layer of the loop's cache has keys and values."""
    return False

  def attends(self, layer: int) -> bool:
    """Returns true: every layer has attention."""
    return True

  def __post_init__(self):
    for field in dataclasses.fields(self):
      check_number(field.name, getattr(self, field.name), 1)

  def __getattr__(self, name: str) -> Any:
    if name.startswith('_'):
      raise AttributeError(name)
    raise ValueError(
      f'{name} is unknown of a model of other code, which says its sizes '
      'alone: choose a drafter that needs no layers of the target, such as lm, '
      'ngram or suffix, and weights as floats'
    )


def adapt(
  open_cache: Callable[..., Any],
  apply: Callable[..., tuple[jax.Array, Any]],
  *,
  vocab_size: int,
  max_positions: int,
) -> Model:
  """Returns a model that owns its cache as the loop takes one.

  Both functions are pure, are given one text, and are batched by `jax.vmap`.
  Its one layer has its logits for features, so that heads cannot draft for it.

  Args:
    open_cache: (params, slots) -> the empty cache of a text: a pytree of
      arrays, of which those that hold tokens have one axis of so many slots.
    apply: (params, tokens [1, T], positions [1, T], cache, mask [1, T, S],
      end) -> (logits [1, T, V], cache). Token i of these goes to slot end + i
      of S, and sees the slots where its mask is true, its own included.
    vocab_size: V.
    max_positions: tokens of the longest text.

  Raises:
    ValueError: when it is traced: a cache has no slots, or does not come back
      as it went in.
  """
  for name, function in (('open_cache', open_cache), ('apply', apply)):
    if not callable(function):
      raise ValueError(f'{name} must be a function, got {named(function)}')
  sizes = Sizes(vocab_size, vocab_size, 1, 1, 1, max_positions)

  def empty(params, batch, slots):
    one, two = (
      jax.eval_shape(lambda count=count: open_cache(params, count))
      for count in (slots, 2 * slots)
    )
    _, structure = jax.tree.flatten(one)
    leaves = jax.tree.leaves(open_cache(params, slots))
    axes = tuple(
      _slots_axis(slots, x, y)
      for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    )
    if not any(axis is not None for axis in axes):
      raise ValueError(
        'open_cache must return arrays with an axis of so many slots, got '
        f'{_shapes(one)} for {slots}'
      )
    batched = [jnp.broadcast_to(x, (batch, *jnp.shape(x))) for x in leaves]
    return OwnCache(batched, structure, axes)

  def forward(
    params, tokens, positions, cache, length, mask, flight=None, at=0, taps=()
  ):
    batch, count = tokens.shape
    block = mask.shape[2]
    if cache is None:
      cache = empty(params, batch, block)
      length = jnp.zeros(batch, jnp.int32)
    held = cache if flight is None else flight

    def one(tokens, positions, leaves, length, mask):
      rows = jnp.arange(held.slots) - length
      inside = jnp.take(mask, rows, axis=1, mode='clip')
      sees = (rows < 0) | (inside & (rows < block))
      before = jax.tree.unflatten(held.structure, leaves)
      made = apply(
        params, tokens[None], positions[None], before, sees[None], length + at
      )
      if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(
          f'apply must return (logits, cache), got {type(made).__name__}'
        )
      logits, after = made
      if _shapes(after) != _shapes(before):
        raise ValueError(
          'apply must return the cache with the shapes and types that it came '
          f'with, {_shapes(before)}, got {_shapes(after)}'
        )
      if jnp.shape(logits) != (1, count, vocab_size):
        raise ValueError(
          f'apply must return logits {(1, count, vocab_size)}, got '
          f'{jnp.shape(logits)}'
        )
      return logits[0], jax.tree.leaves(after)

    logits, leaves = jax.vmap(one)(tokens, positions, held.leaves, length, mask)
    after = dataclasses.replace(held, leaves=leaves, block=block)
    tapped = jnp.repeat(logits[:, :, None], len(taps), 2)
    return Output(logits, tapped, after)

  def init(key):
    raise ValueError('a model of other code makes its own weights')

  return Model(sizes, init, forward, lambda params, hidden: hidden, empty=empty)


def check_kinds(model: Any, params: Any) -> None:
  """Raises a ValueError unless a model and its weights are of the right kinds.

  No weight is looked at.
  """
  if not isinstance(model, Model):
    raise ValueError(
      'model must be a specjax.Model or what specjax.adapt returns, got '
      f'{type(model).__name__}; of a module give functions of its weights, as '
      'nnx.split and nnx.merge make them'
    )
  nnx = sys.modules.get('flax.nnx')  # A module is of it only where it is there.
  if nnx is not None and isinstance(params, nnx.Module):
    raise ValueError(
      'params must be a pytree of arrays, got the nnx module '
      f'{type(params).__name__}; give its state, nnx.split(module)[1]'
    )
  leaves = jax.tree.leaves(params)
  other = [x for x in leaves if not isinstance(x, jax.Array | np.ndarray)]
  if other or not leaves:
    got = type(other[0]).__name__ if other else 'nothing'
    raise ValueError(f'params must be a pytree of arrays, got one with {got}')
  if not any(jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
    raise ValueError('params must hold weights in floats, got integers alone')


def as_target(
  model: Model, params: Any, tokenizer: Any, eos: tuple[int, ...]
) -> Target:
  """Returns a target; see `Target.of`."""
  check_kinds(model, params)
  if tokenizer is not None:
    for name in ('encode', 'decode'):
      if not callable(getattr(tokenizer, name, None)):
        raise ValueError(
          f'tokenizer must have the methods encode and decode, got '
          f'{type(tokenizer).__name__} without {name}'
        )
  if not isinstance(eos, tuple | list) or eos:
    check_eos(model.config.vocab_size, eos)
  return Target(
    model,
    jax.tree.map(jnp.asarray, params),
    tokenizer=tokenizer,
    eos=tuple(map(int, eos)),
    fingerprint=functools.partial(fingerprint, params),
    max_length=model.config.max_positions,
    dtype=transformer.dtype_of(params).name,
  )


def fingerprint(params: Any) -> str:
  """Returns a hash of the names, shapes and values of weights."""
  digest = hashlib.sha256()
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    digest.update(f'{jax.tree_util.keystr(path)} {x.dtype}{x.shape}\n'.encode())
    digest.update(np.asarray(x).tobytes())
  return digest.hexdigest()


def _slots_axis(slots: int, one: Any, two: Any) -> int | None:
  """Returns the axis that has so many slots, and twice as many in another."""
  pairs = zip(one.shape, two.shape, strict=True)
  grown = [axis for axis, (a, b) in enumerate(pairs) if a != b]
  sizes = [(one.shape[axis], two.shape[axis]) for axis in grown]
  if grown and sizes != [(slots, 2 * slots)]:
    raise ValueError(
      f'open_cache must return arrays with one axis of {slots} slots, or none, '
      f'got {one.shape}, and {two.shape} for twice as many'
    )
  return grown[0] if grown else None


def _shapes(tree: Any) -> Any:
  return jax.tree.map(lambda x: f'{x.dtype}{list(x.shape)}', tree)
