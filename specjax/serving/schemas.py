"""JSON schemas, compiled beside the event loop; the last ones are kept."""

import asyncio
import collections
import queue
import threading
from concurrent.futures import Future
from typing import Any

from specjax import constraints
from specjax.constraints import schemas
from specjax.sampling import Automaton
from specjax.serving.requests import OBJECT, Refused

_KEPT = 64  # schemas, those that were refused too
MOST = 8  # of them that are waited for
_DEEPEST = 3  # objects and lists within each other, where nothing says which


def any_object(depth: int = _DEEPEST) -> str:
  """Regex of JSON objects that nest so deep at most."""
  space, key = schemas.SPACE, f'"{schemas.CHARACTER}*"'
  value = leaf = f'{key}|{schemas.NUMBER}|true|false|null'
  for _ in range(depth):
    whole, pair = f'(?:{value})', f'{key}{space}:{space}(?:{value})'
    some, more = ('(?:{0}(?:' + space + ',' + space + '{0})*)?',) * 2
    found = rf'\{{{space}{some.format(pair)}{space}\}}'
    value = rf'{leaf}|{found}|\[{space}{more.format(whole)}{space}\]'
  return found


class Compiled:
  """The automata of schemas, for one target; it belongs to one event loop."""

  def __init__(self, tokenizer: Any, vocab_size: int, eos: tuple[int, ...]):
    self._of = tokenizer, vocab_size, eos
    self._kept: collections.OrderedDict[str, Future] = collections.OrderedDict()
    self._waiting: collections.Counter[str] = collections.Counter()
    self._jobs: queue.SimpleQueue[tuple[str, Future]] = queue.SimpleQueue()
    # Nobody waits for it at the end: it may be long.
    self._thread = threading.Thread(
      target=self._run, name='schemas', daemon=True
    )
    self._thread.start()

  async def of(self, schema: str) -> Automaton:
    """The automaton of a schema.

    Where all who wait for one are cancelled before its turn, it is dropped.

    Raises:
      Refused: there is none, or too many others are waited for.
    """
    if schema not in self._kept:
      if len(self._waiting) >= MOST:
        raise Refused(
          f'{len(self._waiting)} schemas are to be compiled: ask again later',
          'response_format',
          status=429,
          code='queue_full',
        )
      self._kept[schema] = Future()
      self._jobs.put((schema, self._kept[schema]))
    self._kept.move_to_end(schema)
    while len(self._kept) > _KEPT:
      self._kept.popitem(last=False)  # Those who wait for it have it.
    made = self._kept[schema]
    self._waiting[schema] += 1
    waited = asyncio.wrap_future(made)
    waited.add_done_callback(lambda x: x.cancelled() or x.exception())
    try:
      return await asyncio.shield(waited)
    finally:
      self._waiting[schema] -= 1
      if not self._waiting[schema]:
        del self._waiting[schema]
        if made.cancel():
          self._kept.pop(schema, None)

  def _run(self) -> None:
    while True:
      schema, made = self._jobs.get()
      if made.set_running_or_notify_cancel():
        try:
          made.set_result(self._compile(schema))
        except Exception as error:
          made.set_exception(error)

  def _compile(self, schema: str) -> Automaton:
    try:
      if schema == OBJECT:
        return constraints.regex(any_object(), *self._of)
      return constraints.json_schema(schema, *self._of)
    except ValueError as error:
      name = 'response_format'
      raise Refused(f'{name}: {error}', name) from error
