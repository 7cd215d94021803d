"""One text of an answer: tokens become text, up to a stop string."""

from collections.abc import Callable
from typing import Any, NamedTuple

from specjax.api.text import Detokenizer, Stops
from specjax.loop.token_records import Logprob
from specjax.requests import pool
from specjax.serving.refusals import Refused
from specjax.types import Counts

STOP, LENGTH = 'stop', 'length'


class Piece(NamedTuple):
  """What came of a text in a turn, or why nothing will."""

  text: str = ''
  tokens: int = 0
  finish: str = ''  # of the last one: 'stop' or 'length'
  counts: Counts | None = None  # of the last one
  error: Refused | None = None
  said: tuple[tuple[int, Logprob], ...] = ()  # tokens of the text, if asked for


class Text:
  """A request of the pool, and the text that is made of its tokens.

  It belongs to the thread of the worker.
  """

  def __init__(
    self,
    request: pool.Request,
    tell: Callable[[Piece], None],
    *,
    tokenizer: Any,
    eos: tuple[int, ...],
    stop: tuple[str, ...] = (),
    streams: bool = False,
    logprobs: bool = False,
  ):
    """Takes a request and its surroundings.

    Args:
      request: of the pool.
      tell: is called in the thread of the worker.
      tokenizer: of the target.
      eos: tokens that end a text.
      stop: strings that do.
      streams: whether somebody reads along; otherwise all is told at the end.
      logprobs: whether those of tokens are told.
    """
    self.request, self.tell, self.streams = request, tell, streams
    # What is decoded behind a stop string is in nobody's text.
    self.watched = streams or bool(stop)
    self._eos, self._logprobs = eos, logprobs
    self._made, self._stops = Detokenizer(tokenizer), Stops(stop)
    self._kept = Piece()

  def push(self, one: pool.Progress) -> Piece:
    """What a turn brought; `finish` or `error` where it is the last."""
    if not one.finite:
      return Piece(
        error=Refused(
          'the target gave NaN or infinite logits: its weights are damaged, or '
          'too large for their dtype',
          status=500,
        )
      )
    text, ended, used = '', False, 0
    for token in one.tokens:
      used += 1
      if token in self._eos:
        ended = True
      else:
        text += self._stops.push(self._made.push(token))
      if self._stops.found is not None:
        ended = True
        break
    if one.done and self._stops.found is None:
      text += self._stops.push(self._made.finish()) + self._stops.finish()
      ended = ended or self._stops.found is not None
    last = ended or one.done
    said = ()
    if self._logprobs:
      pairs = zip(one.tokens[:used], one.logprobs[:used], strict=True)
      said = tuple(x for x in pairs if x[0] not in self._eos)
    kept = self._kept
    piece = Piece(kept.text + text, kept.tokens + used, said=kept.said + said)
    if last:
      finish = STOP if ended else LENGTH
      return piece._replace(finish=finish, counts=one.counts)
    self._kept = Piece() if self.streams else piece
    return piece if self.streams else Piece()
