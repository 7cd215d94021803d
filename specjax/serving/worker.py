"""The thread that owns the pools, its texts, and the numbers it counts."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specjax.api.text import Shown
from specjax.loop.token_records import Logprob
from specjax.requests.pool import Pool, Progress, Request
from specjax.serving.requests import Asked, Refused
from specjax.types import Counts, Target

STOP, LENGTH = 'stop', 'length'
_Key = tuple[int, int]  # place of a pool, and the number of a request in it
_GONE = 'the service stopped before the answer was complete: ask again'
_NOT_FINITE = (
  'the target gave NaN or infinite logits: its weights are damaged, or too '
  'large for their dtype'
)

# Metrics of Prometheus, with the names of vLLM; it has no `specjax:` ones.
_SPEC = 'spec_decode_num'
_METRICS = (
  ('Gauge', 'num_requests_running', 'Texts that have a row.', ''),
  ('Gauge', 'num_requests_waiting', 'Texts that wait for a row.', ''),
  ('Counter', 'request_success', 'Texts that ended.', 'finished_reason'),
  ('Counter', 'specjax:request_refused', 'Requests refused.', 'status'),
  ('Counter', 'specjax:request_cancelled', 'Texts whose reader left.', ''),
  ('Counter', 'prompt_tokens', 'Tokens read, for each answer.', ''),
  ('Counter', 'generation_tokens', 'Tokens generated.', ''),
  ('Counter', f'{_SPEC}_drafts', 'Steps whose draft was verified.', ''),
  ('Counter', f'{_SPEC}_draft_tokens', 'Tokens that were drafted.', ''),
  ('Counter', f'{_SPEC}_accepted_tokens', 'Drafted tokens accepted.', ''),
  (
    'Counter',
    f'{_SPEC}_accepted_tokens_per_pos',
    'Drafted tokens accepted, by their place in the draft.',
    'position',
  ),
  (
    'Histogram',
    'time_to_first_token_seconds',
    'From a request to the first tokens of each of its texts.',
    '',
  ),
  (
    'Histogram',
    'e2e_request_latency_seconds',
    'From a request to the end of each of its texts.',
    '',
  ),
)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)


class Counters:
  """The numbers of one service, for Prometheus; any thread may write them."""

  def __init__(self, model: str, depth: int):
    """Takes the name of the model, and the most tokens of a draft."""
    import prometheus_client

    self._prometheus, self._model = prometheus_client, model
    self._registry = prometheus_client.CollectorRegistry()
    self._metrics: dict[str, Any] = {}
    for kind, name, about, label in _METRICS:
      full = name if ':' in name else f'vllm:{name}'
      labels = ['model_name', label] if label else ['model_name']
      make = getattr(prometheus_client, kind)
      more: dict = {'buckets': _SECONDS} if kind == 'Histogram' else {}
      self._metrics[name] = make(
        full, about, labels, registry=self._registry, **more
      )
    for _, name, _, label in _METRICS:
      if not label:
        self._metric(name)  # Shown from the beginning on.
    for place in range(depth):
      self._metric(f'{_SPEC}_accepted_tokens_per_pos', place)
    for reason in (STOP, LENGTH, 'error'):
      self._metric('request_success', reason)

  def _metric(self, name: str, *label: Any) -> Any:
    return self._metrics[name].labels(self._model, *map(str, label))

  def add(self, name: str, number: int = 1, *label: Any) -> None:
    self._metric(name, *label).inc(number)

  def took(self, name: str, began: float) -> None:
    """Adds the seconds since a moment of `time.monotonic` to a histogram."""
    self._metric(name).observe(time.monotonic() - began)

  def show(self, running: int, waiting: int) -> None:
    self._metric('num_requests_running').set(running)
    self._metric('num_requests_waiting').set(waiting)

  def speculate(self, counts: Counts, before: Counts | None) -> None:
    """Adds what a turn did to a text, in its whole steps."""
    accepted = counts.accepted - (before.accepted if before else 0)
    drafted = counts.drafted - (before.drafted if before else 0)
    steps = counts.histogram.sum() - (before.histogram.sum() if before else 0)
    self.add(f'{_SPEC}_drafts', int(steps))
    self.add(f'{_SPEC}_draft_tokens', int(drafted))
    self.add(f'{_SPEC}_accepted_tokens', int(accepted.sum()))
    for place, number in enumerate(accepted.tolist()):
      self.add(f'{_SPEC}_accepted_tokens_per_pos', number, place)

  def page(self) -> tuple[bytes, str]:
    """The page that Prometheus reads, and its media type."""
    made = self._prometheus.generate_latest(self._registry)
    return made, self._prometheus.CONTENT_TYPE_LATEST


class Piece(NamedTuple):
  """The part of a text that came in a turn, or why nothing will come."""

  text: str = ''
  tokens: int = 0
  finish: str = ''  # of the last one: 'stop' or 'length'
  counts: Counts | None = None  # of the last one
  error: Refused | None = None
  said: tuple[tuple[int, Logprob], ...] = ()  # tokens of the text, if asked for
  origins: tuple[tuple[str, str], ...] = ()  # text and origin, if asked for


class Text:
  """A request of the pool, and the text that is made of its tokens.

  It belongs to the thread of the worker.
  """

  def __init__(
    self,
    request: Request,
    tell: Callable[[Piece], None],
    target: Target,
    asked: Asked,
    began: float,
  ):
    """Takes a request and its surroundings.

    Args:
      request: of the pool.
      tell: is called in the thread of the worker.
      target: whose tokens the text is made of.
      asked: what the client asked; unless for a stream, all comes at the end.
      began: when the request came, by `time.monotonic`.
    """
    self.request, self.tell, self.began = request, tell, began
    # What is decoded behind a stop string is in nobody's text.
    self.watched = asked.stream or bool(asked.stop)
    self._asked, self._eos = asked, target.eos
    self._shown = Shown(target.tokenizer, target.eos, asked.stop)
    self._kept = Piece()
    self.counts: Counts | None = None  # of the turn before

  def push(self, one: Progress) -> Piece:
    """The piece of a turn; the last one has `finish` or `error`."""
    if not one.finite:
      return Piece(error=Refused(_NOT_FINITE, status=500))
    texts = self._shown.push(one.tokens, one.done)
    said: tuple[tuple[int, Logprob], ...] = ()
    used = len(texts)
    if self._asked.logprobs is not None:
      pairs = zip(one.tokens[:used], one.logprobs[:used], strict=True)
      said = tuple(x for x in pairs if x[0] not in self._eos)
    origins: tuple[tuple[str, str], ...] = ()
    if self._asked.origins:
      origins = tuple(zip(texts, one.origins[:used], strict=True))
    kept = self._kept
    text, tokens = kept.text + ''.join(texts), kept.tokens + used
    told = kept.said + said, kept.origins + origins
    piece = Piece(text, tokens, said=told[0], origins=told[1])
    if one.done or self._shown.ended:
      finish = STOP if self._shown.ended else LENGTH
      return piece._replace(finish=finish, counts=one.counts)
    if self._asked.stream:
      return piece
    self._kept = piece
    return Piece()


class Worker:
  """Decodes texts in the rows of pools until it is closed."""

  def __init__(self, pools: Sequence[Pool], counters: Counters, steps: int):
    """Takes pools, which nobody else may call from now on.

    Args:
      pools: one for each way to draft.
      counters: of the service.
      steps: of a turn where nobody waits or reads along.
    """
    self.pools = tuple(pools)
    self.failure: Exception | None = None
    # Called in the thread of the worker where a turn ends in an error.
    self.failed: Callable[[], Any] = lambda: None
    self._counters, self._steps = counters, steps
    self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._texts: dict[_Key, Text] = {}
    self._closing = self._ended = False
    self._thread = threading.Thread(target=self._run, name='pool', daemon=True)

  @property
  def idle(self) -> bool:
    """Returns whether nothing is decoded and nothing is kept."""
    kept = self._texts or not self._calls.empty()
    return not (kept or any(x.live or x.waiting for x in self.pools))

  def start(self) -> None:
    self._thread.start()

  def submit(self, texts: Sequence[Text], held: Pool) -> None:
    """Takes texts for a pool; each is told of its pieces."""
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
      self._calls.get()()
    self._obey()

  def _turn(self) -> None:
    # Who waits is given a row as soon as one is free: then a turn ends.
    watched = any(x.watched for x in self._texts.values())
    for place, held in enumerate(self.pools):
      for one in held.turn(1 if watched else self._steps):
        self._tell((place, one.id), one)
    self._show()

  def _tell(self, key: _Key, one: Progress) -> None:
    text = self._texts[key]
    if self.pools[key[0]].spec.drafter.depth:
      self._counters.speculate(one.counts, text.counts)
    if text.counts is None:
      self._counters.took('time_to_first_token_seconds', text.began)
    text.counts = one.counts
    piece = text.push(one)
    self._counters.add('generation_tokens', piece.tokens)
    if piece.finish:
      self._counters.took('e2e_request_latency_seconds', text.began)
    if piece.finish or piece.error:
      self._counters.add('request_success', 1, piece.finish or 'error')
      self._drop(key)
    if piece != Piece():
      text.tell(piece)

  def _show(self) -> None:
    live = sum(held.live for held in self.pools)
    self._counters.show(live, sum(held.waiting for held in self.pools))

  def _submit(self, texts: Sequence[Text], place: int) -> None:
    held = self.pools[place]
    for text in texts:
      if self._closing:
        text.tell(Piece(error=Refused(_GONE, status=503)))
        continue
      try:
        self._texts[place, held.submit(text.request)] = text
        self._counters.add('prompt_tokens', len(text.request.prompt))
      except ValueError as error:
        text.tell(Piece(error=Refused(str(error))))

  def _cancel(self, texts: Sequence[Text]) -> None:
    for key in [key for key, x in self._texts.items() if x in texts]:
      self._counters.add('specjax:request_cancelled')
      self._drop(key)

  def _drop(self, key: _Key) -> None:
    place, number = key
    self.pools[place].cancel(number)
    del self._texts[key]

  def _abort(self) -> None:
    for key, text in [*self._texts.items()]:
      self._counters.add('request_success', 1, 'error')
      self._drop(key)
      text.tell(Piece(error=Refused(_GONE, status=503)))

  def _close(self) -> None:
    self._closing = True
    self._abort()
