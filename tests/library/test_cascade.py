"""A drafter that speculates itself: the promises at every level of it.

`test_drafter_promises` tests what every drafter promises, of a cascade too.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import cases, exact, laws, planted
from specjax.drafters import cascade, early_exit, lm, ngram
from specjax.drafters.shapes import policies
from specjax.loop import generate, scoring
from specjax.models import table, transformer
from specjax.types import KV, Context, Draft, Params, Spec, Target
from tests.library import test_drafter_promises as promises
from tests.support import models

DRAFT = models.DRAFT
TABLE = table.build(models.VOCAB)
TREE = cascade.make(TABLE, lm.make_tree(TABLE, (0, 0, 1)), 3)
ALWAYS = planted.IN_RULES['every token is accepted'](verify.token)
LEVEL, ROUNDS = 1e-4 / 2, 8


def table_params():
  other, own = models.weights(TABLE, 1), models.near(TABLE, 0)
  return Params(None, Params(own, other))


@functools.cache
def drafts():
  """Many drafts of many texts, at temperatures from 0 to 1.5."""
  keys = [generate.row_keys(turn, promises.EVERY) for turn in range(ROUNDS)]
  return laws.join(promises.proposals(TREE, table_params(), keys))


# Promise 1: what a level promises is what the levels below it leave.


@pytest.mark.slow
def test_tokens_are_drawn_from_the_small_model_under_a_tree():
  found = laws.fits(drafts())
  assert min(found.token.p_value, found.rank.p_value) > LEVEL


@pytest.mark.parametrize(
  ('rule', 'parents', 'right'),
  [
    (verify.token, (0, 1), True),
    (verify.block, (0, 1), True),
    (verify.recursive, (0, 0, 1), True),
    (ALWAYS, (0, 1), False),
  ],
)
def test_every_exact_rule_leaves_the_law_of_the_small_model(
  rule, parents, right, float64
):
  """By enumeration of all inner drafts, coins and steps."""
  texts, random = exact.Texts(3, 6), np.random.default_rng(0)
  p, q = random.dirichlet(np.full(3, 0.7), (2, len(texts)))
  small, inner = (
    exact.Distributions(p, np.log(p)),
    exact.Distributions(q, np.log(q)),
  )
  contexts = np.array([0, 2])
  source = cases.of_cascade(rule, exact.tree(parents), 3, inner)
  found = source(texts, small, contexts)
  expected = exact.tree((0, 1, 2))(texts, small, contexts)
  np.testing.assert_array_equal(found.rows, expected.rows)
  error = np.abs(found.weight - expected.weight).max()
  assert error < 1e-12 if right else error > 1e-2


# What the loop inside a step depends on


def test_a_row_drafts_alone_what_it_drafts_in_a_batch():
  """Other rows need other numbers of passes: that must not matter."""
  row, together = 3, drafts()
  turns = [generate.row_keys(turn, [row]) for turn in range(ROUNDS)]
  alone = laws.join(promises.proposals(TREE, table_params(), turns, [row]))
  there = np.arange(ROUNDS) * promises.ROWS + row
  np.testing.assert_array_equal(alone.tokens, together.tokens[there])
  np.testing.assert_allclose(alone.probs, together.probs[there], rtol=1e-6)


def test_a_row_that_starts_late_drafts_the_same():
  """The turn in which it feeds a token that is known costs only a pass."""
  rows = promises.ROWS
  tokens, length = promises.texts(rows)
  length = np.maximum(length, 2)
  values = sampling.make(rows, np.resize([0, 0.5, 1, 1.5], rows))
  params, key = table_params(), generate.row_keys(0, promises.EVERY)
  ctx, first = promises.fresh(TREE, params, tokens, length, values)
  late = np.arange(rows) % 3 == 0
  (draft, memory), (again, other) = (
    jax.device_get(
      jax.jit(TREE.propose)(params, first._replace(fed=fed), ctx, key)
    )
    for fed in (first.fed, np.asarray(first.fed) - late)
  )
  jax.tree.map(np.testing.assert_array_equal, draft, again)
  np.testing.assert_array_equal(memory.fed, other.fed)
  np.testing.assert_array_equal(other.recent[0], memory.recent[0] + late)
  sampled = np.resize([False, True, True, True], rows)
  assert len({*map(tuple, draft.tokens[sampled].tolist())}) > rows // 3


LONG = cascade.make(TABLE, lm.make(TABLE, 4), 2)
FULL = 128 - 7  # K + 1, and what is drafted below that


@pytest.mark.slow
def test_there_is_room_for_inner_drafts():
  """A write that is clamped would move tokens that are there already."""
  random, rows, found = np.random.default_rng(0), 8, []
  tokens = random.integers(0, models.VOCAB, (rows, 256)).astype(np.int32)
  length, values = np.arange(FULL - rows, FULL) + 1, sampling.make(rows, 1.0)
  params, key = table_params(), generate.row_keys(0, range(rows))
  for slots in (128, 256):
    ctx, memory = promises.fresh(
      LONG, params, tokens[:, :slots], length, values
    )
    found.append(jax.jit(LONG.propose)(params, memory, ctx, key)[0])
  np.testing.assert_array_equal(found[0].tokens, found[1].tokens)
  np.testing.assert_allclose(found[0].probs, found[1].probs, atol=1e-6)


# Three levels: a model that drafts for itself by way of itself.

LOWEST = cascade.make(DRAFT, ngram.make(2), 2)
LEVELS = Spec(DRAFT, cascade.make(DRAFT, LOWEST, 3), verify.token)


def test_a_model_accepts_itself_at_every_level(float64):
  """Tokens that were never fed, or that a penalty missed, would be seen."""
  own = models.double(models.draft_weights())
  params = Params(own, Params(own, Params(own, None)))
  values = sampling.make(
    6,
    np.resize([0, 0.5, 1, 1.5], 6),
    repetition_penalty=1.3,
    frequency_penalty=0.5,
  )
  new = [100 - len(prompt) - i for i, prompt in enumerate(models.PROMPTS)]
  state = models.decoded(LEVELS, params, models.PROMPTS, values, new_tokens=new)
  counts = jax.device_get(state.counts)
  np.testing.assert_array_equal(counts.tokens, new)
  assert counts.tried.sum() > 200
  assert counts.accepted.sum() == counts.tried.sum()
  # A pass finds all three tokens. It feeds the first two of them: the third
  # takes a pass of its own in every step but the first.
  first, second = state.drafter.passes
  np.testing.assert_array_equal(first, 2 * counts.target_calls - 1)
  # Two tokens of the model below take two passes at most, and one to feed the
  # last of them. Rows that have finished count nothing.
  assert (second >= first).all()
  assert (second <= 3 * first).all()


# The target itself in the middle, which reads a window of its own cache.


def loaded(inner, **options):
  host = Target(models.TARGET, models.target_weights())
  return cascade.load(host, inner=lambda target: inner(target), **options)


def test_a_target_in_the_middle_has_no_weights_of_its_own():
  own = models.draft_weights()
  found = loaded(
    lambda target: (lm.make(DRAFT, 2), own), window=5, dtype='float32'
  )
  assert found.params is own
  assert found.draft is None
  assert found.make(3).depth == 3


def test_a_pass_beside_a_block_returns_its_own_rows():
  """Six tokens: four in the cache, one in a block of two rows, and the root."""

  def forward(_, tokens, positions, cache, used, mask, flight, at, taps):
    slots = jnp.arange(flight[0].k.shape[3])
    rows = KV(slots[None, None, None], slots[None, None, :, None])
    return transformer.Output(tokens[..., None], (used, at, mask), (rows,))

  config = types.SimpleNamespace(skips_padding=True)
  model = transformer.Model(config, None, forward, lambda _, hidden: hidden)
  block = (KV(*np.zeros((2, 1, 1, 2, 2))),)
  ctx = Context(np.arange(8)[None], np.array([6]), None, None, None)
  draft = Draft(np.array([[8, 9]]), np.array([[0, 1]]), np.array([1]), None)
  beside = block, np.array([4])
  feed = functools.partial(scoring.feed, model, None)
  out, logits = jax.jit(feed)(ctx, draft, beside=beside)
  used, at, mask = out.taps
  assert (used.tolist(), int(at)) == ([4], 2)
  # The second token is not of the draft.
  seen = [[1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [0] * 5]
  np.testing.assert_array_equal(mask, [seen])
  assert out.flight[0].k.ravel().tolist() == [2, 3, 4]
  assert out.flight[0].v.ravel().tolist() == [2, 3, 4]
  assert logits.ravel().tolist() == [5, 8, 9]


def test_what_reads_a_cache_cannot_draft_for_a_target_in_the_middle():
  """It would read what was rejected, and nothing but alpha would show it."""
  drafter = loaded(
    lambda target: (early_exit.load(target, layers=1).make(2), None),
    path='',
    window=5,
  ).make(3)
  spec = Spec(models.TARGET, drafter, verify.token)
  params = Params(models.target_weights(), None)
  with pytest.raises(ValueError, match='there is none inside a cascade'):
    models.run(spec, params, models.PROMPTS, sampling.make(6))


def test_a_cascade_has_room_and_positions_for_all_its_levels():
  assert cascade.make(TABLE, LONG, 2).beyond == 6
  spec = Spec(TABLE, LONG, verify.token)
  assert generate.slots_for(spec, FULL) == 128
  assert generate.slots_for(spec, FULL + 1) > 128
  # A stop that looks at the draft alone is taken.
  one = lm.make(DRAFT, 1, policies.confidence(0.3))
  for positions, most in ((40, 40), (600, 512), (None, 512)):
    made = cascade.make(DRAFT, one._replace(positions=positions), 1)
    assert (made.depth, made.beyond, made.positions) == (1, 1, most)
