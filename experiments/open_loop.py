"""Requests that come at their own times, played to a pool and timed.

The times are given before anything is decoded, and no request waits for
another to be answered (an open loop). Every duration begins when a request was
scheduled to come, not when the loop had time to look: a loop that is busy would
otherwise hide the very delay that it causes (coordinated omission; Tene 2013,
"How not to measure latency").

  scheduled   submitted    first tokens told      last tokens told
  |-----------|------------|----------------------|
  |-- time to first token -|--- tokens between ---|
  |------------------ latency --------------------|
"""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.errors import UserError
from specjax.requests.pool import Request
from specjax.stats import metrics

PERCENTILES = (50, 95, 99)
BLOCKS = 8  # units of intervals: neighbours in a queue wait for each other


class Watch(NamedTuple):
  """A clock in seconds, and a way to let time pass."""

  now: Callable[[], float] = time.perf_counter
  wait: Callable[[float], Any] = time.sleep


class Text(NamedTuple):
  """What became of one request; times are seconds since the beginning."""

  scheduled: float
  submitted: float
  told: list[tuple[float, int]]  # when tokens were told, and how many
  tokens: list[int]
  finite: bool

  @property
  def first(self) -> float:
    """When the first tokens were told."""
    return self.told[0][0]

  @property
  def last(self) -> float:
    """When the last ones were."""
    return self.told[-1][0]


def play(
  held: Any,
  requests: Sequence[Request],
  times: Sequence[float],
  steps: int,
  watch: Watch,
) -> list[Text]:
  """Submits requests at their times, and takes turns until all are done.

  Args:
    held: a `pool.Pool` that is warm and empty.
    requests: in the order of their times.
    times: when each comes, in seconds from now; they do not decrease.
    steps: of a turn.
    watch: what time it is.

  Returns:
    A text for each request.
  """
  begin, coming = watch.now(), 0
  texts: dict[int, Text] = {}
  while coming < len(requests) or held.live or held.waiting:
    now = watch.now() - begin
    while coming < len(requests) and times[coming] <= now:
      number = held.submit(requests[coming])
      texts[number] = Text(float(times[coming]), now, [], [], True)
      coming += 1
    if not (held.live or held.waiting):
      watch.wait(times[coming] - now)
      continue
    progress = held.turn(steps)
    now = watch.now() - begin
    for one in progress:
      if one.tokens:
        texts[one.id].told.append((now, len(one.tokens)))
        texts[one.id].tokens.extend(one.tokens)
      if not one.finite:
        texts[one.id] = texts[one.id]._replace(finite=False)
  return [*texts.values()]


def check(
  texts: Sequence[Text], requests: Sequence[Request], eos: Sequence[int]
) -> None:
  """Refuses what cannot have happened.

  Raises:
    RuntimeError: names the request.
  """
  if len(texts) != len(requests):
    raise RuntimeError(f'{len(texts)} texts of {len(requests)} requests')
  for i, (text, request) in enumerate(zip(texts, requests, strict=True)):
    whens = [when for when, _ in text.told]
    counts = [count for _, count in text.told]
    ended = bool(text.tokens) and text.tokens[-1] in eos
    for right, what in (
      (text.finite, 'has logits that are not finite'),
      (text.told, 'was told nothing'),
      (text.submitted >= text.scheduled, 'was submitted before it came'),
      (whens == sorted(set(whens)), 'was told tokens in no order'),
      (min(whens, default=0) > text.submitted, 'was answered before it came'),
      (min(counts, default=1) > 0, 'was told no tokens'),
      (sum(counts) == len(text.tokens), 'was told tokens that it has not'),
      (
        len(text.tokens) == request.new_tokens
        or (ended and len(text.tokens) < request.new_tokens),
        'has another length than it was asked for',
      ),
    ):
      if not right:
        raise RuntimeError(f'request {i} {what}: {text._replace(tokens=[])}')


def _of(name: str, values: np.ndarray) -> dict[str, Any]:
  """Mean in milliseconds, its interval over blocks, and percentiles.

  A percentile is None where no value is expected beyond it.
  """
  blocks = np.array_split(values, BLOCKS)
  mean = metrics.ratio([b.sum() for b in blocks], [len(b) for b in blocks])
  ends = mean.interval and [1e3 * x for x in mean.interval]
  found = {f'{name}_ms': 1e3 * float(values.mean()), f'{name}_ms_ci': ends}
  for percent in PERCENTILES:
    # Fewer would have none beyond it.
    enough = len(values) * (100 - percent) >= 100
    value = 1e3 * float(np.percentile(values, percent)) if enough else None
    found[f'{name}_p{percent}_ms'] = value
  return found


def numbers(texts: Sequence[Text], skipped: int) -> dict[str, Any]:
  """What a row says of the texts behind the first ones.

  Tokens a second are counted from the first of these arrivals to the last, of
  all texts: neither the filling of the rows nor their emptying is in it.

  Args:
    texts: in the order in which they came.
    skipped: that warm up, and are counted nowhere else.

  Raises:
    UserError: fewer texts than blocks are left, or all are told at once.
  """
  kept = texts[skipped:]
  if len(kept) < BLOCKS:
    raise UserError(
      f'prompts.count: {len(kept)} texts are fewer than {BLOCKS} blocks, whose '
      'spread is measured; raise it'
    )
  edges = np.linspace(kept[0].scheduled, kept[-1].scheduled, BLOCKS + 1)
  told = [one for text in texts for one in text.told]
  whens, counts = np.array(told).T
  sums, _ = np.histogram(whens, edges, weights=counts)
  rate = metrics.ratio(sums, np.diff(edges))
  # Tokens of one turn are told together: only what comes later took time.
  several = [x for x in kept if len(x.told) > 1]
  if not several:
    raise UserError(
      'max_new_tokens: every text is told at once, and no time lies between '
      'its tokens; raise it, or lower chunk'
    )
  between = [
    (x.last - x.first) / (len(x.tokens) - x.told[0][1]) for x in several
  ]
  return {
    'counted': len(kept),
    'told_at_once': len(kept) - len(several),
    'tokens': sum(len(x.tokens) for x in kept),
    'tokens_per_second': rate.value,
    'tokens_per_second_ci': rate.interval,
    'noticed_ms': 1e3 * max(x.submitted - x.scheduled for x in kept),
    **_of('first_token', np.array([x.first - x.scheduled for x in kept])),
    **_of('between_tokens', np.array(between)),
    **_of('latency', np.array([x.last - x.scheduled for x in kept])),
  }


def check_numbers(row: dict[str, Any]) -> None:
  """Refuses numbers that cannot be.

  Raises:
    RuntimeError: names the number.
  """
  for name in ('first_token', 'between_tokens', 'latency'):
    values = [row[f'{name}_p{percent}_ms'] for percent in PERCENTILES]
    known = [0.0, *(x for x in values if x is not None), np.inf]
    if not all(a <= b for a, b in itertools.pairwise(known)) or 0 in values:
      raise RuntimeError(f'{name} has the percentiles {values}')
  for percent in PERCENTILES:
    first, last = (
      row[f'{name}_p{percent}_ms'] for name in ('first_token', 'latency')
    )
    if first is not None and last is not None and first > last:
      raise RuntimeError('first tokens come later than last ones')
  if not 0 < row['tokens_per_second'] < np.inf:
    raise RuntimeError(f'tokens_per_second is {row["tokens_per_second"]}')
