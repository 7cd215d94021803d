"""Checks of arguments: each error names the argument and the remedy."""

import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import (
  Counts,
  Drafter,
  LoadedDrafter,
  Params,
  Rule,
  Sampling,
  Spec,
  SpecState,
  Target,
)

BOUND = 2**31  # of what a device counts
SEEDS = 2**32  # Larger ones would give the keys of smaller ones.


def named(value: Any) -> str:
  """Returns a value as messages show it: its type, and its beginning."""
  text = repr(value)
  shown = text if len(text) < 60 else f'{text[:57]}...'
  return f'{type(value).__name__} {shown}'


def is_whole(value: Any) -> bool:
  """Returns whether a value is an integer, and not a truth value."""
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_number(
  name: str, value: Any, least: int, bound: int | None = None
) -> None:
  """Raises a ValueError unless a value is an integer in [least, bound)."""
  if (
    not is_whole(value)
    or value < least
    or (bound is not None and value >= bound)
  ):
    more = '' if bound is None else f' and below {bound}'
    raise ValueError(
      f'{name} must be a whole number of at least {least}{more}, got '
      f'{named(value)}'
    )


def check_numbers(name: str, values: Any, least: int) -> None:
  """Raises a ValueError unless values are integers of at least `least`."""
  if not isinstance(values, tuple | list) or not all(
    is_whole(x) and x >= least for x in values
  ):
    raise ValueError(
      f'{name} must be integers of at least {least}, such as (2, 1), got '
      f'{named(values)}'
    )


def check_tokens(name: str, tokens: Any, vocab_size: int | None) -> None:
  """Raises a ValueError unless tokens are of a vocabulary, which is known."""
  if vocab_size is None:
    raise ValueError(f'{name} needs a vocabulary: give vocab_size')
  for token in tokens:
    if not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
      raise ValueError(
        f'{name} must name tokens from 0 to {vocab_size - 1}, got {token!r}'
      )


def _check_type(name: str, value: Any, kind: type, wanted: str) -> None:
  if not isinstance(value, kind):
    raise ValueError(f'{name} must be {wanted}, got {named(value)}')


def check_target(target: Any) -> None:
  """Raises a ValueError unless drafters can be loaded for a target."""
  _check_type('target', target, Target, 'what specjax.load returns')


def check_pair(target: Any, drafter: Any) -> None:
  """Raises a ValueError unless a target and a drafter can decode."""
  check_target(target)
  if target.params is None:
    raise ValueError('target has no weights: load it with specjax.load')
  if drafter is None:
    return
  if not isinstance(drafter, LoadedDrafter):
    raise ValueError(
      'drafter must be what a loader returns, such as '
      'specjax.drafters.lm.load(target, path), or None for plain decoding, '
      f'got {named(drafter)}'
    )
  if drafter.model != target.model:
    raise ValueError(
      'drafter was loaded for another target: load it with this one'
    )


def check_path(path: Any, what: str) -> None:
  """Raises a ValueError unless a path can name a directory."""
  if not path or not isinstance(path, str | os.PathLike):
    raise ValueError(f'path must be the directory of {what}, got {named(path)}')


def check_no_path(path: Any) -> None:
  """Raises a ValueError unless a drafter without weights has no path."""
  if path != '':
    raise ValueError(
      f'path is {named(path)}, but this drafter has no weights of its own: '
      'leave it out'
    )


def misfit(
  given: Any, wanted: Any, of: Callable[[Any], Any] = jnp.shape
) -> str:
  """Says where a tree of arrays first differs from another; '' if nowhere.

  Args:
    given: the tree.
    wanted: the other one.
    of: returns what must be the same of two arrays.
  """
  ours, theirs = (
    {
      jax.tree_util.keystr(at): of(x)
      for at, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (given, wanted)
  )
  for at in theirs | ours:
    mine, other = (x.get(at, 'not there') for x in (ours, theirs))
    if mine != other:
      return f'{at} is {mine} and should be {other}'
  nested: Any = jax.tree.structure
  return '' if nested(given) == nested(wanted) else ' is nested in another way'


def check_eos(vocab_size: int, eos: Any) -> None:
  """Raises a ValueError unless a text can end with tokens of a vocabulary."""
  ids = list(eos) if isinstance(eos, list | tuple | np.ndarray) else None
  if not ids or not all(is_whole(x) and 0 <= x < vocab_size for x in ids):
    raise ValueError(
      'eos must be the tokens that end a text, at least one from 0 to '
      f'{vocab_size - 1}, got {named(eos)}'
    )


def check_rule(rule: Any) -> None:
  """Raises a ValueError for a rule's name, or a rule without its numbers."""
  if not isinstance(rule, Rule):
    call = ' (call it first, with its numbers)' if callable(rule) else ''
    raise ValueError(
      'rule must be a rule of specjax.verify, such as specjax.verify.block, '
      f'got {named(rule)}{call}'
    )


def check_spec(spec: Any) -> None:
  """Raises a ValueError for a spec that cannot run, before it is traced."""
  _check_type('spec', spec, Spec, 'a specjax.types.Spec')
  if not hasattr(spec.target, 'forward'):
    raise ValueError(
      'spec.target must be a model, such as specjax.load(path).model, got '
      f'{named(spec.target)}'
    )
  if isinstance(spec.drafter, LoadedDrafter):
    raise ValueError(
      'spec.drafter has no draft length yet: give loaded.make(gamma), not what '
      'its loader returned'
    )
  drafter = 'a specjax.Drafter, such as loaded.make(gamma)'
  _check_type('spec.drafter', spec.drafter, Drafter, drafter)
  check_rule(spec.rule)
  if not isinstance(spec.eos, tuple) or not all(map(is_whole, spec.eos)):
    raise ValueError(
      f'spec.eos must be a tuple of token ids, got {named(spec.eos)}'
    )


def check_params(params: Any) -> None:
  """Raises a ValueError for the weights of one model alone."""
  if not isinstance(params, Params):  # Their repr would be long.
    raise ValueError(
      'params must be specjax.types.Params(target.params, drafter.params), got '
      f'{type(params).__name__}'
    )


def check_values(values: Any) -> None:
  """Raises a ValueError for a temperature in place of sampling values."""
  made = 'specjax.sampling.make'
  wanted = f'what {made} returns, such as {made}(rows, temperature)'
  _check_type('values', values, Sampling, wanted)


def check_keys(key: Any) -> None:
  """Raises a ValueError unless there is an array of random keys, one a row."""
  dtype = getattr(key, 'dtype', None)
  if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
    shown = named(key)
  elif key.ndim != 1:
    shown = f'an array of shape {key.shape}'
  else:
    return
  raise ValueError(
    'key must be one random key a row, such as '
    f'specjax.loop.generate.row_keys(seed, range(rows)), got {shown}'
  )


def rows_of(seed: Any, indices: Any) -> np.ndarray:
  """Returns indices of rows as an array; checks them and the seed."""
  check_number('seed', seed, 0, SEEDS)
  rows = np.asarray(indices)
  whole = rows.size == 0 or np.issubdtype(rows.dtype, np.integer)
  if rows.ndim != 1 or not whole or (rows < 0).any() or (rows >= SEEDS).any():
    raise ValueError(
      'indices must be one whole number a row, from 0 on, such as range(rows), '
      f'got {named(indices)}'
    )
  return rows.astype(np.uint32)


def check_state(state: Any, spec: Spec) -> None:
  """Raises a ValueError for a state of another spec, or one used up.

  The buffers of a state that was used up belong to an earlier call.
  """
  _check_type('state', state, SpecState, 'what generate.start returns')
  depth = spec.drafter.depth
  # A loop that measures may keep other counts.
  if isinstance(state.counts, Counts) and state.counts.tried.shape[1] != depth:
    raise ValueError(
      f'state has a draft length of {state.counts.tried.shape[1]}, but '
      f'spec.drafter drafts {depth}: give the spec that generate.start had'
    )
  tokens = state.tokens
  if isinstance(tokens, jax.core.Tracer) or not isinstance(tokens, jax.Array):
    return
  if tokens.is_deleted():
    raise ValueError(
      'state was used up: generate takes over the buffers of the state that it '
      'is given; go on with the state that it returned, or make a new one with '
      'generate.start'
    )


def int32_steps(steps: Any) -> Any:
  """Returns a number of steps, or several, as int32: one program for all.

  A number on a device is not looked at: that would be to wait for it.

  Raises:
    ValueError: a number is no integer that fits.
  """

  def one(value):
    if isinstance(value, jax.Array):
      return value
    check_number('steps', value, 0, BOUND)
    return jax.device_put(np.int32(value))

  return jax.tree.map(one, steps)


def token_ids(target: Target, prompts: Any) -> list[list[int]]:
  """Returns prompts as lists of token ids; they may be texts."""
  if isinstance(prompts, str):
    prompts = [prompts]
  if not isinstance(prompts, Sequence) or not len(prompts):
    raise ValueError(
      'prompts must be a text, or a list of texts or of lists of token ids, '
      f'got {named(prompts)}'
    )
  return [
    _ids_of(target, f'prompt {i}', prompt) for i, prompt in enumerate(prompts)
  ]


def predictions(target: Target, prediction: Any, count: int) -> list[list[int]]:
  """Returns the predicted token ids of each prompt, which may be none."""
  rows = prediction
  if isinstance(prediction, str):
    rows = [prediction] * count
  if not isinstance(rows, list | tuple) or len(rows) != count:
    raise ValueError(
      f'prediction must be a text, or a list of {count}, one a prompt, each a '
      f'text, token ids or None, got {named(prediction)}'
    )
  return [
    [] if row is None else _ids_of(target, f'prediction {i}', row, False)
    for i, row in enumerate(rows)
  ]


def _ids_of(
  target: Target, name: str, given: Any, special: bool = True
) -> list[int]:
  """Returns token ids of a text, with its special tokens or without."""
  if isinstance(given, str):
    if target.tokenizer is None:
      raise ValueError(
        f'{name} is a text, but {target.path or "the target"} has no '
        'tokenizer: give token ids'
      )
    try:
      given.encode()
    except UnicodeEncodeError as error:
      raise ValueError(
        f'{name} is no text: character {error.start} is half of a '
        'surrogate pair, remove it'
      ) from error
    more = {} if special else {'add_special_tokens': False}
    return [int(token) for token in target.tokenizer.encode(given, **more)]
  ids = np.asarray(given)
  if ids.ndim != 1 or not (
    ids.size == 0 or np.issubdtype(ids.dtype, np.integer)
  ):
    raise ValueError(
      f'{name} must be a text or a list of token ids, got {named(given)}'
    )
  return [int(token) for token in ids]


def lengths(new_tokens: Any, count: int) -> np.ndarray:
  """Returns the tokens to add to each prompt, [B]."""
  if not isinstance(new_tokens, list | tuple | np.ndarray):
    check_number('new_tokens', new_tokens, 1, BOUND)
    return np.full(count, new_tokens)
  if len(new_tokens) != count:
    raise ValueError(
      f'new_tokens has {len(new_tokens)} entries for {count} prompts: give one '
      'number, or one for each'
    )
  for number in new_tokens:
    check_number('new_tokens', number, 1, BOUND)
  return np.asarray(new_tokens)
