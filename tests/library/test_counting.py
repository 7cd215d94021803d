"""What is counted has the mean it is reported to have, near every limit.

Drafted tokens are accepted with a chance of 0.8, whatever they are: accepted
lengths are geometric, cut at K. First exactly, from every verdict that a step
may come to; then from the log of the compiled loop.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.bench import measure
from specjax.drafters import lm
from specjax.loop import counting, generate
from specjax.models import table
from specjax.types import Draft, Params, Spec, Verdict

ALPHA, DEPTH, END = 0.8, 4, 1
CHANCE = ALPHA ** np.arange(DEPTH + 1) * np.append([1 - ALPHA] * DEPTH, 1)
MOST = 40  # tokens


def emitted(limit, *given):
  """Writes a step to empty texts, as the loop does."""
  state = types.SimpleNamespace(limit=limit, length=jnp.zeros_like(limit))
  return generate.PARTS.emit(state, *given)


@functools.cache
def steps():
  """Every step that there is.

  Returns:
    Counts of each step alone, and whether the text has ended; all
    [MOST, K+1, K+2], by the tokens that the text has room for (less 1), the
    accepted length, and the place of an end among the drafted tokens and the
    one after them (the last: nowhere).
  """
  room, accepted, end = np.indices((MOST, DEPTH + 1, DEPTH + 2))
  rows = room.size
  place = np.arange(DEPTH + 1)
  tokens = np.where(place == end.reshape(-1, 1), END, 0)
  accepted = accepted.ravel()
  path = np.minimum(place, accepted[:, None])
  # The token behind the accepted ones is the last of the step.
  after = np.where(end.ravel() == accepted, END, 0)
  chain, size = np.tile(np.arange(DEPTH), (rows, 1)), np.full(rows, DEPTH)

  @jax.jit
  def taken(tokens, verdict, limit):
    draft = Draft(tokens, chain, size, None)
    _, kept, fits, stopped = emitted(limit, draft, verdict, (END,))
    live, beta = jnp.ones(rows, bool), jnp.ones(rows)
    none = counting.none(rows, DEPTH)
    counts = counting.add(none, draft, verdict, kept, fits, live, beta)
    return counts, stopped

  verdict = Verdict(path, accepted, after)
  found = taken(tokens[:, :DEPTH], verdict, room.ravel() + 1)
  return jax.tree.map(
    lambda x: np.asarray(x).reshape(*room.shape, *x.shape[1:]), found
  )


def expected(limit, ends):
  """Mean counts of a text of `limit` tokens, each the last with a chance."""
  # From the first step, which has room for all, to one with room for one.
  counts, stopped = jax.tree.map(lambda x: x[limit - 1 :: -1], steps())
  place = np.append(ends * (1 - ends) ** np.arange(DEPTH + 1), 0)
  place[-1] = 1 - place.sum()
  chance = CHANCE[:, None] * place
  reached = np.zeros(limit + DEPTH + 2)
  reached[0] = 1
  for i in range(limit):
    for n, row in enumerate(chance):
      for e, weight in enumerate(row):
        if not stopped[i, n, e]:
          reached[i + counts.tokens[i, n, e]] += weight * reached[i]
  weights = reached[:limit, None, None] * chance
  return jax.tree.map(lambda x: np.tensordot(weights, x, 3), counts)


@pytest.mark.parametrize('ends', [0.0, 0.2])
@pytest.mark.parametrize('limit', [5, 6, 12, MOST])
def test_accepted_lengths_are_unbiased_at_any_limit(limit, ends):
  found = expected(limit, ends)
  share = found.histogram / found.histogram.sum()
  np.testing.assert_allclose(share, CHANCE, rtol=1e-6)
  assert found.accepted.sum() / found.tried.sum() == pytest.approx(ALPHA)
  np.testing.assert_allclose(found.accepted / found.tried, ALPHA, rtol=1e-6)
  assert found.drafted == pytest.approx(DEPTH * found.histogram.sum())
  # Steps that are not counted are steps.
  assert found.target_calls > found.histogram.sum()
  if not ends:
    assert found.tokens == pytest.approx(limit)


def test_a_short_draft_needs_as_much_room():
  """How much is drafted may depend on what is drawn, so it decides nothing."""
  rows = 2 * (DEPTH + 1)
  chain, none = np.tile(np.arange(DEPTH), (rows, 1)), np.zeros(rows, int)
  draft = Draft(0 * chain, chain, np.arange(rows) // 2, None)
  verdict = Verdict(np.zeros((rows, DEPTH + 1), int), none, none)
  limit = DEPTH + np.arange(rows) % 2
  emit = jax.jit(lambda *x: emitted(*x, ()))
  _, kept, fits, _ = emit(limit, draft, verdict)
  assert kept.tolist() == [1] * rows
  assert fits.tolist() == [False, True] * (DEPTH + 1)


# The loop: target and draft say the same after every token.

P, Q = np.array([0.5, 0.1, 0.4]), np.array([0.3, 0.1, 0.6])
TABLE = table.build(3)
SPEC = Spec(TABLE, lm.make(TABLE, DEPTH), verify.token, (END,))
ROWS, NEW = 600, (5, 6, 9)


def test_the_log_and_the_counts_say_the_same():
  assert np.minimum(P, Q).sum() == pytest.approx(ALPHA)
  logits = (jnp.log(jnp.float32([x, x, x])) for x in (P, Q))
  job = measure.Job(
    [[0]] * ROWS, np.arange(ROWS), sampling.make(ROWS), np.resize(NEW, ROWS),
    seed=0, slots=generate.slots_for(SPEC, 1 + max(NEW)),
  )  # fmt: skip
  run = measure.record(measure.Decoding(SPEC, Params(*logits)), job)
  log, counts = run.log, run.counts
  taken = np.arange(log.length.shape[1]) < counts.target_calls[:, None]
  limit = 1 + job.new_tokens[:, None]
  whole = taken & (limit - log.length > DEPTH)
  np.testing.assert_array_equal(log.accepted >= 0, whole)
  assert (taken & ~whole).any()
  np.testing.assert_array_equal(log.drafted, DEPTH * whole)
  for n in range(DEPTH + 1):
    np.testing.assert_array_equal(
      (log.accepted == n).sum(1), counts.histogram[:, n]
    )
  # The acceptance is what it is reported to be, at 4 standard errors.
  tried, accepted = counts.tried.sum(), counts.accepted.sum()
  error = np.sqrt(ALPHA * (1 - ALPHA) / tried)
  assert abs(accepted / tried - ALPHA) < 4 * error < 0.05


def test_without_room_for_the_longest_step_nothing_is_counted():
  found = expected(DEPTH, 0.0)
  assert found.histogram.sum() == found.drafted == found.tried.sum() == 0
  assert found.tokens == pytest.approx(DEPTH)
