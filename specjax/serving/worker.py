"""The thread that owns the pools: it takes texts and tells what has come."""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from specjax.requests.pool import Pool, Progress
from specjax.serving.counters import Counters
from specjax.serving.refusals import Refused
from specjax.serving.texts import Piece, Text
from specjax.types import Counts

_Key = tuple[int, int]  # place of a pool, and what that knows a text by
_GONE = 'the service stopped before the answer was complete: ask again'


class Worker:
  """Decodes texts in the rows of pools until it is closed."""

  def __init__(
    self,
    pools: Sequence[Pool],
    counters: Counters,
    steps: int = 4,
    failed: Callable[[], None] = lambda: None,
  ):
    """Takes pools, which nobody else may call from now on.

    Args:
      pools: one for each way to draft.
      counters: what is counted.
      steps: of a turn where nobody waits or reads along.
      failed: is called in the thread where a turn ends in an error.
    """
    self.pools, self.failed = tuple(pools), failed
    self.failure: Exception | None = None
    self.turns = 0
    self._counters, self._steps = counters, steps
    self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._texts: dict[_Key, Text] = {}
    self._counted: dict[_Key, Counts] = {}
    self._closing = self._ended = False
    self._thread = threading.Thread(target=self._run, name='pool', daemon=True)

  @property
  def idle(self) -> bool:
    """Whether nothing is decoded and nothing is kept."""
    kept = self._texts or self._counted or not self._calls.empty()
    return not (kept or any(x.live or x.waiting for x in self.pools))

  def start(self) -> None:
    self._thread.start()

  def submit(self, texts: Sequence[Text], held: Pool) -> None:
    """Takes texts for a pool; what becomes of each is told to it."""
    place = self.pools.index(held)
    self._ask(lambda: self._submit(texts, place))

  def cancel(self, texts: Sequence[Text]) -> None:
    """Frees the rows of texts, as far as they have any."""
    self._ask(lambda: self._cancel(texts))

  def abort(self) -> None:
    """Ends all texts with an error."""
    self._ask(self._abort)

  def close(self) -> None:
    """Ends the thread, and all texts with an error."""
    self._ask(self._close)
    if self._thread.is_alive():
      self._thread.join()

  def _ask(self, call: Callable[[], None]) -> None:
    self._calls.put(call)
    if self._ended:
      self._obey()  # Nobody else may.

  def _obey(self) -> None:
    with contextlib.suppress(queue.Empty):
      while True:
        self._calls.get_nowait()()

  def _run(self) -> None:
    try:
      while not self._closing:
        self._take()
        self._turn()
    except Exception as error:  # A bug: nothing of the pool can be trusted.
      self.failure = error
      self.failed()
    finally:
      self._close()
      self._ended = True
      self._obey()

  def _take(self) -> None:
    """Does what is asked; waits where there is nothing else to do."""
    if not self._texts:
      self._show()
      self._calls.get()()
    self._obey()

  def _turn(self) -> None:
    # Who waits is given a row as soon as one is free: then a turn ends.
    watched = any(x.watched for x in self._texts.values())
    if self._texts:
      self.turns += 1
    for place, held in enumerate(self.pools):
      for one in held.turn(1 if watched else self._steps):
        self._tell((place, one.id), one)
    self._show()

  def _tell(self, key: _Key, one: Progress) -> None:
    text, before = self._texts[key], self._counted.get(key)
    self._counters.speculate(one.counts, before)
    self._counted[key] = one.counts
    piece = text.push(one)
    self._counters.generated.inc(piece.tokens)
    if piece.finish or piece.error:
      self._counters.finish(piece.finish or 'error')
      self._drop(key)
    if piece != Piece():
      text.tell(piece)

  def _show(self) -> None:
    self._counters.running.set(sum(held.live for held in self.pools))
    self._counters.waiting.set(sum(held.waiting for held in self.pools))

  def _submit(self, texts: Sequence[Text], place: int) -> None:
    held = self.pools[place]
    for text in texts:
      if self._closing:
        text.tell(Piece(error=Refused(_GONE, status=503)))
        continue
      try:
        self._texts[place, held.submit(text.request)] = text
        self._counters.prompts.inc(len(text.request.prompt))
      except ValueError as error:
        text.tell(Piece(error=Refused(str(error))))

  def _cancel(self, texts: Sequence[Text]) -> None:
    for key in [key for key, x in self._texts.items() if x in texts]:
      self._counters.cancelled.inc()
      self._drop(key)

  def _drop(self, key: _Key) -> None:
    place, number = key
    self.pools[place].cancel(number)
    self._counted.pop(key, None)
    del self._texts[key]

  def _abort(self) -> None:
    for key, text in [*self._texts.items()]:
      self._counters.finish('error')
      self._drop(key)
      text.tell(Piece(error=Refused(_GONE, status=503)))

  def _close(self) -> None:
    self._closing = True
    self._abort()
