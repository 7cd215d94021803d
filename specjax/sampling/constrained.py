"""The automata of rows: checked beside the other stages, and as tables."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import jax
import numpy as np

from specjax.sampling.automaton import Automaton
from specjax.types import Constraint

# Tables have the next of these sizes, so that few programs serve all.
_FEWEST = 64, 32  # states and classes


def _open(automaton: Automaton, closed: Collection[int]):
  """Where tokens that are not closed lead: [Q, -], and which states may end."""
  tokens = np.ones(len(automaton.classes), bool)
  tokens[list(closed)] = False
  ends = np.zeros_like(tokens)
  ends[list(automaton.eos)] = True
  inside = np.unique(automaton.classes[tokens & ~ends])
  last = np.unique(automaton.classes[tokens & ends])
  return automaton.next[:, inside], (automaton.next[:, last] >= 0).any(1)


def _after(onward: np.ndarray, states: np.ndarray) -> np.ndarray:
  """The states [Q] that one token leads to from some of them."""
  found = np.zeros_like(states)
  leads = onward[states]
  found[leads[leads >= 0]] = True
  return found


def _reached(states: np.ndarray, further: Callable) -> np.ndarray:
  """Some states [Q] and all that `further` reaches from them."""
  while ((more := states | further(states)) != states).any():
    states = more
  return states


def stuck(automaton: Automaton, closed: Collection[int], least: int) -> str:
  """Why some text cannot be brought to its end; empty where all can.

  Args:
    automaton: that says what may come.
    closed: tokens that never come.
    least: tokens that come before one that ends a text.
  """
  onward, ends = _open(automaton, closed)
  here = np.arange(len(automaton.next)) == 0
  seen: set[bytes] = set()
  for count in range(least):
    if not (onward[here] >= 0).any(1).all():
      return f'a text of {count} tokens cannot go on, and may not end'
    if (key := here.tobytes()) in seen:
      break  # What follows was looked at.
    seen.add(key)
    here = _after(onward, here)
  here = _reached(here, lambda states: _after(onward, states))
  finishes = _reached(
    ends, lambda states: ((onward >= 0) & states[onward]).any(1)
  )
  if (here & ~finishes).any():
    return 'some texts cannot be brought to their end'
  return ''


def shortest(automaton: Automaton, least: int) -> int:
  """Tokens of the shortest text, with that which ends it.

  Args:
    automaton: that says what may come.
    least: tokens that come before one that ends a text; every text has a way
      to its end, see `stuck`.
  """
  onward, _ = _open(automaton, ())
  here = np.arange(len(automaton.next)) == 0
  seen: dict[bytes, int] = {}
  count = 0
  while count < least:
    period = count - seen.setdefault(here.tobytes(), count)
    if 0 < period <= least - count:
      count += (least - count) // period * period
    else:
      here = _after(onward, here)
      count += 1
  return least + int(automaton.distance[here].min())


def _next_size(size: int, fewest: int) -> int:
  return max(fewest, 1 << (size - 1).bit_length())


def of_rows(
  batch: int, value: Any, vocab_size: int | None, eos: Sequence[int]
) -> list[Automaton | None] | None:
  """The automaton of every row; None where no row has one.

  Args:
    batch: B.
    value: one for all rows, or B, some of them None.
    vocab_size: V.
    eos: tokens that end a text.

  Raises:
    ValueError: it is none, or was made for other tokens.
  """
  if value is None:
    return None
  several = isinstance(value, list | tuple)
  rows = list(value) if several else [value] * batch
  if len(rows) != batch:
    raise ValueError(f'constraint has {len(rows)} rows instead of {batch}')
  if all(one is None for one in rows):
    return None
  if not eos:
    raise ValueError(
      'constraint needs a token that ends the text: give eos, or leave it out'
    )
  for one in {id(one): one for one in rows}.values():
    if one is None:
      continue
    if not isinstance(one, Automaton):
      raise ValueError(
        'constraint must be made by specjax.constraints, such as '
        f'specjax.constraints.regex, got {one!r}'
      )
    if len(one.classes) != vocab_size or set(one.eos) != set(eos):
      raise ValueError(
        f'constraint: {one.what} was made for {len(one.classes)} tokens and '
        f'eos {one.eos}, but here are {vocab_size} and {tuple(eos)}: compile '
        'it for this target'
      )
  return rows


def check_ways(
  rows: Sequence[Automaton | None], least: Any, forbidden: Any
) -> None:
  """Checks that other stages leave every text a way to its end.

  Args:
    rows: the automaton of each.
    least: [B] tokens that come before one that ends a text, or None.
    forbidden: [B, V] tokens that never come, or None.

  Raises:
    ValueError: some text cannot go on, and may not end.
  """
  seen: set[Any] = set()
  # One look at the device, and not one for each row.
  least, forbidden = jax.device_get((least, forbidden))
  for row, one in enumerate(rows):
    if one is None:
      continue
    closed = () if forbidden is None else np.flatnonzero(forbidden[row])
    wait = 0 if least is None else int(least[row])
    key = one, tuple(closed), wait
    if key in seen or not (wait or len(closed)):
      continue
    seen.add(key)
    if reason := stuck(one, closed, wait):
      raise ValueError(
        f'forbidden and min_new_tokens must leave every text of {one.what} a '
        f'way to its end: {reason}'
      )


def tables(
  rows: Sequence[Automaton | None],
  least: Any = None,
  vocab_size: int = 0,
  room: tuple[int, int] | None = None,
) -> Constraint:
  """The tables of rows, all of one size; a row without may say anything.

  They are numpy's: where all rows have the same there is a single copy, until
  they are put on a device.

  Args:
    rows: the automaton of each.
    least: [B] tokens that come before one that ends a text, or None.
    vocab_size: V, needed where no row has an automaton.
    room: Q and C of the tables; None: what the largest automaton needs.

  Raises:
    ValueError: an automaton needs more room.
  """
  distinct = {id(one): one for one in rows if one is not None}
  sizes = [(1, 1), *(one.next.shape for one in distinct.values())]
  enough = tuple(map(_next_size, map(max, zip(*sizes, strict=True)), _FEWEST))
  size = room or enough
  if distinct and np.greater(enough, size).any():
    raise ValueError(
      f'constraint needs tables of {enough[0]} states and {enough[1]} classes, '
      f'but the pool has room for {size[0]} and {size[1]}: open it with more'
    )
  vocab = next((len(one.classes) for one in distinct.values()), vocab_size)

  def padded(one: Automaton | None) -> Any:
    if one is None:
      free = np.zeros(vocab, np.int16), np.zeros(size, np.int16)
      return *free, np.full(size[0], -1, np.int32)
    missing = np.subtract(size, one.next.shape)
    full = np.pad(one.next, [(0, n) for n in missing], constant_values=-1)
    only = np.pad(one.only, (0, missing[0]), constant_values=-1)
    return one.classes, full, only

  made = {key: padded(one) for key, one in distinct.items()}
  made[id(None)] = padded(None)
  if len({id(one) for one in rows}) == 1:  # A view: not one copy a row.
    one = made[id(rows[0])]
    spread = [np.broadcast_to(x, (len(rows), *x.shape)) for x in one]
  else:
    each = zip(*(made[id(one)] for one in rows), strict=True)
    spread = [np.stack(x) for x in each]
  waits = np.zeros(len(rows), int) if least is None else np.asarray(least)
  needs = {
    (one, wait): 0 if one is None else shortest(one, wait)
    for one, wait in {*zip(rows, waits.tolist(), strict=True)}
  }
  needed = [needs[key] for key in zip(rows, waits.tolist(), strict=True)]
  return Constraint(*cast(Any, [*spread, np.array(needed, np.int32)]))
