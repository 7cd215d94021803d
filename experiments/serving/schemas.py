"""JSON schemas, compiled beside the event loop; the last ones are kept."""

import collections
import concurrent.futures
import threading
from typing import Any

from experiments.serving.fields import OBJECT
from experiments.serving.refusals import Refused
from specjax import constraints
from specjax.constraints import leaves, schemas
from specjax.sampling import Automaton

_KEPT = 64  # schemas, those that were refused too
_DEEPEST = 3  # objects and lists within each other, where nothing says which


def any_object(depth: int = _DEEPEST) -> str:
  """Regex of JSON objects that nest so deep at most."""
  space, key = schemas.SPACE, f'"{leaves.CHARACTER}*"'
  value = leaf = f'{key}|{leaves.NUMBER}|true|false|null'
  for _ in range(depth):
    whole, pair = f'(?:{value})', f'{key}{space}:{space}(?:{value})'
    some, more = ('(?:{0}(?:' + space + ',' + space + '{0})*)?',) * 2
    found = rf'\{{{space}{some.format(pair)}{space}\}}'
    value = rf'{leaf}|{found}|\[{space}{more.format(whole)}{space}\]'
  return found


class Compiled:
  """What schemas were compiled to, for one target."""

  def __init__(self, tokenizer: Any, vocab_size: int, eos: tuple[int, ...]):
    self._of = tokenizer, vocab_size, eos
    self._kept: collections.OrderedDict[str, concurrent.futures.Future]
    self._kept = collections.OrderedDict()
    self._lock = threading.Lock()
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'schemas')

  def of(self, schema: str) -> concurrent.futures.Future:
    """The automaton of a schema, or the `Refused` that it ends in."""
    with self._lock:
      if schema not in self._kept:
        self._kept[schema] = self._thread.submit(self._compile, schema)
      self._kept.move_to_end(schema)
      while len(self._kept) > _KEPT:
        self._kept.popitem(last=False)  # Whoever waits for it has it.
      return self._kept[schema]

  def close(self) -> None:
    self._thread.shutdown(wait=False, cancel_futures=True)

  def _compile(self, schema: str) -> Automaton:
    try:
      if schema == OBJECT:
        return constraints.regex(any_object(), *self._of)
      return constraints.json_schema(schema, *self._of)
    except ValueError as error:
      name = 'response_format'
      raise Refused(f'{name}: {error}', name) from error
