"""Progress on stderr: phases of a program, one after another.

On a terminal the phase of now is one line, drawn anew every second. Elsewhere,
as in a log file, a phase is one line, which is written when it ends. Of several
processes the primary alone shows its phases.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

_FIRST, _EVERY = 0.3, 1.0  # seconds before a line is drawn, and drawn anew
_BRIEF = 1.0  # seconds; a shorter phase leaves no line on a terminal

T = TypeVar('T')


def clock(seconds: float) -> str:
  """Returns a duration as it is shown: 12.3 s, 2:05 or 1:02:05."""
  if seconds < 60:
    return f'{seconds:.1f} s'
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{rest:02}' if hours else f'{minutes}:{rest:02}'


class Phase:
  """A phase that is running.

  Attributes:
    name: names what is done.
    total: the number of items; None where nobody knows it.
    done: the items that are done.
    note: says more about the item of now; shown on a terminal only.
  """

  def __init__(
    self, name: str, total: int | None, done: int, alike: int | None
  ):
    self.name, self.total, self.done, self.note = name, total, done, ''
    self._before, self._alike = done, alike
    self._begun = self._advanced = time.monotonic()

  def advance(self) -> None:
    self.done += 1
    self._advanced = time.monotonic()

  def seconds(self) -> float:
    return time.monotonic() - self._begun

  def left(self) -> float | None:
    """Returns the seconds that are left, where they can be told honestly."""
    new = self.done - self._before
    if self.total is None or self._alike is None or new < self._alike:
      return None
    each = (self._advanced - self._begun) / new
    since = time.monotonic() - self._advanced
    return max(0.0, each * (self.total - self.done) - since)

  def line(self, width: int | None = None) -> str:
    """Returns the phase in a line.

    Args:
      width: columns of the terminal while the phase runs. None: the phase has
        ended, and has no note and no time left.
    """
    count = f'{self.done} of {self.total}, '
    if self.total is None:
      count = f'{self.done}, ' if self.done else ''
    rest = f': {count}{clock(self.seconds())}'
    if width is None:
      return f'{self.name}{rest}'
    if (left := self.left()) is not None:
      rest += f', about {clock(left)} left'
    name = f'{self.name} ({self.note})' if self.note else self.name
    return f'{name[: max(0, width - 1 - len(rest))]}{rest}'


def _draw(one: Phase, ended: threading.Event) -> None:
  """Draws a phase until it has ended.

  The cursor goes back to the first column: what others print replaces the line.
  """
  pause = _FIRST
  while not ended.wait(pause):
    try:
      width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
      width = 80
    sys.stderr.write(f'\r\x1b[K{one.line(width)}\r')
    sys.stderr.flush()
    pause = _EVERY


@contextlib.contextmanager
def phase(
  name: str,
  total: int | None = None,
  *,
  done: int = 0,
  alike: int | None = None,
  lasting: bool = True,
) -> Iterator[Phase]:
  """Shows what a program does meanwhile. Phases do not lie in one another.

  A phase that ends with an error leaves no line: the error says more.

  Args:
    name: names what is done.
    total: the number of items; None where nobody knows it.
    done: items that were done before.
    alike: after so many items the others take as long as those did, so the time
      left is shown; None promises nothing.
    lasting: false for a phase that leaves no line.

  Yields:
    The phase, whose `advance` counts an item.
  """
  one = Phase(name, total, done, alike)
  jax = sys.modules.get('jax')
  # To ask for the number of a process alone would start a backend.
  if jax and jax.distributed.is_initialized() and jax.process_index():
    yield one
    return
  terminal, ended = sys.stderr.isatty(), threading.Event()
  drawer = threading.Thread(target=_draw, args=(one, ended), daemon=True)
  if terminal:
    drawer.start()
  leaves = False
  try:
    yield one
    leaves = lasting and (not terminal or one.seconds() >= _BRIEF)
  finally:
    ended.set()
    if terminal:
      drawer.join()
      print('\r\x1b[K', end='', file=sys.stderr, flush=True)
    if leaves:
      print(one.line(), file=sys.stderr, flush=True)


def over(
  name: str, items: Iterable[T], alike: int | None = None
) -> Iterator[T]:
  """Yields items in a phase that counts them."""
  total = len(items) if isinstance(items, Sized) else None
  with phase(name, total, alike=alike) as one:
    for item in items:
      yield item
      one.advance()


def until_first(name: str, items: Iterator[T]) -> Iterator[T]:
  """Returns items, the first of which is there; the wait for it is a phase."""
  with phase(name):
    first = list(itertools.islice(items, 1))
  return itertools.chain(first, items)
