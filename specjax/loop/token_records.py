"""New tokens of a state on the host, with the records that were kept of them.

`SpecState.records` holds what a `Recording` asks for; it is None where nothing
is recorded, and the step is then the very program without records.

The origin of a token:

  accepted    drafted, and accepted
  corrected   drawn where what was drafted for its place was rejected
  bonus       drawn where nothing was drafted

The log-probabilities of a token and of the most probable tokens of its place
are those of the target's softmax over its raw logits: before the penalties,
masks, temperature and cuts of the sampling pipeline. Another record is the
log-probability of a token behind that pipeline: that of the distribution which
an exact rule draws it from. Both are read from the pass that verified the
draft, so the target takes no further pass for them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_number
from specjax.loop import scoring
from specjax.models import sharding
from specjax.types import Counts, Logprobs, Records, Scores, Spec, SpecState

ORIGINS = ('accepted', 'corrected', 'bonus')
_ACCEPTED, _CORRECTED, _BONUS = range(3)
MOST = 20  # alternatives of a token


@dataclasses.dataclass(frozen=True)
class Recording:
  """The records that a loop keeps of its tokens; by default none.

  Attributes:
    origins: the origin of each token.
    logprobs: the log-probability of each token, and of so many of the most
      probable tokens of its place, from 0 to 20; None: none.
    sampled: the log-probability of each token in the target's distribution
      behind the whole sampling pipeline; at temperature 0 it is 0.

  Raises:
    ValueError: `logprobs` is no such number.
  """

  origins: bool = False
  logprobs: int | None = None
  sampled: bool = False

  def __post_init__(self):
    if self.logprobs is not None:
      check_number('logprobs', self.logprobs, 0, MOST + 1)
      # One program for equal numbers, of whatever type.
      object.__setattr__(self, 'logprobs', int(self.logprobs))

  def check(self, spec: Spec) -> None:
    """Raises a ValueError if it asks for more tokens than the target has."""
    vocab = spec.target.config.vocab_size
    if self.logprobs is not None and self.logprobs > vocab:
      raise ValueError(
        f'logprobs is {self.logprobs}, but the target has {vocab} tokens: ask '
        'for at most as many'
      )

  def blank(self, shape: tuple[int, ...]) -> Records | None:
    """Records of texts [B, S] without new tokens; None if none are kept."""
    if self == NOTHING:
      return None
    origins = jnp.zeros(shape, jnp.int8) if self.origins else None
    sampled = jnp.zeros(shape, jnp.float32) if self.sampled else None
    if self.logprobs is None:
      return Records(origins, None, sampled)
    top = jnp.zeros((*shape, self.logprobs), jnp.float32)
    own, ids = jnp.zeros(shape, jnp.float32), top.astype(jnp.int32)
    return Records(origins, Logprobs(own, ids, top), sampled)


NOTHING = Recording()


def add(
  records: Records, draft, verdict, scores: Scores, logits, count, at
) -> Records:
  """Adds the tokens of one step.

  Args:
    records: so far.
    draft: what was proposed.
    verdict: what was accepted.
    scores: that it was judged by.
    logits: [B, N+1, V] of the target, after every row of the scored block.
    count: [B] tokens that the step added.
    at: [B] new tokens before the step.
  """

  def write(old, new):
    return scoring.append(old, new, count, at)

  origins, logprobs, sampled = records
  if origins is not None:
    origins = write(origins, _origins(draft, verdict))
  if logprobs is not None:
    made = _logprobs(draft, verdict, logits, logprobs.ids.shape[-1])
    logprobs = jax.tree.map(write, logprobs, made)
  if sampled is not None:
    probs = scoring.along(scores.probs, verdict.path)
    tokens = scoring.emitted(draft, verdict)[..., None]
    own = jnp.log(jnp.take_along_axis(probs, tokens, -1)[..., 0])
    sampled = write(sampled, own.astype(jnp.float32))
  return Records(origins, logprobs, sampled)


def _origins(draft, verdict) -> jax.Array:
  """Origins [B, K+1] of the tokens of a step, up to the one it drew."""
  last = verdict.num_accepted[:, None]
  row = jnp.take_along_axis(verdict.path, last, 1)
  exists = jnp.arange(draft.tokens.shape[1]) < draft.size[:, None]
  below = ((draft.parents == row) & exists).any(1, keepdims=True)
  place = jnp.arange(verdict.path.shape[1])
  drawn = jnp.where(below, _CORRECTED, _BONUS)
  return jnp.where(place < last, _ACCEPTED, drawn).astype(jnp.int8)


def _logprobs(draft, verdict, logits, count: int) -> Logprobs:
  """Log-probabilities [B, K+1] of the tokens of a step, up to the drawn one.

  The token at a place was read from the row of the path at that place:

    path    root   x0   x1        row i of the logits is what the target says
    token   x0     x1   y         after row i of the path
  """
  logits = scoring.along(logits, verdict.path)
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  # Of logits: those that differ may round to equal log-probabilities.
  ids = jax.lax.top_k(logits, count)[1]
  logprobs = jax.nn.log_softmax(logits)
  tokens = scoring.emitted(draft, verdict)[..., None]
  own = jnp.take_along_axis(logprobs, tokens, -1)[..., 0]
  top = jnp.take_along_axis(logprobs, ids, -1)
  return Logprobs(
    own.astype(jnp.float32), ids.astype(jnp.int32), top.astype(jnp.float32)
  )


class Logprob(NamedTuple):
  """The target's log-probabilities at one token of a text, on the host."""

  value: float  # the token's own
  # Ids and log-probabilities of the most probable tokens of its place, the
  # largest first, and of equal ones that with the smaller id.
  top: list[tuple[int, float]]


class NewTokens(NamedTuple):
  """New tokens of one row, on the host."""

  tokens: list[int]
  origins: list[str]  # one a token; empty where they are not recorded
  logprobs: list[Logprob]  # one a token; empty where they are not recorded
  sampled: list[float]  # one a token; empty where they are not recorded
  counts: Counts  # of the row since it began; numpy, without the axis B
  done: bool
  finite: bool  # false: p or q was no number, and the text ended there
  end: int  # new tokens of the row since it began


def read(
  state: SpecState, begin: Mapping[int, int] | None = None
) -> list[NewTokens]:
  """New tokens of rows of a state, with what was recorded of them.

  Args:
    state: of a loop.
    begin: the rows to read, each with the number of its new tokens to leave
      out; by default all new tokens of all rows.
  """
  # Caches above all stay where they are.
  left: Any = dict.fromkeys(
    ('limit', 'cache', 'drafter', 'key', 'sampling', 'history'), ()
  )
  host: Any = sharding.fetch(state._replace(source=None, **left))
  if begin is None:
    begin = dict.fromkeys(range(len(host.length)), 0)
  found = []
  for row, first in begin.items():
    start, end = int(host.start[row]), int(host.length[row] - host.start[row])
    records = _at(host.records, row, slice(first, end))
    found.append(
      NewTokens(
        host.tokens[row, start + first : start + end].tolist(),
        *records,
        jax.tree.map(lambda x, row=row: np.array(x[row]), host.counts),
        bool(host.done[row]),
        bool(host.finite[row]),
        end,
      )
    )
  return found


def _at(
  records: Records | None, row: int, places: slice
) -> tuple[list[str], list[Logprob], list[float]]:
  """Returns the records of some new tokens of a row."""
  codes, logprobs, sampled = records or Records(None, None, None)
  values: list[Logprob] = []
  if logprobs is not None:
    own, ids, top = (x[row, places].tolist() for x in logprobs)
    values = [
      Logprob(value, [*zip(tokens, others, strict=True)])
      for value, tokens, others in zip(own, ids, top, strict=True)
    ]
  return (
    [] if codes is None else [ORIGINS[code] for code in codes[row, places]],
    values,
    [] if sampled is None else sampled[row, places].tolist(),
  )
