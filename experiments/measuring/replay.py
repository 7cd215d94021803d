"""The speculative loop without running it: from the target's own text.

While the target writes, a drafter looks on: at every place it proposes, and
nothing of it is accepted (`verify.observe`). What is kept of p and q there is
enough to say how many target calls the loop needs for that very text, for
every draft length, in expectation over its coins (`theory.expected_calls`).

A drawn draft has one law of each place, whatever was drafted before it: a
model's law of the next token, given the text. One drafted token a place tells
all. Where that does not hold, as for features that a draft predicts for
itself, a drafter is refused. Chosen tokens depend on where their draft began,
so a whole draft is made from every place and compared with what the target
wrote.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from experiments.measuring import measure
from experiments.measuring.build import Built, Method
from experiments.setup.plan import Plan
from specjax import generate, theory, verify
from specjax.types import Spec


class _Seen(NamedTuple):
  """A verdict, and what p and q give the token that was written."""

  path: jax.Array
  num_accepted: jax.Array
  next_token: jax.Array
  p: jax.Array
  q: jax.Array


class _Log(NamedTuple):
  """In the place of the counts: T new tokens, a column for each."""

  columns: jax.Array  # [B] written so far
  p: jax.Array  # [B, T] of the token that was written
  q: jax.Array  # [B, T]
  beta: jax.Array  # [B, T] sum(min(p, q))
  tokens: jax.Array  # [B, T, K] the draft that begins there
  size: jax.Array  # [B, T]


def _judge(key, draft, scores, rule, depth):
  verdict = verify.judge(key, draft, scores, rule, depth)
  vocab = scores.probs.shape[-1]
  q = verify.drafted_probs(draft, vocab, scores.probs.dtype)[0]
  token = verdict.next_token
  q = jnp.where(draft.size > 0, q[token], 0)
  return _Seen(*verdict, p=scores.probs[0, token], q=q)


def _tally(log, draft, verdict, count, whole, live, beta):
  del count, whole  # Unused.
  here = jnp.arange(log.p.shape[1]) == log.columns[:, None]
  here &= live[:, None]

  def put(old, new):
    at = here.reshape(*here.shape, *(1,) * (old.ndim - 2))
    return jnp.where(at, new[:, None], old)

  return _Log(
    log.columns + live,
    put(log.p, verdict.p),
    put(log.q, verdict.q),
    put(log.beta, beta),
    put(log.tokens, draft.tokens),
    put(log.size, draft.size),
  )


_PARTS = generate.StepParts(judge=_judge, tally=_tally)


class Watched(NamedTuple):
  """One text of the target, and what a drafter would have proposed for it."""

  text: np.ndarray  # [T]
  p: np.ndarray  # [T] of each token of the text
  q: np.ndarray  # [T]
  beta: np.ndarray  # [T]
  tokens: np.ndarray  # [T, K]
  size: np.ndarray  # [T]
  drawn: bool

  def accept(self, gamma: int) -> np.ndarray:
    """The chances [T, gamma] that `theory.expected_calls` wants."""
    if self.drawn:
      return theory.along(np.minimum(self.q / self.p, 1), gamma)
    length = len(self.text)
    padded = np.concatenate([self.text, np.full(gamma, -1)])
    places = np.arange(length)[:, None] + np.arange(gamma)
    same = padded[places] == self.tokens[:, :gamma]
    return (same & (np.arange(gamma) < self.size[:, None])).astype(float)

  def calls(self, gamma: int) -> float:
    """Target calls of the loop for this text."""
    return theory.expected_calls(self.accept(gamma))

  def calls_by_beta(self, gamma: int) -> float:
    """The same with the overlap of p and q in place of each chance."""
    return theory.expected_calls(theory.along(self.beta, gamma))


def is_drawn(spec: Spec, params, job: measure.Job) -> bool:
  """Whether a drafter gives the laws of its tokens."""

  def propose(params):
    state = measure.start(spec, params, job)
    ctx = generate.context(state)
    return spec.drafter.propose(params, state.drafter, ctx, state.key)[0]

  return jax.eval_shape(propose, params).probs is not None


def watch(spec: Spec, params, job: measure.Job, drawn: bool) -> list[Watched]:
  """The target's texts of a job, written while a drafter looks on.

  Args:
    spec: of a drafter of chains; its rule is not used.
    params: its parameters.
    job: what is continued. The texts are those of plain decoding.
    drawn: whether the drafter gives the laws of its tokens.

  Raises:
    measure.NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec = dataclasses.replace(spec, rule=verify.observe)
  state = measure.start(spec, params, job)
  shape = len(job.prompts), job.new_tokens
  empty, none = jnp.zeros(shape), jnp.zeros(shape, jnp.int32)
  drafts = jnp.zeros((*shape, spec.drafter.depth), jnp.int32)
  log = _Log(none[:, 0], empty, empty + 0, empty - 0, drafts, none + 0)
  state = generate.generate(
    params,
    state._replace(counts=log),
    jnp.asarray(job.new_tokens, jnp.int32),
    spec=spec,
    parts=_PARTS,
  )
  state = jax.device_get(state._replace(cache=(), drafter=(), key=None))
  if not state.finite.all():
    raise measure.NotFinite(
      'logits of the target or the draft are NaN or infinite'
    )
  found = []
  for row, (a, b) in enumerate(zip(state.start, state.length, strict=True)):
    columns = (x[row, : b - a] for x in state.counts[1:])
    found.append(Watched(state.tokens[row, a:b], *columns, drawn=drawn))
  return found


def watch_method(method: Method, job: measure.Job) -> list[Watched]:
  """What a method's drafter proposes, of one token or of its whole depth.

  Raises:
    UserError: drafts of tokens that are drawn end early: whether the drafted
      token would have ended one is not known where the target wrote another.
  """
  if not is_drawn(method.spec, method.params, job):
    return watch(method.spec, method.params, job, False)
  return watch(method.single, method.single_params, job, True)


def refuse_features(plan: Plan, built: Built) -> None:
  """Refuses drafters whose law depends on where their draft began.

  Raises:
    UserError: one reads features of the target, which it predicts on its own
      from there on.
  """
  for method in built.methods:
    if method.spec.drafter.taps:
      field = plan.drafters[method.drafter].field
      raise UserError(
        f'{field}: {method.drafter!r} reads features of the target, so what it '
        'says of a place depends on where its draft began, and cannot be '
        'replayed: leave it out, or use experiments.run'
      )


def refuse_stops(plan: Plan, method: Method, job: measure.Job) -> None:
  """Refuses drafts that end early by what was drawn.

  Raises:
    UserError: one of the job's drafts did.
  """
  counts = measure.decode(method.spec, method.params, job, timed=False).counts
  if counts.drafted.sum() < method.gamma * counts.histogram.sum():
    field = plan.drafters[method.drafter].field
    raise UserError(
      f'{field}: drafts of {method.drafter!r} end early by what was drawn, '
      'which cannot be replayed: leave its threshold out, or use '
      'experiments.run'
    )
