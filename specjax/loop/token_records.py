"""What is told of each new token, kept beside the counts of a state.

Where it came from:

  accepted    drafted, and accepted
  corrected   drawn where what was drafted for its place was rejected
  bonus       drawn where nothing was drafted

And its log-probability, with the most probable tokens of its place and theirs:
those of the target's own softmax, over its logits as they are, before the
penalties, masks, temperature and cuts of the sampling pipeline. They are made
of the rows of the pass that verified the draft, along the accepted path, so
the target takes no pass for them.

The loop is the same with the same keys: its tally only writes more. Where
nothing is to be told, it is the very program without this module.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, verify
from specjax.arguments import check_number
from specjax.loop import counting, scoring
from specjax.loop import generate as loops
from specjax.types import Counts, Params, Scores, Spec, SpecState

ORIGINS = ('accepted', 'corrected', 'bonus')
_ACCEPTED, _CORRECTED, _BONUS = range(3)
MOST = 20  # alternatives of a token


@dataclasses.dataclass(frozen=True)
class Telling:
  """What is to be told; by default nothing.

  Attributes:
    origins: where each token came from.
    logprobs: its log-probability and those of so many of the most probable
      tokens of its place, from 0 to 20; None: none.

  Raises:
    ValueError: `logprobs` is no such number.
  """

  origins: bool = False
  logprobs: int | None = None

  def __post_init__(self):
    if self.logprobs is not None:
      check_number('logprobs', self.logprobs, 0, MOST + 1)
      # One program for equal numbers, of whatever type.
      object.__setattr__(self, 'logprobs', int(self.logprobs))

  def check(self, spec: Spec) -> None:
    """Refuses more alternatives than there are tokens.

    Raises:
      ValueError: so many.
    """
    if self.logprobs is None:
      return
    vocab = spec.target.config.vocab_size
    if self.logprobs > vocab:
      raise ValueError(
        f'logprobs is {self.logprobs}, but the target has {vocab} tokens: ask '
        'for at most as many'
      )


class Logprob(NamedTuple):
  """What the target says of one token of a text, on the host."""

  value: float  # the token's own log-probability
  # Ids and log-probabilities of the most probable tokens of its place, the
  # largest first, and of equal ones that with the smaller id.
  top: list[tuple[int, float]]


class Logprobs(NamedTuple):
  """The same of all new tokens of rows, with n alternatives; float32."""

  own: jax.Array  # [B, S]
  ids: jax.Array  # [B, S, n]
  top: jax.Array  # [B, S, n]


class Told(NamedTuple):
  """It takes the place of the counts in a state.

  Records are of the new tokens, the first one first; None: not told.
  """

  counts: Counts
  origins: jax.Array | None  # [B, S]
  logprobs: Logprobs | None


class OfTokens(NamedTuple):
  """What was told of some tokens of a row, on the host."""

  counts: Counts  # of the row since it began; numpy, without the axis B
  origins: list[str]  # empty where they are not told
  logprobs: list[Logprob]  # likewise


class _Scores(NamedTuple):
  """Scores with the logits that they were made of."""

  probs: jax.Array
  logits: jax.Array
  raw: jax.Array  # [N+1, V] before the pipeline


class _Verdict(NamedTuple):
  """A verdict with the logits that its tokens were read from."""

  path: jax.Array
  num_accepted: jax.Array
  next_token: jax.Array
  raw: jax.Array  # [K+1, V] along the path


def _distributions(logits, *rest) -> Any:
  return _Scores(*sampling.distributions(logits, *rest), logits)


def _judge(key, draft, scores, rule, depth) -> Any:
  judged = Scores(scores.probs, scores.logits)
  verdict = verify.judge(key, draft, judged, rule, depth)
  return _Verdict(*verdict, scores.raw[verdict.path])


def _origins(draft, verdict) -> jax.Array:
  """Origins [B, K+1] of the tokens of a step, up to the one it drew."""
  last = verdict.num_accepted[:, None]
  row = jnp.take_along_axis(verdict.path, last, 1)
  exists = jnp.arange(draft.tokens.shape[1]) < draft.size[:, None]
  below = ((draft.parents == row) & exists).any(1, keepdims=True)
  place = jnp.arange(verdict.path.shape[1])
  drawn = jnp.where(below, _CORRECTED, _BONUS)
  return jnp.where(place < last, _ACCEPTED, drawn).astype(jnp.int8)


def _logprobs(draft, verdict, count: int) -> Logprobs:
  """Log-probabilities [B, K+1] of the tokens of a step, likewise.

  The token at a place was read from the row of the path at that place:

    path    root   x0   x1        row i of the logits is what the target says
    token   x0     x1   y         after row i of the path
  """
  logits = verdict.raw
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


@functools.cache
def _parts(telling: Telling) -> loops.StepParts:
  """The parts of a step that tells, the same ones for equal arguments."""
  origins, count = telling.origins, telling.logprobs

  def tally(told: Told, draft, verdict, added, *rest) -> Any:
    made: dict[str, Any] = {}
    if origins:
      made['origins'] = _origins(draft, verdict)
    if count is not None:
      made['logprobs'] = _logprobs(draft, verdict, count)
    at = told.counts.tokens
    written = {
      name: jax.tree.map(
        lambda old, new: scoring.append(old, new, added, at),
        getattr(told, name),
        new,
      )
      for name, new in made.items()
    }
    counts = counting.add(told.counts, draft, verdict, added, *rest)
    return told._replace(counts=counts, **written)

  if telling == Telling():
    return loops.PARTS
  parts = loops.PARTS._replace(tally=tally)
  if count is None:
    return parts
  return parts._replace(distributions=_distributions, judge=_judge)


def _blank(telling: Telling, shape: tuple[int, ...]) -> tuple[Any, Any]:
  """Origins and log-probabilities of texts [B, S], on the host."""
  origins = np.zeros(shape, np.int8) if telling.origins else None
  if telling.logprobs is None:
    return origins, None
  own, top = (
    np.zeros((*shape, *more), np.float32) for more in ((), (telling.logprobs,))
  )
  made: Any = own, top.astype(np.int32), top
  return origins, Logprobs(*made)


def start(
  telling: Telling, params: Params, prompts: Any, *, spec: Spec, **options: Any
) -> SpecState:
  """As `generate.start`, with what is told beside the counts.

  Raises:
    ValueError: as there; more alternatives than tokens.
  """
  telling.check(spec)
  state = loops.start(params, prompts, spec=spec, **options)
  if telling == Telling():
    return state
  blank = _blank(telling, state.tokens.shape)
  placement = spec.target.placement
  if placement is not None:
    blank = placement.put_rows(blank)
  told: Any = Told(state.counts, *jax.tree.map(jnp.asarray, blank))
  return state._replace(counts=told)


def generate(
  telling: Telling, params: Params, state: SpecState, steps, *, spec: Spec
) -> SpecState:
  """As `generate.generate`, of a state that `start` made with this telling."""
  return loops.generate(params, state, steps, spec=spec, parts=_parts(telling))


def read(counts: Counts | Told, row: int, begin: int, end: int) -> OfTokens:
  """What was told of some new tokens of a row.

  Args:
    counts: of a state, on the host.
    row: of it.
    begin: first new token.
    end: behind the last one.
  """
  names: list[str] = []
  values: list[Logprob] = []
  if isinstance(counts, Told):
    if counts.origins is not None:
      names = [ORIGINS[code] for code in counts.origins[row, begin:end]]
    if counts.logprobs is not None:
      own, ids, top = (x[row, begin:end].tolist() for x in counts.logprobs)
      values = [
        Logprob(value, [*zip(places, others, strict=True)])
        for value, places, others in zip(own, ids, top, strict=True)
      ]
    counts = counts.counts
  return OfTokens(
    jax.tree.map(lambda x: np.array(x[row]), counts), names, values
  )
