"""Calls a sampler of another system, and refuses what it must not do.

  sampler(draft, q, logits, values, uniforms) -> tokens

  draft     [B, K] drafted tokens
  q         [B, K, V] what they were drawn from; None: chosen by other means
  logits    [B, K+1, V] of the target, as its model gives them
  values    temperature, top_k and top_p [B]; 0 is greedy, no top_k is 0, no
            top_p is 1
  uniforms  [B, C] coins from 0 to 1, in float64
  tokens    [B, K+1] with -1 behind the last one, or a list of lists

Arrays are those of numpy, or of torch or JAX where the first parameter is
annotated with such a type; a function of JAX gets few sizes of batches. It is
not judged where it raises a NotImplementedError. It may have attributes:

  coins     (K, V) -> (n, races): C is n + races * V, where n coins are compared
            with thresholds, and the V of a race make exponentials
            (`cells.exponentials`) of which the token with the largest
            weight / exponential wins; K + 1 and 0 by default. None: it draws
            coins of its own, and is judged by simulation alone
  plain     (logits [B, V], values) -> probs [B, V] that its system draws from
            without a draft; by default those of `processed`
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.certify.cells import Coins
from specjax.certify.laws import failed, running
from specjax.errors import UserError, need

_SIZES = 64, 512, 4096  # rows of a call
Values = dict[str, np.ndarray]


def load(name: str) -> Callable:
  """Imports a sampler by its full name.

  Raises:
    UserError: it cannot be imported, or is no function.
  """
  module, _, attribute = name.rpartition('.')
  need(
    module,
    f'foreign: {name!r} has no module: give a full name, as in '
    'my_module.my_sampler',
  )
  with running(f'foreign: {name}', 'its module'):
    try:
      found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
      raise UserError(
        f'foreign: {name!r} cannot be imported ({error}): give the full name '
        'of a function of this folder or of an installed package, and install '
        'what it imports'
      ) from error
  need(
    callable(found),
    f'foreign: {name!r} is no function but {type(found).__name__}: give a '
    'sampler(draft, q, logits, values, uniforms)',
  )
  return found


def processed(logits: np.ndarray, values: Values) -> np.ndarray:
  """Probabilities [..., V] of temperature, top-k and top-p, in that order."""
  temperature, top_k, top_p = (
    np.reshape(values[name], (-1, *[1] * (logits.ndim - 1))).astype(float)
    for name in ('temperature', 'top_k', 'top_p')
  )
  vocab = logits.shape[-1]
  wide = logits.astype(float) - logits.max(-1, keepdims=True)
  probs = np.exp(wide / np.where(temperature > 0, temperature, 1))
  order = np.argsort(-wide, axis=-1, kind='stable')
  rank = np.argsort(order, axis=-1, kind='stable')
  kept = np.where(temperature == 0, 1, np.where(top_k > 0, top_k, vocab))
  probs = np.where(rank < kept, probs, 0)
  probs /= probs.sum(-1, keepdims=True)
  # A token stays where those before it have less than top-p.
  ahead = np.take_along_axis(probs, order, -1).cumsum(-1)
  ahead = np.take_along_axis(ahead, rank, -1) - probs
  probs = np.where(ahead < top_p - 1e-9, probs, 0)
  return probs / probs.sum(-1, keepdims=True)


def _kind(function: Callable) -> str:
  """The library whose arrays a function takes."""
  try:
    first = next(iter(inspect.signature(function).parameters.values()))
  except (TypeError, ValueError, StopIteration):
    return 'numpy'
  note = first.annotation
  text = note if isinstance(note, str) else f'{note.__module__}.{note}'
  return next((x for x in ('torch', 'jax') if x in text), 'numpy')


def _equal(given: np.ndarray, after: Any) -> bool:
  found = np.asarray(after)
  return np.array_equal(given.astype(found.dtype), found)


class Refused(UserError):
  """A sampler does not take an argument."""


class Foreign:
  """A sampler on trial.

  Args:
    name: its full name.
    function: the sampler.
  """

  def __init__(self, name: str, function: Callable):
    self.who = f'foreign: {name}'
    self.function = function
    self.kind = _kind(function)
    self.own_coins = getattr(function, 'coins', True) is None
    self.rows = 0  # that were judged

  def coins(self, gamma: int, vocab: int) -> Coins:
    """Returns the coins of a row."""
    if self.own_coins:
      return Coins(0, 0, vocab)
    count = getattr(self.function, 'coins', None)
    with running(self.who, 'coins'):
      single, races = (gamma + 1, 0) if count is None else count(gamma, vocab)
      return Coins(int(single), int(races), vocab)

  def plain(self, logits: np.ndarray, values: Values) -> np.ndarray:
    """Returns the distributions [B, V] of plain decoding.

    Raises:
      UserError: the sampler's own ones are no distributions.
    """
    own = getattr(self.function, 'plain', None)
    if own is None:
      return processed(logits, values)
    with running(self.who, 'plain'):
      probs = np.asarray(own(*self._given(logits.astype(np.float32), values)))
    fits = probs.shape == logits.shape and (probs >= 0).all()
    need(
      fits and (np.abs(probs.sum(-1) - 1) < 1e-4).all(),
      f'{self.who}: plain must give distributions {list(logits.shape)}, got '
      f'{list(probs.shape)} that add up to {probs.sum(-1).min():.6g}',
    )
    probs = probs.astype(np.float64)
    return probs / probs.sum(-1, keepdims=True)

  def _given(self, *arguments) -> list:
    """Copies of arrays, of the kind that the function takes."""
    makes = {'numpy': np.array, 'jax': jnp.asarray}
    make = makes.get(self.kind) or sys.modules['torch'].tensor
    return jax.tree.map(make, list(arguments))

  def __call__(self, draft, q, logits, values, uniforms) -> np.ndarray:
    """Returns tokens [B, K+1], -1 behind the last one of a row.

    Raises:
      UserError: says what the function does that it must not.
    """
    given = [draft, q, logits, values, uniforms]
    rows = np.arange(len(draft))
    if self.kind == 'jax':  # Every size is a program.
      size = next(x for x in _SIZES if x >= len(rows))
      rows = np.arange(size) % len(rows)
      given = jax.tree.map(lambda x: x[rows], given)
    return self._once(given)[: len(draft)]

  def _once(self, given: list) -> np.ndarray:
    mine = self._given(*given)
    with running(self.who, 'it'):
      try:
        found = self.function(*mine)
      except NotImplementedError as error:
        raise Refused(failed(error)) from error
    names = 'draft', 'q', 'logits', 'values', 'uniforms'
    for name, before, after in zip(names, given, mine, strict=True):
      same = jax.tree.map(_equal, before, after)
      need(
        jax.tree.all(same),
        f'{self.who}: it changes its argument {name}: let it work on a copy',
      )
    rows, gamma = given[0].shape
    self.rows += rows
    return self._checked(found, rows, gamma, given[2].shape[-1])

  def _checked(self, found: Any, rows: int, gamma: int, vocab: int):
    """Tokens [B, K+1] of whatever the function returned."""
    who, width = self.who, gamma + 1
    with running(who, 'what it returns'):
      # Rows of a list may differ in length.
      whole = np.asarray(found) if hasattr(found, 'shape') else None
      lists = found if whole is None else [whole]
      lists = [np.atleast_1d(np.asarray(row)) for row in lists]
      count = len(lists) if whole is None else len(np.atleast_1d(whole))
    need(
      count == rows,
      f'{who}: it returns {count} rows for {rows}: give each row of the batch '
      'its tokens',
    )
    for new in lists:
      if new.size and not np.issubdtype(new.dtype, np.integer):
        raise UserError(
          f'{who}: tokens must be whole numbers, got {new.dtype}'
          f'{list(new.shape)}: return tokens, not probabilities'
        )
    if whole is not None:
      tokens = whole.reshape(rows, -1)
    else:
      tokens = np.full((rows, max(map(len, lists))), -1)
      for row, new in zip(tokens, lists, strict=True):
        row[: len(new)] = new
    wrong = tokens[(tokens < -1) | (tokens >= vocab)]
    need(
      not wrong.size,
      f'{who}: it returns the token {wrong[:1].sum()}, outside of the '
      f'vocabulary of {vocab}: tokens are 0 to {vocab - 1}, and -1 stands '
      'behind the last one',
    )
    count = (tokens >= 0).sum(1)
    need(
      (count > 0).all(),
      f'{who}: it returns no token for a row: a step gives at least one',
    )
    need(
      (count <= width).all(),
      f'{who}: it returns {count.max()} tokens for a draft of {gamma}: a step '
      f'gives at most {width}',
    )
    need(
      ((tokens >= 0) == (np.arange(tokens.shape[1]) < count[:, None])).all(),
      f'{who}: a token stands behind a -1: nothing may follow the last token',
    )
    more = max(width - tokens.shape[1], 0)
    return np.pad(tokens, ((0, 0), (0, more)), constant_values=-1)[:, :width]
