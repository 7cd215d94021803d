"""Passes of the kernel have as many rows as the largest draft, and no more."""

import functools
import types

import jax
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.bench import costs
from specjax.drafters import cascade, forced, lm, ngram, suffix
from specjax.drafters.shapes import policies
from specjax.loop import counting, generate, scoring
from specjax.models import layouts
from specjax.types import Context, Draft, History, Params, Spec
from tests.library.test_bits import VOCAB, made, read, texts_of
from tests.support import models

LENGTHS = np.array([7, 19], np.int32)
PARENTS = np.array([0, 0, 1, 2, 2, 4])  # a tree of six nodes


@pytest.mark.usefixtures('kernel')
def test_what_a_pass_may_have():
  model, _ = made('float32')
  found = {n: scoring.widths(model, ngram.make(n)) for n in (1, 2, 4, 6, 8, 40)}
  assert found == {
    1: (0, 1),
    2: (0, 2),
    4: (0, 2, 4),
    6: (0, 2, 4, 6),
    8: (0, 2, 4, 8),
    40: (0, 2, 4, 8, 40),
  }
  policy = policies.confidence(0.4)
  for short in (suffix.make(3), forced.make(3)):
    assert scoring.widths(model, short) == (0, 2, 3)
  assert scoring.widths(model, lm.make(models.TARGET, 3, policy)) == (0, 2, 3)
  # Drafts that are never short, and rows that take no time.
  assert scoring.widths(model, lm.make(models.TARGET, 3)) == (3,)
  assert scoring.widths(made('float32', 'whole')[0], ngram.make(3)) == (3,)
  states = types.SimpleNamespace(native=True, recurrent='some')
  plain = types.SimpleNamespace(recurrent=None)  # As of other code.
  for other in ({'config': states}, {'config': plain}, {'placement': 'some'}):
    assert scoring.widths(model._replace(**other), ngram.make(3)) == (3,)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('name', ['float32', 'four bits and layer norms'])
def test_rows_of_a_smaller_pass_have_the_same_bits(name):
  model, params = made(name)
  tokens = texts_of()[0, :2, :64]
  cache = read(model, params, tokens, LENGTHS)
  ctx = Context(tokens, LENGTHS, cache, sampling.make(2, 0.0), History())

  @functools.partial(jax.jit, static_argnames='sizes')
  def feed(draft, sizes=()):
    return scoring.feed(model, params, ctx, draft, (0,), sizes=sizes)

  for sizes, rows in (((0, 0), 1), ((1, 0), 3), ((2, 3), 5), ((6, 1), 7)):
    draft = Draft(
      tokens[:, 30:36], np.broadcast_to(PARENTS, (2, 6)), np.array(sizes), None
    )
    (out, logits), (some, few) = feed(draft), feed(draft, (0, 2, 4, 6))

    def along(x, axis=1):
      return np.moveaxis(np.asarray(x, np.float64), axis, 0)

    pairs = [(logits, few, 1), (out.hidden, some.hidden, 1)]
    pairs += [(out.taps, some.taps, 1)]
    for one, other in zip(out.flight, some.flight, strict=True):
      pairs += [(one.k, other.k, 3), (one.v, other.v, 2)]
    for one, other, axis in pairs:
      one, other = along(one, axis), along(other, axis)
      np.testing.assert_array_equal(other[:rows], one[:rows])
      assert len(other) == 7
      assert not other[rows:].any()


def test_what_a_finished_row_drafts_takes_no_rows(monkeypatch):
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
  assert (sizes[0], sizes[1] > 0) == (0, True)


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
@pytest.mark.parametrize('name', ['policy', 'cascade'])
def test_texts_and_counts_are_those_of_whole_passes(name):
  target = made('four bits and layer norms')
  draft = models.tiny(VOCAB, 1)
  draft = layouts.to_native(draft, models.weights(draft, 1))
  if name == 'policy':
    policy = policies.confidence(0.6)
    drafter, params = lm.make(draft[0], 5, policy), draft[1]
  else:
    drafter = cascade.make(draft[0], ngram.make(4), 3)
    params = Params(draft[1], None)
  temperature = np.array([0.0, 0.3, 1.0])
  short, counts = texts(drafter, params, target, temperature)
  if name == 'cascade':
    inner = ngram.make(4)._replace(short=False)
    whole = cascade.make(draft[0], inner, 3)
  else:
    assert 0 < counts.drafted.sum() < 5 * counts.histogram.sum()
    whole = drafter._replace(short=False)
  jax.tree.map(
    np.testing.assert_array_equal,
    (short, counts),
    texts(whole, params, target, temperature),
  )


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
  whole = costs._pace(run, ngram.make(4)._replace(short=False))
  assert whole.tolist() == [1, 1, 4]
  # Of two texts that find nothing in a third of steps, both do in a ninth.
  both = jax.tree.map(lambda x: np.concatenate([x, x]), counts)
  run = types.SimpleNamespace(counts=both)
  np.testing.assert_allclose(costs._pace(run, ngram.make(4))[1], 8 / 9)

  replay = costs._replay((0, 1, 2, 3), 4, False, VOCAB, True)
  assert replay.short
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
