"""Every number of a run that was worked out by hand; and the compiled loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, trees
from specjax.bench import measure, row_fields
from specjax.certify import planted
from specjax.types import Draft, Params
from tests.support import expected_row, scripted_run
from tests.support.measuring_checks import CHECKS, wrong_fields
from tests.support.wrong_numbers import WRONG_NUMBERS


def test_a_field_that_nobody_worked_out_is_seen():
  row = scripted_run.make(1).row
  assert wrong_fields(row | {'new': 1}, 1) == {'new'}
  del row['tau']
  assert wrong_fields(row, 1) == {'tau'}


def scripted(depth):
  """The script as a drafter of the real loop, whose parameters are texts."""

  def propose(params, state, ctx, key):
    del key  # Unused.
    rows = jnp.arange(len(ctx.length))
    line = ctx.tokens[:, 0] // 16
    place = jnp.minimum(ctx.length - 1 - line % 3, scripted_run.NEW - 1)
    size, right, eighths = (
      jnp.asarray(x)[line, place]
      for x in (scripted_run.DRAFTED, scripted_run.RIGHT, scripted_run.EIGHTHS)
    )
    token = ctx.tokens[rows, ctx.length - 1]
    tokens, probs = [], []
    for i in range(depth):
      token = params.drafter[token]
      other = (token + 1) % scripted_run.VOCAB
      # The target is sure of its token, so this is the overlap.
      q = jnp.zeros((len(rows), scripted_run.VOCAB)).at[rows, token]
      q = q.set(eighths / 8).at[rows, other].set(1 - eighths / 8)
      tokens.append(jnp.where(i < right, token, other))
      probs.append(q)
    draft = Draft(
      jnp.stack(tokens, 1),
      trees.chain(len(rows), depth),
      jnp.minimum(size, depth),
      jnp.stack(probs, 1),
    )
    return draft, state

  return propose


def test_the_compiled_loop_counts_what_is_known():
  """Batches of two, decoded and recorded by the program that users run."""
  spec = scripted_run.built().methods[0].spec
  drafter = spec.drafter._replace(propose=scripted(scripted_run.DEPTH))
  spec = dataclasses.replace(spec, drafter=drafter)
  after = scripted_run.successors()
  logits = 9.0 * (np.arange(scripted_run.VOCAB) == after[:, None])
  params = Params(jnp.asarray(logits, jnp.float32), jnp.asarray(after))
  texts, runs = scripted_run.prompts(), []
  for i in range(0, len(texts), 2):
    values = sampling.make(2, 0.0, eos=spec.eos, vocab_size=scripted_run.VOCAB)
    job = measure.Job(
      texts[i : i + 2], np.array([i, i + 1]), values, scripted_run.NEW, 0, 128
    )
    runs.append(measure.record(measure.Decoding(spec, params), job))
  counts = jax.device_get(row_fields.join(runs))
  for name in ('tokens', 'target_calls', 'histogram'):
    found = getattr(counts, name).tolist()
    assert found == expected_row.COUNTS[f'unit_{name}']
  assert counts.drafted.sum() == expected_row.COUNTS['drafted']
  assert counts.misses.sum() == 5
  conditional = counts.accepted.sum(0) / counts.tried.sum(0)
  right = expected_row.ACCEPTANCE['acceptance_by_position_conditional']
  assert conditional.tolist() == pytest.approx(right)
  # beta of the whole steps, in eighths.
  places = [
    [length - len(text) for length, *_ in line]
    for line, text in zip(expected_row.STEPS, texts, strict=True)
  ]
  eighths = [scripted_run.EIGHTHS[i][x].sum() for i, x in enumerate(places)]
  assert (8 * counts.overlap).tolist() == eighths
  bins = row_fields.by_step(runs)['acceptance_by_context']
  assert [b['steps'] for b in bins] == [12, 5, 11, 4]
  found = [b['acceptance'] for b in bins]
  assert found == [16 / 26, 5 / 9, 19 / 30, 3 / 7]


def test_every_check_passes():
  assert [name for name, check in CHECKS.items() if not check()] == []
  # No check is idle.
  assert CHECKS.keys() == {bug.check for bug in WRONG_NUMBERS}


@pytest.mark.slow
@pytest.mark.parametrize('bug', WRONG_NUMBERS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug):
  assert bug.found()


def test_54_bugs_are_planted():
  """As `docs/exactness.md` says; the certificate plants 43 more."""
  assert len({bug.name for bug in WRONG_NUMBERS}) == len(WRONG_NUMBERS) == 54
  others = planted.WRONG_RULES, planted.WRONG_LOOPS, planted.WRONG_MEMORIES
  assert sum(map(len, others)) == 43
