"""Layer skipping: the target drafts for itself without some of its sub-layers.

Zhang et al., arXiv:2309.08168, Draft & Verify; Xia et al., arXiv:2410.06916,
SWIFT. Every layer adds its attention and its MLP to a stream, so that any of
them can be left out. Those that are kept read the target's own cache and
weights, as in `early_exit`: nothing is copied and nothing remembered.

Which ones can be missed is found on a text: `search` leaves out one after the
other, always the one without which the model says the target's greedy token
most often. The papers look for sets by Bayesian optimisation, the second on the
text at hand; of few layers one by one is as good and needs no library.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import (
  check_no_path,
  check_number,
  check_numbers,
  check_target,
)
from specjax.drafters import early_exit
from specjax.drafters.shapes import shape
from specjax.drafters.shapes.step_model import Walker
from specjax.models import transformer, variants
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

# What adds to the stream, by its parameters: nothing is added where they are 0.
_ATTENTION = 'out', 'mixer', 'post1'
_MLP = 'down', 'experts', 'experts_out', 'shared_down', 'post2'


def _check(target: Model, name: str, layers: tuple[int, ...]) -> None:
  """Raises a ValueError where the target has no such layer."""
  check_numbers(name, layers, 0)
  count = target.config.num_layers
  if any(layer >= count for layer in layers):
    raise ValueError(
      f'{name} is {tuple(layers)}, but the layers of the target are 0 to '
      f'{count - 1}: choose from these'
    )


@functools.cache
def walk(
  target: Model, attention: tuple[int, ...], mlp: tuple[int, ...]
) -> Walker:
  """The walker without some sub-layers; see `variants.without`."""
  fewer = variants.without(target, attention, mlp)
  return early_exit.walk(fewer, target.config.num_layers)


def load(
  target: Target,
  path: Literal[''] = '',
  skip: tuple[int, ...] = (),
  skip_attention: tuple[int, ...] = (),
  skip_mlp: tuple[int, ...] = (),
  **options: Any,
) -> LoadedDrafter:
  """The drafter of a target without some sub-layers.

  Args:
    target: what is drafted for.
    path: empty: there are no weights but the target's.
    skip: layers that are left out as a whole, from 0.
    skip_attention: layers whose attention is left out.
    skip_mlp: layers whose MLP is.
    **options: of `shapes.shape.Shape`.

  Raises:
    ValueError: there is no such layer, or nothing is left out, or all.
  """
  check_no_path(path)
  shape.check(target, options)
  model = target.model
  given = {'skip': skip, 'skip_attention': skip_attention, 'skip_mlp': skip_mlp}
  for name, layers in given.items():
    _check(model, name, layers)
  attention, mlp = (
    tuple(sorted({*skip, *part})) for part in (skip_attention, skip_mlp)
  )
  if not attention and not mlp:
    raise ValueError(
      'skip, skip_attention and skip_mlp are empty, and the whole target saves '
      'nothing: name layers to leave out, see specjax.drafters.skip.search'
    )
  fewer = variants.without(model, attention, mlp).config
  before = model.config.without_attention, model.config.without_mlp
  if before == (fewer.without_attention, fewer.without_mlp):
    raise ValueError(
      'skip, skip_attention and skip_mlp name only parts that the target does '
      'not have: see specjax.drafters.skip.search'
    )
  gone = {*fewer.without_attention} & {*fewer.without_mlp}
  if len(gone) == fewer.num_layers:
    raise ValueError(
      f'skip: all {model.config.num_layers} layers are left out; keep the '
      'attention or the MLP of one'
    )
  return shape.load(target, walk(model, attention, mlp), options, None)


@functools.partial(jax.jit, static_argnames='model')
def _says(model: Model, params, tokens, attention, mlp):
  """Greedy tokens [B, T] with sub-layers times 0 or 1, both [L]."""

  def times(gate, x):
    # Of weights in eight bits the scales.
    return (
      x * gate.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
    )

  gated = dict(params)
  for i in range(model.config.num_layers):
    layer = dict(params[f'layer{i}'])
    for names, gates in ((_ATTENTION, attention), (_MLP, mlp)):
      for name in set(names) & set(layer):
        one = functools.partial(times, gates[i])
        layer[name] = jax.tree.map(one, layer[name])
    gated[f'layer{i}'] = layer
  return transformer.score(model, gated, tokens).argmax(-1)


def _texts(target: Target, tokens: Any) -> np.ndarray:
  """Texts [B, T] as an array.

  Raises:
    ValueError: they are none, or of other lengths or tokens.
  """
  vocab = target.model.config.vocab_size
  try:
    ids = np.asarray(tokens)
  except ValueError:  # Of texts of several lengths.
    ids = np.zeros(0)
  whole = ids.ndim == 2 and ids.size and np.issubdtype(ids.dtype, np.integer)
  if not whole or ids.min() < 0 or ids.max() >= vocab:
    raise ValueError(
      'tokens must be texts of one length, integers [B, T] from 0 to '
      f'{vocab - 1}, got {type(tokens).__name__} {np.shape(ids)}'
    )
  return ids


def matches(
  target: Target, tokens, attention: tuple[int, ...], mlp: tuple[int, ...]
) -> float:
  """How often the target says the same without some sub-layers.

  Args:
    target: with its weights.
    tokens: [B, T] whole texts, such as the target writes.
    attention: layers whose attention is left out, from 0.
    mlp: layers whose MLP is.

  Returns:
    The share of positions where the greedy tokens are the same.

  Raises:
    ValueError: there is no such layer, or the texts are none.
  """
  for name, layers in (('attention', attention), ('mlp', mlp)):
    _check(target.model, name, layers)
  tokens = _texts(target, tokens)
  every = jnp.ones(target.model.config.num_layers)
  said = functools.partial(_says, target.model, target.params, tokens)
  gates = (every.at[jnp.array(x, int)].set(0) for x in (attention, mlp))
  return float((said(*gates) == said(every, every)).mean())


def search(
  target: Target, tokens, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """The sub-layers that are missed least, found one after the other.

  One program is compiled, and run count times the number of sub-layers.

  Args:
    target: with its weights.
    tokens: as `matches` takes them; not those that are drafted for later.
    count: of sub-layers to leave out, an attention or an MLP each.

  Returns:
    `skip_attention` and `skip_mlp` as `load` takes them.

  Raises:
    ValueError: the target has no more sub-layers than are to be left out, or
      the texts are none.
  """
  check_target(target)
  check_number('count', count, 1)
  config = target.model.config
  layers = range(config.num_layers)
  absent = config.without_attention, config.without_mlp
  every = 2 * len(layers) - sum(map(len, absent))
  if count >= every:
    raise ValueError(
      f'count is {count}, but the target has {every} sub-layers: choose fewer'
    )
  tokens = _texts(target, tokens)
  chosen: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
  for _ in range(count):
    attention, mlp = chosen
    longer = [
      (tuple(sorted((*attention, i))), mlp)
      for i in layers
      if i not in (*attention, *absent[0])
    ] + [
      (attention, tuple(sorted((*mlp, i))))
      for i in layers
      if i not in (*mlp, *absent[1])
    ]
    chosen = max(longer, key=lambda sets: matches(target, tokens, *sets))
  return chosen
