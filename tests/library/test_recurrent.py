"""Layers with a state in place of attention: nothing rejected is in it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import tiny_models
from specjax.drafters import cascade, lm, ngram, plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import prefill, recurrent, transformer
from specjax.models.check import check_model
from specjax.models.config import GatedDelta, Mamba2, ShortConv
from specjax.stats import fit_tests
from specjax.types import Params, Spec
from tests.support import models

SIZES = {
  'delta': GatedDelta((0, 2), 2, 4, 4, 6, kernel=4),
  'mamba': Mamba2((0, 2), 2, 4, 4, 6, kernel=4),
}
# One in the place of attention. The other beside it, with a layer of an MLP
# alone, and one without any.
OPTIONS = {
  'delta': dict(attention_gate=True),
  'mamba': dict(state_beside=True, without_attention=(1,), without_mlp=(2,)),
}
MODELS = {
  kind: models.tiny(models.VOCAB, 3, recurrent=sizes, **OPTIONS[kind])
  for kind, sizes in SIZES.items()
}
MODEL = MODELS['delta']
PROMPTS = [[1], [2, 3], [4, 5, 6, 4, 5, 6, 4, 5], list(range(10)) * 2]
SETTINGS = 'T 1', 'T 1.5, top-k 2'


def chain(model):
  return lm.make(model, 3), verify.token


def tree(model):
  return lm.make_tree(model, (0, 0, 0, 1, 1, 2, 5)), verify.recursive


@functools.cache
def weights(model=MODEL, seed=0):
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(random.normal(x.ndim == 1, 0.5, x.shape)), shapes
  )


def params(model, other=0.1):
  near = jax.tree.map(
    lambda x, y: (1 - other) * x + other * y,
    weights(model),
    weights(model, seed=1),
  )
  return Params(weights(model), near)


def run(model, drafter, rule, steps=99, parts=generate.PARTS, new_tokens=24):
  spec, given = Spec(model, drafter, rule, ()), params(model)
  values = sampling.make(len(PROMPTS), 0.0)
  state = models.run(spec, given, PROMPTS, values, new_tokens=new_tokens)
  return generate.generate(given, state, steps, spec=spec, parts=parts)


@functools.cache
def plain_texts(model):
  return models.new_tokens(run(model, plain.make(), verify.token))


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'way'), [('delta', chain), ('mamba', tree)])
def test_the_state_is_that_of_reading_the_text(kind, way, float64):
  model = MODELS[kind]
  state = run(model, *way(model), steps=4, new_tokens=40)
  accepted = np.asarray(state.counts.accepted).sum()
  assert 0 < accepted < np.asarray(state.counts.tried).sum()
  assert not np.asarray(state.done).any()
  cache = transformer.open_cache(model, weights(model), *state.tokens.shape)
  again, _ = prefill.prefill(
    model, weights(model), state.tokens, state.length, cache
  )
  found, wanted = caches.states(state.cache), caches.states(again)
  assert len(found) == len(SIZES[kind].layers)
  for kept, read in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
    assert np.abs(read).max() > 0.1
    np.testing.assert_allclose(kept, read, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
  ('kind', 'way'),
  [('mamba', tree), pytest.param('delta', tree, marks=pytest.mark.slow)],
)
def test_texts_are_those_of_plain_decoding(kind, way, float64):
  model = MODELS[kind]
  assert models.new_tokens(run(model, *way(model))) == plain_texts(model)


@pytest.mark.slow
def test_a_sampled_row_is_the_row_alone(float64):
  """Token for token; sums of a state may be rounded otherwise."""
  model = MODELS['mamba']
  given, spec = params(model, other=0.5), Spec(model, *tree(model), ())

  def after_steps(rows):
    values = sampling.make(len(rows), [(0.7, 1.0, 1.5, 1.0)[i] for i in rows])
    prompts, options = [PROMPTS[i] for i in rows], {'slots': 128}
    state = models.run(spec, given, prompts, values, rows, **options)
    state = generate.generate(given, state, 6, spec=spec)
    assert not state.done.any()  # The state of a finished row is of no text.
    return state

  together = after_steps(range(len(PROMPTS)))
  texts = models.new_tokens(together)
  assert len({*texts}) == len(PROMPTS)
  assert 0 < together.counts.accepted.sum() < together.counts.tried.sum()
  for i, text in enumerate(texts):
    alone = after_steps([i])
    assert models.new_tokens(alone) == [text]
    both = map(caches.states, (together.cache, alone.cache))
    for row, own in zip(*map(jax.tree.leaves, both), strict=True):
      np.testing.assert_allclose(row[i], own[0], rtol=0, atol=1e-10)


def one_more(cache, flight, path, start, count):
  """A rejected row stays."""
  return caches.commit(cache, flight, path, start, count + 1)


def one_less(cache, flight, path, start, count):
  return caches.commit(cache, flight, path, start, count - 1)


def shifted(cache, flight, path, start, count):
  """The convolution sees the token before."""
  new = caches.commit(cache, flight, path, start, count)
  return jax.tree.map(
    lambda x: (
      x._replace(last=jnp.roll(x.last, 1, 1)) if caches.is_state(x) else x
    ),
    new,
    is_leaf=caches.is_state,
  )


def uncle(cache, flight, path, start, count):
  """The rows behind the root, whichever were accepted."""
  rows = jnp.broadcast_to(jnp.arange(path.shape[1]), path.shape)
  new = caches.commit(cache, flight, rows, start, count)
  right = caches.commit(cache, flight, path, start, count)
  return jax.tree.map(
    lambda x, y: x if caches.is_state(x) else y,
    new,
    right,
    is_leaf=caches.is_state,
  )


BUGS = {bug.__name__: bug for bug in (one_more, one_less, shifted, uncle)}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'bug'), [*zip(itertools.cycle(MODELS), BUGS, strict=False)]
)
def test_a_wrong_state_changes_texts(kind, bug, float64):
  """Texts, which the tests above compare, are those of another model."""
  model, parts = MODELS[kind], generate.PARTS._replace(write=BUGS[bug])
  found = models.new_tokens(run(model, *tree(model), parts=parts))
  assert found != plain_texts(model)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [GatedDelta, Mamba2])
def test_the_check_of_models_sees_a_tree_that_is_read_as_a_chain(
  kind, monkeypatch, float64
):
  reads = recurrent._reads

  def wrong(s, state, block, mask, total):
    chain = jnp.tril(jnp.ones(mask.shape[1:], bool))
    return reads(s, state, block, jnp.broadcast_to(chain, mask.shape), total)

  model = models.tiny(13, 1, recurrent=kind((0,), 1, 2, 4, 4, kernel=1))
  monkeypatch.setattr(recurrent, '_reads', wrong)
  jax.clear_caches()  # What was traced of the function that is changed.
  try:
    with pytest.raises(ValueError, match='nodes of a tree'):
      check_model(model, models.double(models.weights(model, 0)))
  finally:
    jax.clear_caches()


@pytest.mark.slow
def test_the_law_of_the_text_is_that_of_plain_sampling():
  """The certificate's loop; its own cases have the gated delta rule."""
  target = models.tiny(4, 2, recurrent=Mamba2((0,), 1, 2, 3, 4, kernel=2))
  tiny = tiny_models.TinyModels(
    target,
    target,
    params(target, 0.5),
    settings={name: tiny_models.SETTINGS[name] for name in SETTINGS},
  )
  drafter = lm.make_tree(target, (0, 0, 1))
  spec = Spec(target, drafter, verify.recursive, tiny.eos)
  seen = tiny.sample(spec, 64, 4, seed=0)
  for setting, counts in seen.items():
    fit = fit_tests.fit(counts.sum(1), tiny.plain[setting])
    assert fit.p_value > 1e-4, setting
  # It would see a rejected row that stays.
  parts = generate.PARTS._replace(write=one_more)
  wrong = tiny.sample(spec, 64, 8, seed=0, parts=parts)
  fits = [fit_tests.fit(x.sum(1), tiny.plain[n]) for n, x in wrong.items()]
  assert min(fit.p_value for fit in fits) < 1e-6


@pytest.mark.slow
def test_a_row_that_is_filled_again_begins_with_no_state(float64):
  model = MODELS['mamba']
  spec = Spec(model, *chain(model), ())
  found = models.pooled(spec, params(model), PROMPTS, [0.0] * 4, 24)
  texts = [tuple(models.joined(x)) for x in found]
  assert texts == plain_texts(model)


def test_of_layers_that_convolve_the_last_inputs_are_kept():
  """Along a path, of rows that lie elsewhere in the block."""
  sizes = ShortConv((0,), 2, kernel=3)
  before = recurrent.empty(sizes, 2, jnp.float32)
  before = before._replace(last=jnp.arange(-8.0, 0).reshape(2, 2, 2))
  rows = recurrent.open_rows(before, sizes, 4)
  rows = rows._replace(inputs=jnp.arange(16.0).reshape(2, 4, 2))
  path = jnp.array([[0, 2, 3]] * 2)
  after = recurrent.advance(before, rows, path, jnp.array([1, 3]))
  assert after.last.tolist() == [[[-6, -5], [0, 1]], [[12, 13], [14, 15]]]
  assert after.state.size == 0


def test_what_is_in_flight_is_small():
  """At the sizes of Qwen3.5, K = 4: bytes of rows against whole states."""
  sizes = GatedDelta((0,), 16, 32, 128, 128, kernel=4)

  def make():
    before = recurrent.empty(sizes, 1, jnp.bfloat16)
    return before, recurrent.open_rows(before, sizes, 5)

  before, rows = jax.eval_shape(make)
  assert before.state.size * 4 == 2 * 2**20
  held, left = (
    sum(x.size * x.dtype.itemsize for x in tree) for tree in (before, rows)
  )
  assert left < 5 * held / 20


def test_a_model_with_states_is_not_inside_a_cascade(float64):
  inside = cascade.make(MODEL, ngram.make(2), 3)
  spec = Spec(MODEL, inside, verify.token, ())
  values = sampling.make(1, 0.0)
  with pytest.raises(ValueError, match='inside a cascade'):
    models.run(spec, Params(weights(), Params(weights(), None)), [[1]], values)


def test_heads_of_values_share_keys_evenly():
  with pytest.raises(ValueError, match='heads of values'):
    GatedDelta((0,), 3, 4, 4, 6, kernel=4)
