"""The check of a model: does it keep to what the loop asks of one?

Logits of short random texts are compared with those of the same texts alone and
without a cache. So a wrong answer of the model itself is not seen, and neither
is an effect that its weights make smaller than rounding.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.errors import first_line
from specjax.models import cache as caches
from specjax.models import own, prefill, transformer
from specjax.models.transformer import Model
from specjax.types import KV, KVState, Weights

# A root, two children of it, and a child of the first.
_PARENTS = np.array([0, 0, 1])
_PATHS = ((0,), (0, 1), (0, 2), (0, 1, 3))
_LENGTHS = 7, 2, 5  # of texts, the root included
_SLOTS = 32
_STEPS = 512  # of rounding that two ways to the same logits may be apart
_FAR = 100.0  # in slots that nobody may read


class _Checked:
  """A model with texts, and the passes that they are compared by."""

  def __init__(self, model: Model, params: Weights):
    self.model, self.params = model, params
    sizes = model.config
    rng = np.random.default_rng(0)
    shape = len(_LENGTHS), max(_LENGTHS)
    self.tokens = rng.integers(0, sizes.vocab_size, shape).astype(np.int32)
    self.drafted = rng.permutation(sizes.vocab_size)[: len(_PARENTS)]
    self.pass_of = jax.jit(model.forward, static_argnames='taps')
    self.read = jax.jit(functools.partial(prefill.prefill, model))
    self.project = jax.jit(model.head)

  def head(self, hidden: jax.Array) -> np.ndarray:
    return np.asarray(self.project(self.params, hidden), np.float64)

  def whole(self, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of texts, each read as a whole."""
    mask, positions = transformer.causal(*tokens.shape)
    out = self.pass_of(self.params, tokens, positions, None, None, mask)
    return self.head(out.hidden)

  def block(self, row: int | slice = slice(None)):
    """Tokens, depths and mask of a tree behind each text, B rows."""
    depth, mask = trees.ancestors(np.array(_PARENTS))
    lengths = np.array(_LENGTHS)[row]
    last = self.tokens[row][np.arange(len(lengths)), lengths - 1]
    nodes = np.broadcast_to(self.drafted, (len(lengths), len(self.drafted)))
    tokens = np.concatenate([last[:, None], nodes], 1).astype(np.int32)
    return tokens, depth, jnp.broadcast_to(mask, (len(lengths), *mask.shape))

  def paths(self) -> np.ndarray:
    """Logits [B, N + 1, V] of the nodes, each from its own text as a whole.

    Zeros behind a text give all texts one length, so one program reads them.
    No token of a text sees the zeros.
    """
    found = []
    longest = max(_LENGTHS) + max(map(len, _PATHS)) - 1
    for length, text in zip(_LENGTHS, self.tokens, strict=True):
      for path in _PATHS:
        end = length + len(path) - 1
        padded = np.zeros((1, longest), np.int32)
        padded[0, :length] = text[:length]
        padded[0, length:end] = [self.drafted[row - 1] for row in path[1:]]
        found.append(self.whole(padded)[0, end - 1])
    return np.reshape(found, (len(_LENGTHS), len(_PATHS), -1))

  def cached(self, row: slice = slice(None), spoil: bool = False):
    """A cache that has read the texts, and the tokens in it [B]."""
    lengths = jnp.asarray(_LENGTHS)[row]
    count = len(lengths)
    tokens = jnp.zeros((count, _SLOTS), jnp.int32)
    tokens = tokens.at[:, : max(_LENGTHS)].set(self.tokens[row])
    cache = transformer.open_cache(self.model, self.params, count, _SLOTS)
    cache, _ = self.read(self.params, tokens, lengths, cache)
    used = lengths - 1
    return (_spoiled(cache, used) if spoil else cache), used

  def scored(self, row: slice = slice(None), spoil: bool = False) -> np.ndarray:
    """Logits [B, N + 1, V] of the tree behind a cache, in one pass."""
    cache, used = self.cached(row, spoil)
    tokens, depth, mask = self.block(row)
    positions = used[:, None] + depth
    out = self.pass_of(self.params, tokens, positions, cache, used, mask)
    return self.head(out.hidden)

  def stepwise(self) -> np.ndarray:
    """Logits [B, N + 1, V] of the tree, each token in a pass of its own."""
    cache, used = self.cached()
    tokens, depth, mask = self.block()
    flight = caches.open_block(cache, self.model.config, mask.shape[-1])
    found = []
    for at in range(mask.shape[-1]):
      here = slice(at, at + 1)
      out = self.pass_of(
        self.params,
        tokens[:, here],
        used[:, None] + depth[here],
        cache,
        used,
        mask[:, here],
        flight,
        at,
      )
      flight = out.flight
      found.append(self.head(out.hidden)[:, 0])
    return np.stack(found, 1)


def _spoiled(cache: Any, used: jax.Array) -> Any:
  """A cache with other values in all slots that are not in use."""

  def spoil(x, axis):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    slots = jnp.arange(x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    free = slots.reshape(shape) >= used.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(free, _FAR, x).astype(x.dtype)

  return caches.change(cache, spoil)


def _check_shapes(it: _Checked) -> None:
  """Checks the shapes and types of a pass behind a cache."""
  sizes, (batch, slots) = it.model.config, (len(_LENGTHS), _SLOTS)
  tokens, depth, mask = it.block()
  count = mask.shape[-1]
  used = jnp.asarray(_LENGTHS) - 1
  taps = (0,) if it.model.empty is None else ()

  def feed(params):
    cache = transformer.open_cache(it.model, params, batch, slots)
    inputs = tokens, used[:, None] + depth, cache, used, mask
    return it.model.forward(params, *inputs, taps=taps)

  try:
    out = jax.eval_shape(feed, it.params)
  except Exception as error:  # Other code may raise anything.
    raise ValueError(
      f'model: forward fails ({type(error).__name__}: {first_line(error)}); '
      'are these '
      'params of this model, and its functions those of specjax.Model or of '
      'specjax.adapt?'
    ) from error
  if not isinstance(out, transformer.Output):
    raise ValueError(
      'model: forward must return a specjax.Output(hidden, taps, flight), got '
      f'{type(out).__name__}'
    )
  wanted: dict[str, Any] = {'hidden': (out.hidden, (batch, count, sizes.width))}
  if it.model.empty is None:
    flight = out.flight
    wanted['taps of one layer'] = out.taps, (batch, count, 1, sizes.width)
    if len(flight) != sizes.num_layers:
      raise ValueError(
        f'model: flight must have a KV for each of the {sizes.num_layers} '
        f'layers, got {len(flight)}'
      )
    for i, kv in enumerate(flight):
      if not isinstance(kv, KV | KVState):
        raise ValueError(
          f'model: flight[{i}] must be a specjax.KV, got {type(kv).__name__}'
        )
      heads, key, value = caches.heads(sizes, i)
      wanted[f'flight[{i}].k'] = kv.k, (batch, heads, key, count)
      wanted[f'flight[{i}].v'] = kv.v, (batch, heads, count, value)
  for name, (x, shape) in wanted.items():
    if x.shape != shape:
      raise ValueError(
        f'model: {name} must have the shape {shape}, got {x.shape}'
        + ' (the rows of the tokens fed, not the cache)' * ('flight' in name)
      )
  logits = jax.eval_shape(it.model.head, it.params, out.hidden)
  if logits.shape != (batch, count, sizes.vocab_size):
    raise ValueError(
      'model: head must return logits of the shape '
      f'{(batch, count, sizes.vocab_size)}, got {logits.shape}'
    )
  least = transformer.dtype_of(it.params)
  if jnp.finfo(logits.dtype).bits < jnp.finfo(least).bits:
    raise ValueError(
      f'model: logits are {logits.dtype} and weights {least}: give logits of '
      'at least as many bits, or tokens that differ are tied'
    )


def check_model(model: Model, params: Weights) -> None:
  """Checks that a model keeps to what the loop asks of one.

  It takes a few dozen passes over texts of some tokens. Weights so small
  that a part of the model has no effect hide what is wrong with it.

  Args:
    model: a `Model`, or what `adapt` returns.
    params: its weights.

  Raises:
    ValueError: it does not; one sentence says how.
  """
  own.check_kinds(model, params)
  if model.encode is not None:
    raise ValueError('model: an encoder-decoder is not checked; give a decoder')
  longest = max(_LENGTHS) + len(_PARENTS)
  if model.config.max_positions < longest or model.config.vocab_size < 4:
    raise ValueError(
      f'model: at least {longest} positions and 4 tokens are needed to check '
      f'it, got {model.config.max_positions} and {model.config.vocab_size}'
    )
  it = _Checked(model, params)
  _check_shapes(it)
  whole = it.whole(it.tokens)
  if not np.isfinite(whole).all():
    raise ValueError('model: logits are not finite: are the weights right?')
  step = _STEPS * float(jnp.finfo(transformer.dtype_of(params)).eps)
  near = step * max(1.0, float(np.abs(whole).max()))

  def need(a: np.ndarray, b: np.ndarray, what: str) -> None:
    apart = float(np.abs(a - b).max())
    if not apart <= near:
      raise ValueError(
        f'model: {what} (logits are up to {apart:.2g} apart, and rounding '
        f'explains {near:.2g})'
      )

  need(it.whole(it.tokens), whole, 'the same call gives other logits')
  other = it.tokens.copy()
  other[:, -1] = (other[:, -1] + 1) % model.config.vocab_size
  need(
    it.whole(other)[:, :-1],
    whole[:, :-1],
    'it ignores the mask: a token changes the logits before it',
  )
  for row in range(len(it.tokens)):
    need(
      it.whole(it.tokens[row : row + 1])[0],
      whole[row],
      'rows of a batch change each other',
    )
  paths = it.paths()
  # Each row alone, and only what a plain step needs of it.
  alone = np.concatenate(
    [it.scored(slice(row, row + 1)) for row in range(len(_LENGTHS))]
  )
  need(
    alone[:, 0],
    paths[:, 0],
    'a token behind a cache is not scored as in the whole text: it ignores the '
    'length, the positions or the cache',
  )
  need(
    it.scored(slice(0, 1), spoil=True)[:, 0],
    paths[:1, 0],
    'it reads slots of the cache at or beyond the length, or writes elsewhere '
    'than from there on',
  )
  need(
    alone,
    paths,
    'nodes of a tree are not scored as the text of their path: it ignores the '
    'mask or the positions, and takes rows for them',
  )
  need(it.scored(), paths, 'rows of other lengths change the logits of a row')
  need(
    it.scored(spoil=True),
    paths,
    'it reads slots at or beyond the length of a row',
  )
  need(
    it.stepwise(),
    paths,
    'a block that is fed token by token (flight, at) is not scored as at once',
  )
