"""The speculative loop without running it: from the target's own text.

The target writes, and at every place all drafters draft, too. Nothing of it is
scored: a step reads one token of the target, whatever looks on. From p and q at
these places follows how many target calls the loop needs for that very text,
for every draft length, in expectation over its coins (`theory.expected_calls`).

Drawn drafts must have one distribution at each place, whatever was drafted
before it, as a model has one for the next token of a text: then one drafted
token for each place is enough. A drafter without that, such as one that reads
features that it predicts itself, is refused. Chosen tokens depend on where
their draft began, so a whole draft is made at every place and compared with
what the target wrote.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import prompts, verify
from specjax.bench import costs, measure, row_fields, turns
from specjax.bench.measure import Decoding, Run
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan
from specjax.drafters import plain
from specjax.errors import UserError
from specjax.loop import generate, scoring
from specjax.prompts.conversations import Conversation
from specjax.stats import metrics, theory
from specjax.stats.row import by_batch
from specjax.types import Draft, Drafter, Params, Verdict


class _Seen(NamedTuple):
  """A verdict, and the target's distribution of the token it draws."""

  path: jax.Array
  num_accepted: jax.Array
  next_token: jax.Array
  probs: jax.Array  # [V]


class _Record(NamedTuple):
  """The draft that one drafter made at the place of a new token."""

  finite: jax.Array  # [B] whether every q was a distribution
  p: jax.Array  # [B] of the token that was written
  q: jax.Array  # [B]
  beta: jax.Array  # [B] sum(min(p, q))
  tokens: jax.Array  # [B, K] the draft that begins there
  size: jax.Array  # [B]


def _judge(key, draft, scores, rule, depth):
  verdict = verify.judge(key, draft, scores, rule, depth)
  return _Seen(*verdict, probs=scores.probs[0])


PARTS = generate.StepParts(judge=_judge)


def _blank(batch: int, depth: int) -> _Record:
  zero, none = jnp.zeros(batch), jnp.zeros(batch, jnp.int32)
  drafts, finite = jnp.zeros((batch, depth), jnp.int32), jnp.ones(batch, bool)
  return _Record(finite, zero, zero, zero, drafts, none)


def _record(draft: Draft, verdict: _Seen) -> _Record:
  """Returns the record of a draft and the token that the target wrote."""
  vocab, dtype = verdict.probs.shape[-1], verdict.probs.dtype
  some, token = draft.size > 0, verdict.next_token[:, None]
  q = jax.vmap(lambda x: verify.drafted_probs(x, vocab, dtype)[0])(draft)
  own = jnp.take_along_axis(q, token, 1)[:, 0]
  finite = jnp.ones(len(some), bool)
  if draft.probs is not None:
    beyond = jnp.arange(draft.probs.shape[1]) >= draft.size[:, None]
    finite = ((draft.probs.sum(-1) > 0) | beyond).all(1)
  return _Record(
    finite,
    jnp.take_along_axis(verdict.probs, token, 1)[:, 0],
    jnp.where(some, own, 0),
    jnp.where(some, jnp.minimum(verdict.probs, q).sum(1), 0),
    draft.tokens,
    draft.size,
  )


@functools.cache
def onlooker(
  drafters: tuple[Drafter, ...],
  blank: Callable[[int, int], Any] = _blank,
  record: Callable[[Draft, _Seen], Any] = _record,
) -> Drafter:
  """Returns a drafter of no tokens, with others that draft at every place.

  Its parameters are a tuple of theirs, and its state has a record of each.

  Args:
    drafters: those that look on; only chains.
    blank: makes the record before the first place, for B rows of depth K.
    record: makes one of a draft and the token that the target wrote.
  """
  # As the target returns them: by layer.
  taps = tuple(sorted({tap for d in drafters for tap in d.taps}))

  def each(params, *columns):
    own = (Params(params.target, x) for x in params.drafter)
    return zip(drafters, own, *columns, strict=True)

  def features(drafter, hidden):
    return hidden[:, :, np.array([taps.index(t) for t in drafter.taps], int)]

  def init(params, ctx, hidden):
    return tuple(
      (
        drafter.init(own, ctx, features(drafter, hidden)),
        blank(len(ctx.length), drafter.depth),
      )
      for drafter, own in each(params)
    )

  def propose(params, state, ctx, key):
    made = [
      scoring.propose(drafter, own, memory, ctx, key)
      for drafter, own, (memory, _) in each(params, state)
    ]
    return plain.make().propose(params, (), ctx, key)[0], made

  def commit(params, state, ctx, verdict, hidden):
    new = []
    for drafter, own, (draft, memory) in each(params, state):
      path = jnp.zeros((len(ctx.length), drafter.depth + 1), jnp.int32)
      nothing = Verdict(path, verdict.num_accepted, verdict.next_token)
      seen = scoring.along(features(drafter, hidden), path)
      memory = drafter.commit(own, memory, ctx, nothing, seen)
      new.append((memory, record(draft, verdict)))
    return tuple(new)

  return Drafter(
    0,
    0,
    init,
    propose,
    commit,
    taps=taps,
    positions=min((d.positions for d in drafters if d.positions), default=None),
    beyond=max(d.depth + d.beyond for d in drafters),
  )


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


def watch(
  ways: Sequence[Decoding], job: measure.Job, drawn: Sequence[bool]
) -> list[list[Watched]]:
  """Writes the target's texts of a job while drafters look on.

  Args:
    ways: of drafters of chains, for one target; their rules are not used.
    job: the prompts. The texts are those of plain decoding.
    drawn: for each way, whether its drafter gives the distributions of its
      tokens.

  Returns:
    The texts of each way, with what its drafter proposed.

  Raises:
    measure.NotFinite: logits of the target or a draft are NaN or infinite.
  """
  spec, params, _ = ways[0]
  look = onlooker(tuple(way.spec.drafter for way in ways))
  spec = dataclasses.replace(spec, drafter=look, rule=verify.observe)
  params = Params(params.target, tuple(way.params.drafter for way in ways))
  looking, steps = Decoding(spec, params, PARTS), []
  state = begin = measure.start(looking, job)
  for live, state in measure.one_by_one(looking, begin):
    records = jax.device_get([record for _, record in state.drafter])
    for way, record in zip(ways, records, strict=True):
      if not record.finite[live].all():
        raise measure.not_finite(way.params)
    steps.append(records)
  tokens, start, length = jax.device_get(
    (state.tokens, state.start, state.length)
  )
  watched = []
  for seen, has_probs in zip(zip(*steps, strict=True), drawn, strict=True):
    # Each step writes a token of each row: [T, B, ...].
    _, *columns = (np.stack(x) for x in zip(*seen, strict=True))
    watched.append(
      [
        Watched(row[a:b], *(x[: b - a, i] for x in columns), drawn=has_probs)
        for i, (row, a, b) in enumerate(zip(tokens, start, length, strict=True))
      ]
    )
  return watched


def watch_turns(
  methods: Sequence[Method],
  job: measure.Job,
  drawn: Sequence[bool],
  talks: Sequence[Conversation],
) -> list[list[list[Watched]]]:
  """Watches the drafters of methods in every turn.

  Each drafts one token or its whole depth.

  Args:
    methods: those of the drafters, for one target.
    job: the first turn.
    drawn: for each, whether the drafter gives the distributions of its tokens.
      Then its drafts must not end early (`refuse_stops`): whether the drafted
      token would have ended one is not known where the target wrote another.
    talks: the conversations of the domain; none where prompts have no turns.

  Returns:
    For each method a list for each prompt of its turns.
  """
  pairs = zip(methods, drawn, strict=True)
  ways = [m.single if d else m.way for m, d in pairs]
  turns_seen = [watch(ways, job, drawn)]
  while talks:
    answers = [[one.text.tolist() for one in turn[0]] for turn in turns_seen]
    found = turns.following(job, talks, answers)
    if found is None:
      break
    turns_seen.append(watch(ways, found[0], drawn))
  return [
    [[w for w in row if len(w.text)] for row in zip(*seen, strict=True)]
    for seen in zip(*turns_seen, strict=True)
  ]


def refuse_features(built: Loaded) -> Loaded:
  """Refuses drafters whose distributions depend on where their draft began.

  Returns:
    What it was given, if it refuses nothing.

  Raises:
    UserError: one reads features of the target, which it predicts on its own
      from there on, or says all places at once.
  """
  for method in built.methods:
    drafter = method.spec.drafter
    if drafter.taps or drafter.at_once:
      field = built.plan.drafters[method.drafter].field
      why = (
        'reads features of the target' if drafter.taps else 'drafts in one pass'
      )
      raise UserError(
        f'{field}: {method.drafter!r} {why}, so what it says of a place '
        'depends on where its draft began, and cannot be replayed: leave it '
        'out, or use specjax run'
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
      tau=metrics.ratio(tokens, calls).clipped(1, gamma + 1),
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
