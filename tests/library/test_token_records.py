"""Log-probabilities of new tokens: those of a full pass over the whole text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import tiny_models
from specjax.drafters import lm, plain
from specjax.loop import generate, scoring, token_records
from specjax.loop.token_records import Recording
from specjax.models import table
from specjax.requests import pool, request_sampling
from specjax.types import Draft, Params, Spec, Verdict
from tests.support import models, papers_in_numpy

SMALL, END = models.DRAFT, 10
SPECS = {
  'plain': Spec(SMALL, plain.make(), verify.token, (END,)),
  'chain': Spec(SMALL, lm.make(SMALL, 3), verify.token, (END,)),
  'tree': Spec(
    SMALL, lm.make_tree(SMALL, (0, 0, 1, 1)), verify.recursive, (END,)
  ),
}
PROMPTS = [[1], [2, 3, 4], [4, 5] * 9, [7, 8]]
NEW = [25, 1, 17, 25]
STAGES = {
  'frequency_penalty': [0.0, 0.8, 0.0, -0.4],
  'temperature': [0.0, 1.0, 1.6, 0.7],
  'top_k': [0, 0, 7, 0],
  'top_p': [1.0, 0.8, 1.0, 0.9],
  'min_p': [0.0, 0.0, 0.05, 0.0],
}
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@functools.cache
def params_of(wide=True):
  made = Params(models.weights(SMALL, 5), models.near(SMALL, 5, 0.6))
  return models.double(made) if wide else made


def of_a_full_pass(prompt, text, model=SMALL, params=None):
  """Log-probabilities [n, V] of every place of a text, in float64."""
  params = params_of().target if params is None else params
  ids = np.zeros((1, 64), np.int32)  # One program for all.
  ids[0, : len(prompt) + len(text)] = *prompt, *text
  with jax.enable_x64(True):
    logits = models.score(model, models.double(params), ids)
    logits = jax.nn.log_softmax(logits)[0]
  return np.asarray(logits)[len(prompt) - 1 :][: len(text)]


def check(prompt, text, found, count, tolerance, **options):
  """Everything that was told of a text, against one pass over all of it.

  Raises:
    AssertionError: something differs.
  """
  expected = of_a_full_pass(prompt, text, **options)
  assert len(found) == len(text) == len(expected)
  for token, one, row in zip(text, found, expected, strict=True):
    np.testing.assert_allclose(one.value, row[token], atol=tolerance)
    assert len(one.top) == count
    if not count:
      continue
    ids, values = zip(*one.top, strict=True)
    assert len({*ids}) == count
    assert [*values] == sorted(values, reverse=True)
    np.testing.assert_allclose(values, row[[*ids]], atol=tolerance)
    # Nothing that was left out is more probable.
    np.testing.assert_allclose(values, -np.sort(-row)[:count], atol=tolerance)
    if token in ids:
      assert one.value == values[ids.index(token)]


def restated(prompt, text, frequency, *warps):
  """Log-probabilities [n] of a text behind the stages, in numpy."""
  found = []
  for place, raw in enumerate(of_a_full_pass(prompt, text)):
    logits = papers_in_numpy.process(
      raw, prompt, text[:place], frequency_penalty=frequency
    )
    probs = papers_in_numpy.pipeline(logits, *warps)
    found.append(np.log(probs[text[place]]))
  return found


@pytest.mark.parametrize(
  ('name', 'wide'), [('chain', True), slow('chain', False), slow('tree', True)]
)
def test_they_are_those_of_a_full_pass_over_the_text(name, wide):
  """Compares log-probabilities of the raw softmax and behind all stages.

  In float64 they are rounded once, to float32.
  """
  tolerance = 1e-6 if wide else 1e-5
  with jax.enable_x64(wide):
    state = models.decoded(
      SPECS[name], params_of(wide), PROMPTS,
      sampling.make(4, vocab_size=models.VOCAB, **STAGES), new_tokens=NEW,
      recording=Recording(True, 4, sampled=True), seed=3,
    )  # fmt: skip
    rows = token_records.read(state)
  for i, (prompt, row) in enumerate(zip(PROMPTS, rows, strict=True)):
    expected = restated(prompt, row.tokens, *(x[i] for x in STAGES.values()))
    np.testing.assert_allclose(row.sampled, expected, atol=tolerance)
    check(prompt, row.tokens, row.logprobs, 4, tolerance)
  told = {x for row in rows for x in row.origins}
  assert told == {*token_records.ORIGINS}
  sampled = np.array([x for row in rows[1:] for x in row.sampled])
  raw = np.array([x.value for row in rows[1:] for x in row.logprobs])
  assert np.abs(sampled - raw).max() > 0.3


def test_of_equal_tokens_the_first_ids_are_told():
  """An end of the vocabulary that is never said is told last."""
  given = np.array([2.0, 5.0, 5.0, 2.0, 5.0, -np.inf, 2.0, -np.inf])
  draft = scoring.Draft(*(jnp.zeros((1, n), int) for n in (0, 0)), None, None)
  verdict = Verdict(jnp.zeros((1, 1), int), jnp.zeros(1, int), jnp.array([3]))
  logits = jnp.asarray(given, jnp.bfloat16)[None, None]
  found = token_records._logprobs(draft, verdict, logits, 8)
  assert found.ids[0, 0].tolist() == [1, 2, 4, 0, 3, 6, 5, 7]
  rest = np.log(np.exp(given).sum())
  assert {x.dtype.name for x in (found.own, found.top)} == {'float32'}
  np.testing.assert_allclose(found.own[0, 0], 2 - rest, atol=1e-6)
  np.testing.assert_allclose(
    found.top[0, 0], -np.sort(-given) - rest, atol=1e-6
  )


def test_nothing_is_recorded_that_is_not_asked_for():
  assert Recording().blank((2, 8)) is None
  assert Recording(origins=True).blank((2, 8)).logprobs is None
  empty = Recording(origins=True, logprobs=2, sampled=True).blank((1, 4))
  assert not any(x.any() for x in jax.tree.leaves(empty))
  for count in (None, 0, 20):
    assert Recording(logprobs=count).logprobs == count
  # One program for equal numbers.
  assert hash(Recording(True, np.int64(3))) == hash(Recording(True, 3))


@pytest.mark.parametrize(
  ('parents', 'size', 'path', 'told'),
  [
    ((0, 1, 2), 3, (0, 1), 'accepted corrected'),
    ((0, 1, 2), 1, (0, 1), 'accepted bonus'),
    ((0, 1, 2), 2, (0, 1), 'accepted corrected'),
    ((0, 1, 2), 3, (0, 1, 2, 3), 'accepted accepted accepted bonus'),
    ((0, 1, 2), 0, (0,), 'bonus'),
    ((0, 0, 1), 3, (0, 1), 'accepted corrected'),
    ((0, 0, 1), 2, (0, 1), 'accepted bonus'),
    ((0, 0, 1), 3, (0, 2), 'accepted bonus'),
    ((0, 0, 1), 3, (0,), 'corrected'),
  ],
)
def test_a_token_is_a_correction_where_the_draft_had_one(
  parents, size, path, told
):
  """Nodes at or beyond the size of a draft do not exist."""
  accepted = len(path) - 1
  draft = Draft(
    jnp.ones((1, 3), int), jnp.array([parents]), jnp.array([size]), None
  )
  rows = jnp.array([[*path, *[0] * (3 - accepted)]])
  verdict = Verdict(rows, jnp.array([accepted]), jnp.ones(1, int))
  records = Recording(origins=True).blank((1, 8))
  count = jnp.array([accepted + 1])
  made = token_records.add(
    records, draft, verdict, None, None, count, jnp.zeros(1, int)
  )
  found = [token_records.ORIGINS[i] for i in made.origins[0, : accepted + 1]]
  assert found == told.split()


# Requests


def opened(spec, params, rows, logprobs, *stages):
  """A pool that records log-probabilities, and the values of a request."""
  kinds = request_sampling.of(spec, *stages)
  held = pool.Pool(
    params, spec=spec, values=kinds.values(), rows=rows, slots=128,
    recording=Recording(logprobs=logprobs),
  )  # fmt: skip
  return held, kinds.values


def test_requests_that_come_and_go_have_their_own(float64):
  """Rows are refilled, one request is cancelled, and steps are uneven."""
  random = np.random.default_rng(0)
  held, values_of = opened(SPECS['plain'], params_of(), 2, 3, 'top_k')
  asked, found = {}, {}
  for number in range(7):
    prompt = random.integers(0, 9, 1 + 3 * number).tolist()
    values = values_of(temperature=number / 4, top_k=6)
    key, new = generate.row_keys(0, [number]), 3 + 3 * number
    asked[held.submit(pool.Request(prompt, new, key, values))] = prompt
  for turn in range(99):
    for one in held.turn(steps=1 + turn % 3):
      assert len(one.tokens) == len(one.logprobs)
      assert not one.origins
      mine = found.setdefault(one.id, ([], []))
      mine[0].extend(one.tokens)
      mine[1].extend(one.logprobs)
    if turn == 1:
      held.cancel(max(found))
  assert not held.live + held.waiting
  for number, (text, logprobs) in found.items():
    check(asked[number], text, logprobs, 3, 1e-6)
  assert sum(len(text) for text, _ in found.values()) > 40


@pytest.mark.slow
def test_tokens_that_a_constraint_forces_have_the_chance_they_had(float64):
  """The target's own: not that of the only token that may come."""
  language, model = tiny_models.LANGUAGE, table.build(4)
  params = models.double(
    Params(models.weights(model, 1), models.weights(model, 2))
  )
  spec = Spec(model, lm.make(model, 2), verify.token, (3,))
  held, values_of = opened(spec, params, 1, 1, 'constraint')
  values = values_of(temperature=1.0, constraint=language)
  key = generate.row_keys(0, [1])
  held.submit(pool.Request([0, 1], 12, key, values))
  (one,) = held.turn(steps=99)
  assert one.done
  assert language.follow(one.tokens) >= 0
  options = {'model': model, 'params': params.target}
  check([0, 1], one.tokens, one.logprobs, 1, 1e-6, **options)
  assert min(one.value for one in one.logprobs) < -0.1


def test_more_alternatives_than_tokens_are_refused():
  with pytest.raises(ValueError, match=r'logprobs is 12, but .* 11 tokens'):
    opened(SPECS['chain'], params_of(), 1, 12)
  Recording(logprobs=11).check(SPECS['chain'])
