"""The speculative loop without running it: from the target's own text.

The target writes, and at every place the drafter drafts, too, of which nothing
is accepted (`verify.observe`). From p and q at these places follows how many
target calls the loop needs for that very text, for every draft length, in
expectation over its coins (`theory.expected_calls`).

Drawn drafts must have one distribution at each place, whatever was drafted
before it, as a model has one for the next token of a text: then one drafted
token for each place is enough. A drafter without that, such as one that reads
features that it predicts itself, is refused. Chosen tokens depend on where
their draft began, so a whole draft is made at every place and compared with
what the target wrote.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import prompts, verify
from specjax.bench import costs, measure, row_fields, turns
from specjax.bench.measure import Decoding, Run
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan
from specjax.errors import UserError
from specjax.loop import generate
from specjax.prompts.conversations import Conversation
from specjax.stats import metrics, theory
from specjax.stats.row import by_batch


class _Seen(NamedTuple):
  """A verdict, and the chances of the written token under p and q."""

  path: jax.Array
  num_accepted: jax.Array
  next_token: jax.Array
  p: jax.Array
  q: jax.Array


class _Log(NamedTuple):
  """Stored in `SpecState.counts`: T new tokens, a column for each."""

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
  """One text of the target, with a drafter's proposals along it."""

  text: np.ndarray  # [T]
  p: np.ndarray  # [T] of each token of the text
  q: np.ndarray  # [T]
  beta: np.ndarray  # [T]
  tokens: np.ndarray  # [T, K]
  size: np.ndarray  # [T]
  drawn: bool

  def accept(self, gamma: int) -> np.ndarray:
    """Returns the chances [T, gamma] for `theory.expected_calls`."""
    if self.drawn:
      return theory.along(np.minimum(self.q / self.p, 1), gamma)
    length = len(self.text)
    padded = np.concatenate([self.text, np.full(gamma, -1)])
    places = np.arange(length)[:, None] + np.arange(gamma)
    same = padded[places] == self.tokens[:, :gamma]
    return (same & (np.arange(gamma) < self.size[:, None])).astype(float)

  def calls(self, gamma: int) -> float:
    """Expects so many target calls of the loop for this text."""
    return theory.expected_calls(self.accept(gamma))

  def calls_by_beta(self, gamma: int) -> float:
    """Expects calls by the overlap of p and q in place of each chance."""
    return theory.expected_calls(theory.along(self.beta, gamma))


def watch(way: Decoding, job: measure.Job, drawn: bool) -> list[Watched]:
  """Writes the target's texts of a job while a drafter looks on.

  Args:
    way: of a drafter of chains; its rule is not used.
    job: the prompts. The texts are those of plain decoding.
    drawn: whether the drafter gives the distributions of its tokens.

  Raises:
    measure.NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec, params, _ = way
  spec = dataclasses.replace(spec, rule=verify.observe)
  state = measure.start(Decoding(spec, params), job)
  longest = int(np.max(job.new_tokens))
  shape = len(job.prompts), longest
  empty, none = jnp.zeros(shape), jnp.zeros(shape, jnp.int32)
  drafts = jnp.zeros((*shape, spec.drafter.depth), jnp.int32)
  log = _Log(none[:, 0], empty, empty + 0, empty - 0, drafts, none + 0)
  state = generate.generate(
    params,
    state._replace(counts=log),
    jnp.asarray(longest, jnp.int32),
    spec=spec,
    parts=_PARTS,
  )
  state = jax.device_get(state._replace(cache=(), drafter=(), key=None))
  if not state.finite.all():
    raise measure.not_finite(params)
  watched = []
  for row, (a, b) in enumerate(zip(state.start, state.length, strict=True)):
    columns = (x[row, : b - a] for x in state.counts[1:])
    watched.append(Watched(state.tokens[row, a:b], *columns, drawn=drawn))
  return watched


def watch_method(
  method: Method, job: measure.Job, drawn: bool
) -> list[Watched]:
  """Watches a method's drafter, for one token or its whole depth.

  Args:
    method: the drafter's.
    job: the prompts.
    drawn: whether the drafter gives the distributions of its tokens. Then its
      drafts must not end early (`refuse_stops`): whether the drafted token
      would have ended one is not known where the target wrote another.
  """
  if not drawn:
    return watch(method.way, job, False)
  return watch(method.single, job, True)


def watch_turns(
  method: Method, job: measure.Job, drawn: bool, talks: Sequence[Conversation]
) -> list[list[Watched]]:
  """Watches a drafter in every turn; returns a list for each prompt.

  Args:
    method: the drafter's.
    job: the first turn.
    drawn: see `watch_method`.
    talks: the conversations of the domain; none where prompts have no turns.
  """
  seen = [watch_method(method, job, drawn)]
  while talks:
    answers = [[one.text.tolist() for one in turn] for turn in seen]
    found = turns.following(job, talks, answers)
    if found is None:
      break
    seen.append(watch_method(method, found[0], drawn))
  return [[w for w in row if len(w.text)] for row in zip(*seen, strict=True)]


def refuse_features(built: Loaded) -> Loaded:
  """Refuses drafters whose distributions depend on where their draft began.

  Returns:
    What it was given, if it refuses nothing.

  Raises:
    UserError: one reads features of the target, which it predicts on its own
      from there on.
  """
  for method in built.methods:
    if method.spec.drafter.taps:
      field = built.plan.drafters[method.drafter].field
      raise UserError(
        f'{field}: {method.drafter!r} reads features of the target, so what it '
        'says of a place depends on where its draft began, and cannot be '
        'replayed: leave it out, or use specjax run'
      )
  return built


def refuse_stops(plan: Plan, method: Method, job: measure.Job) -> None:
  """Refuses drafts that end early by what was drawn.

  Raises:
    UserError: one of the job's drafts did.
  """
  counts = measure.decode(method.way, job, timed=False).counts
  if counts.drafted.sum() < method.gamma * counts.histogram.sum():
    field = plan.drafters[method.drafter].field
    raise UserError(
      f'{field}: drafts of {method.drafter!r} end early by what was drawn, '
      'which cannot be replayed: leave its threshold out, or use '
      'specjax run'
    )


def compare(seen: dict, cost: dict, base: list[Run], runs: list[Run]) -> dict:
  """Compares the loop with what was predicted for one cell.

  Differences are paired on prompts. Rows of a batch that have ended wait,
  which the prediction knows nothing of: it is compared with the speed-up of
  rows that are at work.

  Args:
    seen: the row of the replay.
    cost: the row of the costs; its gamma is that of the loop.
    base: plain decoding of every prompt.
    runs: the loop on every prompt.

  Returns:
    The fields of a row of the part `check`.
  """
  gamma = cost['gamma']
  place = seen['gammas'].index(gamma)
  expected = seen['unit_target_calls'][place]

  def column(some: list[Run], name: str) -> list[int]:
    return [int(n) for r in some for n in getattr(r.counts, name)]

  tokens, calls = (column(runs, name) for name in ('tokens', 'target_calls'))
  ours, plain = (row_fields.batches_of(x) for x in (runs, base))
  steps = plain.seconds, plain.places, ours.seconds, ours.places
  # Only the last batch may be smaller.
  written = (
    by_batch({'batch': len(runs[0].texts), 'seen': one}, 'seen')
    for one in (seen['unit_tokens'], expected)
  )

  turns = {k: np.array(v) for k, v in cost['seconds_per_step'].items()}

  def at_work(bs, bp, s, p, t, n):
    return bs / bp / (s / p) * (t / n)

  def over(s, m, bs, bp, sec, p, t, n, c, v):
    predicted = metrics.predicted_speedup(s / m, c, v, gamma)
    return predicted / at_work(bs, bp, sec, p, t, n)

  same = [
    digest == prompts.digest([text])
    for digest, text in zip(
      seen['digests'], (text for r in runs for text in r.texts), strict=True
    )
  ]
  equal = [
    alike and abs(e - n) < 1e-9
    for alike, e, n in zip(same, expected, calls, strict=True)
  ]
  return {
    'alpha': seen['alpha'],
    'alpha_ci': seen['alpha_ci'],
    'predicted_tau': seen['tau'][place],
    'tau_by_beta': seen['tau_by_beta'][place],
    'tau_iid': seen['tau_iid'][place],
    'same_text': sum(same),
    'equal_calls': sum(equal),
    'c': cost['c'],
    'v': cost['v'],
    'predicted_speedup': metrics.predicted_speedup(
      seen['tau'][place], cost['c'], cost['v'], gamma
    ),
    **metrics.fields(
      tau=metrics.ratio(tokens, calls),
      difference=metrics.estimate(
        lambda t, n, s, m: t / n - s / m,
        tokens,
        calls,
        seen['unit_tokens'],
        expected,
      ),
      speedup=metrics.speedup(
        plain.seconds, plain.tokens, ours.seconds, ours.tokens
      ),
      speedup_at_work=metrics.estimate(
        at_work, *steps, ours.tokens, ours.calls, positive=True
      ),
      predicted_over_measured=metrics.combine(
        over,
        metrics.Sums(*written, *steps, ours.tokens, ours.calls),
        costs.Costs(gamma, **turns).draws,
        positive=True,
      ),
    ),
    'unit_tokens': tokens,
    'unit_target_calls': calls,
    'unit_seconds': [r.seconds for r in runs],
    'unit_baseline_tokens': column(base, 'tokens'),
    'unit_baseline_seconds': [r.seconds for r in base],
  }
