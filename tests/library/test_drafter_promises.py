"""What every drafter promises.

An exact rule hides every bug of a drafter: the text stays right and only the
acceptance falls, and acceptance is what is reported. So the promises are tested
of the drafts themselves.

  1  probs is a promise: tokens really were drawn from it
  2  a drawn token stays: the size is a stopping time
  3  memory equals re-reading the text
  4  shapes are fixed, and the host is never asked

The chi-square tests have fixed seeds and a false-alarm rate of 1e-4 in all.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import drafter_trial, laws
from specjax.drafters import counts, lm
from specjax.loop import generate
from specjax.types import Draft, Params, Spec
from tests.support import models

ROWS = 512
ROUNDS = 16
# How tokens are drawn is a matter of the shape, and tested of one walker each;
# `test_walkers` tests siblings that are drawn independently.
FAST = 'lm', 'lm with a stop', 'tree'
DRAWING = *FAST, 'cascade', 'counts'
LEVEL = 1e-4 / (3 * len(DRAWING))
SHAPES = models.slow_unless(FAST, DRAWING)
# Others have the walker of each of these, and others its shape.
ALIKE = (
  'lm', 'chains in eight bits', 'some tokens', 'dflash', 'recycling, tree',
  'dspark, dynamic tree', 'eagle 3, tree', 'cascade over another vocabulary',
)  # fmt: skip
OWN = [x for x in models.DRAFTERS if x not in ALIKE]
# These remember nothing, or what `test_recycling` compares. A policy decides
# where a draft ends, as one that stops does.
FORGETFUL = (
  'plain', 'ngram', 'counts', 'recycling', 'lm, bandit', 'domino, tree'
)  # fmt: skip
MEMORIES = models.slow_unless(['tree'], [x for x in OWN if x not in FORGETFUL])


def texts(rows, slots=128):
  """Random texts of 1 to 12 tokens."""
  return laws.random_texts(rows, models.VOCAB, slots)


def fresh(
  drafter, params, tokens, length, values, source=None, target=models.TARGET
):
  """A context of the texts, and the memory of having read them."""
  return laws.read(
    drafter, params, tokens, length, values, source, target=target
  )


EVERY = np.arange(ROWS)


def proposals(drafter, params, keys, rows=EVERY) -> list[Draft]:
  """Drafts of many texts, at temperatures from 0 to 1.5, under some keys."""
  tokens, length = texts(ROWS)
  values = sampling.make(len(rows), np.resize([0, 0.5, 1, 1.5], ROWS)[rows])
  ctx, memory = fresh(drafter, params, tokens[rows], length[rows], values)
  propose = jax.jit(drafter.propose)
  return [propose(params, memory, ctx, key)[0] for key in keys]


@functools.cache
def drafts(name: str) -> Draft:
  """All of them, of a drafter."""
  keys = [generate.row_keys(0, turn * ROWS + EVERY) for turn in range(ROUNDS)]
  found = proposals(models.DRAFTERS[name][0], models.params_of(name), keys)
  return laws.join(found)


# Promises 1 and 2


@pytest.mark.parametrize('name', SHAPES)
def test_tokens_were_drawn_from_their_probabilities(name):
  assert laws.fits(drafts(name)).least > LEVEL


@pytest.mark.parametrize('name', SHAPES)
def test_probabilities_add_up_to_one(name):
  probs = drafts(name).probs
  exists = laws.existing(drafts(name))
  assert not laws.no_distribution(drafts(name))
  np.testing.assert_allclose(probs[exists].sum(1), 1, atol=1e-5)
  # Rows at temperature 0 have one possible token.
  greedy = np.resize([True, False, False, False], len(probs))
  assert (probs[exists & greedy[:, None]].max(1) == 1).all()


def test_stopped_drafts_have_every_length():
  sizes = np.bincount(drafts('lm with a stop').size, minlength=5)
  assert (sizes > [-1, 100, 100, 100, 100]).all()
  assert sizes[0] == 0


def test_keeping_an_unlikely_token_and_stopping_breaks_none():
  draft = drafts('lm')
  q = np.take_along_axis(draft.probs, draft.tokens[..., None], 2)[..., 0]
  stopped = np.cumprod(q > 0.3, 1).sum(1) + 1
  stopped = draft._replace(size=np.minimum(stopped, draft.tokens.shape[1]))
  assert drafter_trial.broken(stopped, ROWS, 1e-4) == 0


# Promise 3


def gap(drafter, params, memory, ctx, key, target=models.TARGET) -> float:
  """Largest difference of q between a memory and reading the text anew."""
  ours, theirs = laws.reread(target, drafter, params, memory, ctx, key)
  assert ours.probs is None or (ours.size > 0).all()
  return float(laws.rows_apart(ours, theirs).max())


def gaps_of_a_run(spec, params, state, steps=8, target=models.TARGET):
  """Gaps after each step of a real run, and the lengths it accepted."""
  gaps, accepted = [], set()
  for _ in range(steps):
    before = np.asarray(state.counts.histogram)
    state = generate.generate(params, state, jnp.int32(1), spec=spec)
    stepped = np.asarray(state.counts.histogram) - before
    accepted |= set(np.flatnonzero(stepped.any(0)).tolist())
    given = spec.drafter, params, state.drafter, generate.context(state)
    gaps.append(gap(*given, state.key, target))
  return gaps, accepted


@pytest.mark.parametrize('name', MEMORIES)
def test_memory_equals_reading_again(name, float64):
  # In double precision, as a head of random weights makes single digits many.
  spec, params = models.spec_of(name), models.params_of(name)
  gaps, accepted = gaps_of_a_run(spec, params, models.begin(name))
  assert max(gaps) < 1e-12
  # Not by never having had anything to remember or to forget.
  assert 0 in accepted
  assert len(accepted) > 1
  if name == 'lm with a stop':
    assert models.DEPTH in accepted


# Promise 4


@pytest.mark.parametrize('name', models.slow_unless(['tree'], OWN))
def test_shapes_are_fixed_and_the_host_is_not_asked(name):
  drafter, params = models.DRAFTERS[name][0], models.params_of(name)
  assert laws.not_fixed(models.TARGET, drafter, params) == ''


# The ceiling


def test_a_target_accepts_itself_always(float64):
  spec = Spec(models.DRAFT, lm.make(models.DRAFT, 4), verify.token)
  target = models.double(models.draft_weights())
  values = sampling.make(6, models.TEMPERATURES)
  given = spec, Params(target, target), models.PROMPTS, values
  counts = models.decoded(*given).counts
  assert counts.tried.sum() > 100
  assert counts.accepted.sum() == counts.tried.sum()


# Drafters one by one


def test_counts_back_off_to_single_tokens():
  # 0 is followed by 1 twice and by 2 once; 3 and 4 by nothing at all.
  tables = counts.count([[0, 1, 0, 1, 0, 2], [3], [4]], 5, successors=2)
  single = np.array([4, 3, 2, 2, 2]) / 13
  np.testing.assert_allclose(tables.unigram, single, rtol=1e-6)
  after = jax.jit(functools.partial(counts.distribution_after, tables))
  np.testing.assert_allclose(after(0), [0, 2 / 3, 1 / 3, 0, 0], atol=1e-6)
  np.testing.assert_allclose(after(1), [1, 0, 0, 0, 0], atol=1e-6)
  np.testing.assert_allclose(after(3), single, rtol=1e-6)
  tables = counts.count([[0, 1, 0, 1, 0, 2], [3], [4]], 5, successors=0)
  after = jax.jit(functools.partial(counts.distribution_after, tables))
  np.testing.assert_allclose(after(0), single, rtol=1e-6)


def test_counts_draft_from_their_law():
  """At a temperature of 1, after the text and after the token drafted first."""
  draft, (tokens, length) = drafts('counts'), texts(ROWS)
  last = np.tile(tokens[EVERY, length - 1], ROUNDS)
  before = np.stack([last, draft.tokens[:, 0]], 1)
  tables = models.params_of('counts').drafter
  after = functools.partial(counts.distribution_after, tables)
  law = jax.jit(jax.vmap(jax.vmap(after)))(before)
  np.testing.assert_allclose(draft.probs[2::4], law[2::4], atol=1e-5)


def test_counts_penalise_tokens_drafted_before_and_no_other():
  drafter, params = counts.make(3), models.params_of('counts')
  keys, drafted = generate.row_keys(0, EVERY), []
  for penalty in (0.0, 2.0):
    stages = {'presence_penalty': penalty, 'vocab_size': models.VOCAB}
    values = sampling.make(ROWS, 0.1, **stages)
    ctx, memory = fresh(drafter, params, *texts(ROWS), values)
    history = sampling.history(values, ctx.tokens, ctx.length, models.VOCAB)
    ctx = ctx._replace(history=history)
    draft, _ = jax.jit(drafter.propose)(params, memory, ctx, keys)
    drafted.append(draft.tokens.tolist())
  free, penalised = drafted
  assert [row[0] for row in free] == [row[0] for row in penalised]
  assert len({row[0] for row in free}) > 5
  assert all(len({*row}) == 3 for row in penalised)
  assert not all(len({*row}) == 3 for row in free)


def test_counts_spread_what_the_successors_leave():
  text = [0, 1, 0, 1, 0, 2, 0, 3]
  tables = counts.count([text], 4, successors=1)
  # Half of what follows 0 is 1; the rest is shared by how often 0, 2, 3 are.
  expected = np.array([5, 0, 2, 2]) / 9 / 2 + [0, 0.5, 0, 0]
  after = jax.jit(counts.distribution_after)
  np.testing.assert_allclose(after(tables, 0), expected, rtol=1e-6)


@pytest.mark.parametrize('name', ['ngram', 'suffix, tree'])
def test_chosen_tokens_promise_nothing(name):
  drafter, params = models.DRAFTERS[name][0], models.params_of(name)
  ctx, memory = fresh(drafter, params, *texts(4), sampling.make(4))
  keys = generate.row_keys(0, range(4))
  draft, _ = jax.eval_shape(drafter.propose, params, memory, ctx, keys)
  assert draft.probs is None


@pytest.mark.parametrize('successors', [0, 3])
def test_counts_are_laws_after_every_token(successors):
  """After tokens that were never seen too, and in tiny vocabularies."""
  text = np.random.default_rng(0).integers(0, 5, 100)
  tables = counts.count([text], 8, successors)
  after = functools.partial(counts.distribution_after, tables)
  probs = jax.jit(jax.vmap(after))(jnp.arange(8))
  assert (probs >= 0).all()
  np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
