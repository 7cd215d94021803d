"""Rows without a token take no time in the products of the kernel."""

import collections
import types

import jax
import numpy as np
import pytest

from specjax import native, sampling, verify
from specjax.bench import costs
from specjax.drafters import cascade, lm, ngram
from specjax.drafters.shapes import policies
from specjax.loop import counting, generate, scoring
from specjax.models import layouts, linear
from specjax.models.config import TransformerConfig
from specjax.types import Context, Draft, History, Params, Spec
from tests.library.test_bits import SIZES, VOCAB, made, read, texts_of
from tests.support import models

LENGTHS = np.array([7, 19], np.int32)
PARENTS = np.array([0, 0, 1, 2, 2, 4])  # a tree of six nodes


@pytest.fixture
def multiplied(monkeypatch):
  """Counts the rows of each product that are not zeros."""
  seen = collections.Counter()

  def spy(product):
    def call(x, *weights):
      count = (x != 0).any(-1).sum()
      jax.debug.callback(lambda n: seen.update([int(n)]), count)
      return product(x, *weights)

    return call

  for name in ('product', 'grouped_product'):
    monkeypatch.setattr(native, name, spy(getattr(native, name)))
  return seen


def form(bits, **options):
  """A model of two layers for the kernel, in floats where `bits` is 0."""
  model = models.tiny(VOCAB, 2, **SIZES | options)
  params = models.weights(model, 1)
  params = jax.tree.map(lambda x: x + 0.1 * (x.ndim == 1), params)  # Biases.
  if bits:
    params = linear.quantize(params, False, bits, rounds=True)
  return layouts.to_native(model, params)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('bits', 'options'),
  [
    (0, {'mlp_width': 96}),
    (4, {'mlp_width': 128}),
    (0, {'layer_norm': True, 'out_bias': True}),
    (0, {'layer_norm': True, 'one_norm': True, 'parallel': True}),
  ],
)
def test_rows_of_a_shorter_draft_have_the_same_bits(bits, options, multiplied):
  """Rows of no token are zeros in all products, and in nobody's way."""
  model, params = form(bits, **options)
  tokens = texts_of()[0, :2, :64]
  cache = read(model, params, tokens, LENGTHS)
  ctx = Context(tokens, LENGTHS, cache, sampling.make(2, 0.0), History())
  parents = np.broadcast_to(PARENTS, (2, 6))

  @jax.jit
  def feed(size):
    draft = Draft(tokens[:, 30:36], parents, size, None)
    return scoring.feed(model, params, ctx, draft, (0,))

  whole, logits = feed(np.array([6, 6]))
  for sizes in ((0, -1), (1, 0), (2, 3), (6, 1)):
    jax.effects_barrier()
    multiplied.clear()
    out, few = feed(np.array(sizes))
    jax.block_until_ready(few)
    jax.effects_barrier()
    # Four products of each layer, and the head.
    assert multiplied == {sum(sizes) + 2: 9}
    for row, size in enumerate(sizes):
      fed = slice(None, size + 1)
      pairs = [
        (logits, few),
        (whole.hidden, out.hidden),
        (whole.taps, out.taps),
      ]
      for one, other in zip(whole.flight, out.flight, strict=True):
        pairs += [(one.k.swapaxes(1, 3), other.k.swapaxes(1, 3))]
        pairs += [(one.v.swapaxes(1, 2), other.v.swapaxes(1, 2))]
      for one, other in pairs:
        one, other = np.asarray(one[row]), np.asarray(other[row])
        np.testing.assert_array_equal(other[fed], one[fed])
      assert not np.asarray(few[row, size + 1 :]).any()


@pytest.mark.usefixtures('kernel')
def test_the_end_of_a_block_that_is_no_text_takes_no_rows(multiplied):
  model, params = form(0, mlp_width=64)
  tokens, lengths = texts_of()[0, :2, :64], np.array([64, 9], np.int32)
  both = jax.block_until_ready(read(model, params, tokens, lengths))
  jax.effects_barrier()
  assert multiplied == {32 + 8: 8, 31: 8}
  for row, length in enumerate(lengths):
    here = slice(row, row + 1)
    alone = read(model, params, tokens[here], lengths[here])
    for one, other in zip(alone, both, strict=True):
      fed = slice(None, length - 1)
      np.testing.assert_array_equal(one.k[0, ..., fed], other.k[row, ..., fed])
      np.testing.assert_array_equal(one.v[0, :, fed], other.v[row, :, fed])


def test_what_a_finished_row_drafts_is_not_fed(monkeypatch):
  class Fed(Exception):
    """Ends a step before the target computes anything."""

  def feed(model, params, ctx, draft, *rest, **more):
    raise Fed(draft.size)

  state = models.begin('ngram', [0.0, 0.0], [[1, 2, 1, 2]] * 2)
  state = state._replace(done=np.array([True, False]))
  monkeypatch.setattr(scoring, 'feed', feed)
  with pytest.raises(Fed) as found:
    generate.step(
      models.params_of('ngram'), state, spec=models.spec_of('ngram')
    )
  (sizes,) = found.value.args
  assert (sizes[0], sizes[1] > 0) == (-1, True)


def texts(drafter, params, target, temperature):
  model, weights = target
  spec = Spec(model, drafter, verify.token)
  prompts = [[1, 2, 3, 1, 2], [4, 4, 4, 4], [5, 6]]
  state = models.decoded(
    spec, Params(weights, params), prompts, sampling.make(3, temperature),
    new_tokens=30, seed=3,
  )  # fmt: skip
  counts = state.counts
  # The overlap is a sum whose order a compiler chooses.
  overlap = np.asarray(counts.overlap).round(4)
  return state.tokens, counts._replace(overlap=overlap)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  ('name', 'target'),
  [('policy', 'float32'), ('cascade', 'four bits and layer norms')],
)
def test_texts_and_counts_are_those_of_whole_passes(name, target, monkeypatch):
  target = made(target)
  draft = models.tiny(VOCAB, 1)
  draft = layouts.to_native(draft, models.weights(draft, 1))
  if name == 'policy':
    policy = policies.confidence(0.6)
    drafter, params = lm.make(draft[0], 5, policy), draft[1]
  else:
    drafter = cascade.make(draft[0], ngram.make(4), 3)
    params = Params(draft[1], None)
  temperature = np.array([0.0, 0.3, 1.0])
  short = texts(drafter, params, target, temperature)
  if name == 'policy':
    counts = short[1]
    assert 0 < counts.drafted.sum() < 5 * counts.histogram.sum()
  monkeypatch.setattr(TransformerConfig, 'skips_padding', False)
  jax.clear_caches()
  whole = texts(drafter, params, target, temperature)
  jax.clear_caches()
  jax.tree.map(np.testing.assert_array_equal, short, whole)


@pytest.mark.usefixtures('kernel')
def test_a_cascade_accepts_as_often_beside_other_texts():
  """All of it, since it drafts with the target; the others wait meanwhile."""
  model = models.tiny(VOCAB, 2)
  model, weights = layouts.to_native(model, models.weights(model, 1))
  drafter = cascade.make(model, ngram.make(4), 3)
  spec = Spec(model, drafter, verify.token)
  params = Params(weights, Params(weights, None))
  draw = np.random.default_rng(0)
  prompts = [
    draw.integers(1, VOCAB, 5).tolist() * 3,
    draw.integers(1, VOCAB, 9).tolist(),
  ]
  for given in (prompts, prompts[:1], prompts[1:]):
    values = sampling.make(len(given), 0.0)
    state = models.decoded(spec, params, given, values, new_tokens=60, seed=0)
    assert state.counts.histogram[:, :3].sum() == 0
    assert state.counts.histogram[:, 3].tolist() == [15] * len(given)


def test_a_known_text_is_drafted_at_the_pace_of_a_run():
  """Two of six steps find nothing; others draft 2.5 tokens and keep 1.5."""
  counts = counting.none(1, 4)._replace(
    histogram=np.array([[2, 2, 2, 0, 0]]),
    drafted=np.array([10]),
    misses=np.array([2]),
    tokens=np.array([12]),
    target_calls=np.array([6]),
  )
  run = types.SimpleNamespace(counts=counts)
  pace = costs._pace(run, ngram.make(4))
  np.testing.assert_allclose(pace, [1, 2 / 3, 2.5])
  # Of two texts each has rows of its own.
  both = jax.tree.map(lambda x: np.concatenate([x, x]), counts)
  run = types.SimpleNamespace(counts=both)
  np.testing.assert_allclose(costs._pace(run, ngram.make(4)), pace)

  replay = costs._replay((0, 1, 2, 3), 4, False, VOCAB)
  text = np.arange(1, 40)[None]
  params = Params(None, (text, pace))
  ctx = Context(text, np.array([5]), (), sampling.make(1, 0.0), History())
  state, found = replay.init(params, ctx, None), []
  propose = jax.jit(replay.propose)
  for _ in range(6):
    draft, state = propose(params, state, ctx, None)
    right = np.asarray(draft.tokens[0]) == np.arange(6, 10)
    size = int(draft.size[0])
    found.append((size, int(right[:size].sum())))
  assert found == [(0, 0), (2, 1), (3, 2)] * 2
