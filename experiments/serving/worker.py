"""The thread that owns the pool: it takes texts and tells what has come."""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence

from experiments.serving.counters import Counters
from experiments.serving.refusals import Refused
from experiments.serving.texts import Piece, Text
from specjax.pool import Pool
from specjax.types import Counts

_GONE = 'the service stopped before the answer was complete: ask again'


class Worker:
  """Decodes texts in the rows of a pool until it is closed."""

  def __init__(
    self,
    held: Pool,
    counters: Counters,
    steps: int = 4,
    failed: Callable[[], None] = lambda: None,
  ):
    """Takes a pool, which nobody else may call from now on.

    Args:
      held: the pool.
      counters: what is counted.
      steps: of a turn where nobody waits or reads along.
      failed: is called in the thread where a turn ends in an error.
    """
    self.pool, self.failed = held, failed
    self.failure: Exception | None = None
    self.turns = 0
    self._counters, self._steps = counters, steps
    self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._texts: dict[int, Text] = {}
    self._counted: dict[int, Counts] = {}
    self._closing = self._ended = False
    self._thread = threading.Thread(target=self._run, name='pool', daemon=True)

  @property
  def idle(self) -> bool:
    """Whether nothing is decoded and nothing is kept."""
    kept = self._texts or self._counted or not self._calls.empty()
    return not (kept or self.pool.live or self.pool.waiting)

  def start(self) -> None:
    self._thread.start()

  def submit(self, texts: Sequence[Text]) -> None:
    """Takes texts; what becomes of each is told to it."""
    self._ask(lambda: self._submit(texts))

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
    watched = any(x.watched for x in self._texts.values())
    hurry = self.pool.waiting or watched
    if self._texts:
      self.turns += 1
    for one in self.pool.turn(1 if hurry else self._steps):
      text, before = self._texts[one.id], self._counted.get(one.id)
      self._counters.speculate(one.counts, before)
      self._counted[one.id] = one.counts
      piece = text.push(one)
      self._counters.generated.inc(piece.tokens)
      if piece.finish or piece.error:
        self._counters.finish(piece.finish or 'error')
        self._drop(one.id)
      if piece != Piece():
        text.tell(piece)
    self._show()

  def _show(self) -> None:
    self._counters.running.set(self.pool.live)
    self._counters.waiting.set(self.pool.waiting)

  def _submit(self, texts: Sequence[Text]) -> None:
    for text in texts:
      if self._closing:
        text.tell(Piece(error=Refused(_GONE, status=503)))
        continue
      try:
        self._texts[self.pool.submit(text.request)] = text
        self._counters.prompts.inc(len(text.request.prompt))
      except ValueError as error:
        text.tell(Piece(error=Refused(str(error))))

  def _cancel(self, texts: Sequence[Text]) -> None:
    for number in [n for n, x in self._texts.items() if x in texts]:
      self._counters.cancelled.inc()
      self._drop(number)

  def _drop(self, number: int) -> None:
    self.pool.cancel(number)
    self._counted.pop(number, None)
    del self._texts[number]

  def _abort(self) -> None:
    for number, text in [*self._texts.items()]:
      self._counters.finish('error')
      self._drop(number)
      text.tell(Piece(error=Refused(_GONE, status=503)))

  def _close(self) -> None:
    self._closing = True
    self._abort()
