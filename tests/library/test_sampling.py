"""The logits pipeline against its transcription."""

import types

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, trees
from specjax.drafters import plain
from specjax.loop import scoring
from specjax.sampling import probs
from specjax.types import Draft, Scores
from tests.support import papers_in_numpy

VOCAB = 9


@jax.jit
def probs_of(logits, values):
  return sampling.distribution(logits, values)


def values(temperature, top_k=0, top_p=1.0, min_p=0.0):
  """Values of one sequence with every stage present."""
  made = sampling.make(1, temperature, top_k, top_p, min_p)
  return jax.tree.map(lambda x: x[0], made)


def rounded(temperature, top_k=0, top_p=1.0, min_p=0.0):
  """What `make` keeps of them: values are float32 whatever the logits are."""
  return (
    float(np.float32(temperature)),
    top_k,
    float(np.float32(top_p)),
    float(np.float32(min_p)),
  )


def clear_cut(logits, temperature, top_k, top_p, min_p):
  """Whether no token is so close to a cut that rounding decides."""
  if np.diff(np.sort(logits)).min() < 1e-6:
    return False
  kept = [
    papers_in_numpy.pipeline(
      logits, temperature, top_k, min(1, top_p * nudge), min_p * other
    )
    > 0
    for nudge in (1 - 1e-9, 1, 1 + 1e-9)
    for other in (1 - 1e-9, 1 + 1e-9)
  ]
  return all((k == kept[0]).all() for k in kept)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
  logits=st.lists(
    st.floats(-8, 8), min_size=VOCAB, max_size=VOCAB, unique=True
  ),
  temperature=st.one_of(st.just(0.0), st.floats(0.1, 3)),
  top_k=st.integers(0, VOCAB + 3),
  top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
  min_p=st.one_of(st.just(0.0), st.floats(0, 0.9)),
)
def test_distribution_is_that_of_the_reference(logits, **setting):
  setting = rounded(**setting)
  hypothesis.assume(clear_cut(logits, *setting))
  with jax.enable_x64(True):
    ours = probs_of(jnp.asarray(logits, jnp.float64), values(*setting))
    theirs = papers_in_numpy.pipeline(logits, *setting)
    assert ours.dtype == jnp.float64
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
  assert ((np.asarray(ours) > 0) == (theirs > 0)).all()


@pytest.mark.parametrize('size', [1, 64, 1000])
def test_long_and_short_vocabularies(size, float64):
  logits = np.random.default_rng(size).normal(size=size) * 3
  for setting in (
    (1.0, 0, 0.9, 0.0),
    (0.7, 40, 1.0, 0.0),
    (1.5, 30, 0.8, 0.05),
    (0.0, 2, 0.1, 0.5),
  ):
    ours = probs_of(jnp.asarray(logits), values(*setting))
    theirs = papers_in_numpy.pipeline(logits, *rounded(*setting))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('size', [1, 7, 1000])
def test_a_cut_is_the_same_by_bits_and_by_digits(dtype, size, float64):
  random = np.random.default_rng(size)
  sharp = np.exp(random.normal(size=size) * random.choice([0.1, 4, 40]))
  given = (sharp / sharp.sum()).astype(dtype)
  given[size // 2 :: 3] = given[0]  # Ties.
  given[1::5] = 0

  @jax.jit
  def cuts(given, share):
    return [
      way(given, enough)
      for way in (probs.bisect, probs.by_digits)
      for enough in (
        lambda mask: jnp.sum(mask) >= share * size,
        lambda mask: (mask * given).sum() >= share * given.sum(),
      )
    ]

  for share in (0.1, 0.5, 0.9, 0.999):
    found = cuts(given, share)
    kept = [given >= x.view(dtype) for x in map(np.asarray, found)]
    np.testing.assert_array_equal(kept[:2], kept[2:])
    assert all(x.any() for x in kept)


def test_a_search_by_bits_ends_where_one_probability_is_left():
  """Each turn counts the probabilities that reach its threshold."""
  counts = []

  def enough(mask):
    counts.append(int(mask.sum()))
    return counts[-1] >= 2

  with jax.disable_jit():
    found = probs.bisect(jnp.array([0.5, 0.25, 0.125], jnp.float32), enough)
  assert counts == [0, 3, 3, 3, 3, 3, 1, 2]
  assert found == np.float32(0.25).view(np.int32)


def test_equal_probabilities_at_a_cut_are_all_kept():
  logits = jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2]))
  for setting in ({'top_k': 2}, {'top_p': 0.5}):
    probs = probs_of(logits, values(1.0, **setting))
    np.testing.assert_allclose(probs, [0.4, 0.2, 0.2, 0.2], rtol=1e-6)


def test_impossible_tokens_stay_impossible():
  logits = jnp.array([0.0, -jnp.inf, 1.0, -jnp.inf])
  probs = np.asarray(probs_of(logits, values(1.3, top_k=3, top_p=0.99)))
  assert (probs[[1, 3]] == 0).all()
  np.testing.assert_allclose(probs.sum(), 1, rtol=1e-6)


def test_low_precision_logits_give_float32():
  logits = jnp.asarray([1.0, 2.0], jnp.bfloat16)
  assert probs_of(logits, values(1.0)).dtype == jnp.float32


def test_stages_that_do_not_exist_change_nothing(float64):
  logits = jnp.asarray(np.random.default_rng(3).normal(size=VOCAB))
  alone = jax.tree.map(lambda x: x[0], sampling.make(1, 0.8))
  np.testing.assert_allclose(
    probs_of(logits, alone), probs_of(logits, values(0.8)), rtol=0, atol=1e-15
  )


# Temperatures from 0 to the largest that is allowed. Below 1.2e-38 float32 has
# subnormal numbers, which a CPU takes for 0 and others do not.
TEMPERATURES = (
  *(0.0, 1e-50, 1e-45, 1e-38, 1.2e-38, 1e-30, 1e-10, 1e-3),
  *(0.3, 1.0, 7.0, 1e4, 1e30, 1e37),
)
LOGITS = {
  'usual': (0.3, -1.2, 2.5, 0.1, -4.0, 1.9),
  'ties': (1.0, 3.0, -2.0, 3.0, 3.0, 2.999999),
  'all alike': (7.0,) * 6,
  'large': (1e37, 1e36, 0.0, -1e38, 1e37, 5.0),
  'the largest': (1.6e38, 1.5e38, -1.6e38, 0.0, 1.0, 1.6e38),
  'small': (1e-30, 0.0, -1e-30, 2e-30, 1e-36, 0.0),
  'far from 0': (-1e4, -1e4 - 1, -1e4 - 2, -2e4, -1e4 + 0.5, -3e4),
  'forbidden': (-np.inf, 1.0, 2.0, -np.inf, 0.5, -np.inf),
  'one left': (-np.inf, -np.inf, -3.0, -np.inf, -np.inf, -np.inf),
}


@pytest.mark.parametrize(
  ('name', 'compiled'),
  [
    *((name, True) for name in LOGITS),
    *((name, False) for name in ('ties', 'the largest', 'small')),
  ],
)
def test_any_temperature_is_that_of_the_reference(name, compiled):
  logits = np.asarray(LOGITS[name], np.float32)
  rows = sampling.make(len(TEMPERATURES), TEMPERATURES, 0, 1.0, 0.0)
  every = jax.vmap(probs_of if compiled else probs_of.__wrapped__, (None, 0))
  for temperature, ours in zip(TEMPERATURES, every(logits, rows), strict=True):
    kept = float(np.float32(temperature))
    kept = kept if kept >= np.finfo(np.float32).tiny else 0
    with np.errstate(over='ignore'):
      theirs = papers_in_numpy.pipeline(logits, kept)
    np.testing.assert_allclose(
      ours, theirs, rtol=0, atol=1e-6, err_msg=str(temperature)
    )


NO_LOGITS = {
  'NaN': (0.0, np.nan, 1.0),
  'infinite': (0.0, np.inf, 1.0),
  'nothing left': (-np.inf,) * 3,
}
FINE = (0.0, -np.inf, 1.0)


def proposed(probs, size):
  """A draft of one row, as the loop takes it from a drafter."""
  tokens, parents = jnp.zeros((1, 2), jnp.int32), trees.chain(1, 2)
  draft = Draft(tokens, parents, jnp.full(1, size), probs[None])
  drafter = plain.make()._replace(
    depth=2, nodes=2, propose=lambda *_: (draft, None)
  )
  ctx = types.SimpleNamespace(length=jnp.ones(1, jnp.int32))
  return scoring.propose(drafter, None, None, ctx, None)[0]


@jax.jit
def is_finite(target, drafted, size, setting):
  """Says whether a block of three rows and a draft of two are laws, by logits.

  And whether the block is one where the draft has no distribution.
  """
  each_row = jax.vmap(sampling.distribution, (0, None))
  scores = Scores(each_row(target, setting)[None], target[None])
  draft = proposed(each_row(drafted, setting), size)
  chosen = scoring.finite(draft._replace(probs=None), scores)[0]
  both = scoring.finite(draft, scores)[0] & jnp.isfinite(draft.probs).all()
  return both, chosen


@pytest.mark.parametrize('name', NO_LOGITS)
@pytest.mark.parametrize('temperature', [0.0, 1e-20, 1.0, 1e30])
def test_what_is_no_law_is_seen(name, temperature):
  """In any row of a scored block, and in what was drafted."""
  setting, fine = values(temperature), np.array([FINE] * 3, np.float32)

  def seen(*given):
    return tuple(map(bool, is_finite(*given, setting)))

  assert seen(fine, fine[1:], 2) == (True, True)
  for row in range(3):
    wrong = fine.copy()
    wrong[row] = NO_LOGITS[name]
    assert seen(wrong, fine[1:], 2) == (False, False)
    # A greedy draft is one token, unless its logits are no numbers.
    if row and (temperature or name == 'NaN'):
      assert seen(fine, wrong[1:], 2) == (False, True)
      assert seen(fine, wrong[1:], row - 1) == (True, True)  # Not proposed.


def test_make_spreads_scalars_over_rows():
  made = sampling.make(3, 0.5, top_p=[0.1, 0.2, 0.3])
  np.testing.assert_allclose(made.temperature, [0.5] * 3)
  np.testing.assert_allclose(made.top_p, [0.1, 0.2, 0.3])
  assert made.top_k is None
  assert made.min_p is None
  # Where no row waits no token needs to end its text.
  made = sampling.make(2, vocab_size=VOCAB, min_new_tokens=0)
  assert made.ends.shape == (2, 0)


# The last values inside each range, and the first ones outside. What is less
# than normal in float32 is 0: some devices take it for that.
TINY = float(np.finfo(np.float32).tiny)
ENDS_OF_RANGES = {
  'temperature': (
    (0, 1e-50, 1e-45, 1e-38, 1e37),
    (-TINY, 1.1e37, np.nan, np.inf),
  ),
  'top_k': ((0, 3.0, 2**31 - 1), (-1, 2**31, 0.5)),
  'top_p': ((TINY, 1), (0, 1e-45, 1e-38, 1 + 1e-6, 1.5, np.nan)),
  'min_p': ((0, 1e-38, 1 - 1e-6), (-TINY, 1, np.nan)),
  'repetition_penalty': ((TINY, 3e38), (0, 1e-38, 1e39, -1, np.inf, np.nan)),
  'presence_penalty': ((-2, -1e-39, 2), (-2 - 1e-6, 2 + 1e-6, np.nan)),
  'frequency_penalty': ((-2, 2), (-2 - 1e-6, 2 + 1e-6, np.nan)),
  'min_new_tokens': ((0, 2**31 - 1), (-1, 2**31, 0.5)),
}


@pytest.mark.parametrize('name', ENDS_OF_RANGES)
def test_values_of_stages_are_in_their_ranges(name):
  inside, outside = ENDS_OF_RANGES[name]
  options = {'vocab_size': 8, 'eos': (1,)}
  for value in inside:
    made = sampling.make(1, **options | {name: value})
    found = getattr(made, name.removesuffix('_penalty'))
    kept = np.asarray(value).astype(found.dtype)
    assert found.tolist() == [0 if abs(value) < TINY else kept]
  for value in outside:
    with pytest.raises(ValueError, match=f'{name} must be'):
      sampling.make(1, **options | {name: value})
