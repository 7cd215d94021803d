"""Models of other code: both doors, and the check of what comes through."""

import jax.numpy as jnp
import pytest
from flax import nnx

import specjax
from specjax import verify
from specjax.certify import tiny_models
from specjax.drafters import lm, skip
from specjax.loop import generate
from specjax.stats import fit_tests
from specjax.types import Params, Spec
from tests.support import models, own_models

PROMPTS = [[3, 4, 5, 6], [7] * 9, [2], [5, 6] * 6]
PARAMS = own_models.weights()
DOORS = {'adapted': own_models.adapted, 'full': own_models.full}

# What the check says of a bug.
SAYS = {
  'adapted': {
    'mask': 'mask', 'positions': 'nodes of a tree',
    'length': r'at or beyond the length|ignores the length',
    'cursor': 'writes elsewhere', 'logits': 'logits are bfloat16',
    'no slots': 'open_cache', 'shape': 'apply must return the cache',
    'type': 'apply must return the cache',
  },
  'full': {
    'batch': 'rows of a batch', 'ragged': 'other lengths',
    'length': r'at or beyond the length|ignores the length',
    'flight': 'token by token', 'writes': 'the rows of the tokens fed',
    'taps': 'taps', 'head': 'head must return logits',
    'layers': 'for each of the 3 layers',
  },
}  # fmt: skip


def loaders(door):
  target = specjax.Target.of(DOORS[door](), PARAMS, eos=(1,))
  model, near = target.model, own_models.weights()
  near = near | {'down': near['down'] * 0.8}
  return target, {
    'lm': lm.of(target, model, near),
    'tree': lm.of(target, model, near, widths=(2, 2, 1)),
  }


def decoded(target, draft, new, **options):
  """Returns what `decode` does; its texts are those of full passes."""
  out = specjax.decode(
    target, draft, PROMPTS, new_tokens=new, gamma=3, **options
  )
  expected = [own_models.greedy(PARAMS, x, new, target.eos) for x in PROMPTS]
  assert out.tokens == expected
  return out


@pytest.mark.parametrize(
  ('door', 'name', 'new', 'slots'),
  [
    ('adapted', 'tree', 24, None),
    pytest.param('full', 'tree', 24, None, marks=pytest.mark.slow),
    # Prompts are read into fewer slots than the buffer has, and into all.
    pytest.param('adapted', 'lm', 150, None, marks=pytest.mark.slow),
    pytest.param('adapted', 'lm', 150, 256, marks=pytest.mark.slow),
  ],
)
def test_texts_are_those_of_the_model_itself(door, name, new, slots):
  target, drafters = loaders(door)
  assert decoded(target, drafters[name], new, slots=slots).tau > 1.5


@pytest.mark.slow
def test_a_tree_at_the_end_of_the_buffer_overwrites_nothing():
  """A chain would fill the buffer of 128 slots; rejected nodes need more."""
  target = specjax.Target.of(own_models.adapted(), PARAMS)
  draft = lm.of(
    target, own_models.adapted(), own_models.weights(2), widths=(4, 4, 2)
  )
  decoded(target, draft, 128 - 4 - max(map(len, PROMPTS)))


@pytest.mark.slow
def test_the_law_of_the_text_is_that_of_plain_sampling():
  target = own_models.adapted(vocab=4)
  params = Params(
    own_models.weights(vocab=4, width=8),
    own_models.weights(seed=1, vocab=4, width=8),
  )
  settings = {
    name: tiny_models.SETTINGS[name] for name in ('T 1', 'T 1.5, top-k 2')
  }
  tiny = tiny_models.TinyModels(target, target, params, settings=settings)
  drafter = lm.make_tree(target, (0, 0, 1))
  spec = Spec(target, drafter, verify.recursive, tiny.eos)
  seen = tiny.sample(spec, 64, 4, seed=0)
  for setting, counts in seen.items():
    fit = fit_tests.fit(counts.sum(1), tiny.plain[setting])
    assert fit.p_value > 1e-4, setting
    # The law of a target at another temperature is told from it.
    other = tiny.plain[next(name for name in settings if name != setting)]
    assert fit_tests.fit(counts.sum(1), other).p_value < 1e-6


@pytest.mark.parametrize('door', models.slow_unless(['full'], DOORS))
def test_a_right_model_passes_the_check(door):
  specjax.check_model(DOORS[door](), PARAMS)


@pytest.mark.parametrize(
  'name',
  models.slow_unless(
    ['adapted: shape', 'full: writes'],
    [f'{door}: {bug}' for door, bugs in SAYS.items() for bug in bugs],
  ),
)
def test_the_check_says_what_is_wrong(name):
  door, bug = name.split(': ')
  with pytest.raises(ValueError, match=SAYS[door][bug]):
    specjax.check_model(DOORS[door](bug), PARAMS)


MODULE = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ('field', 'given'),
  [
    ('model', {'model': MODULE}),
    ('params', {'params': MODULE}),
    ('params', {'params': {'w': 1.5}}),
    ('params', {'params': {}}),
    ('params', {'params': {'ids': jnp.arange(3)}}),
    ('tokenizer', {'tokenizer': 'bpe'}),
    ('eos', {'eos': (61,)}),
    ('eos', {'eos': 'end'}),
  ],
)
def test_what_is_no_target_is_refused(field, given):
  right = {'model': own_models.adapted(), 'params': PARAMS}
  with pytest.raises(ValueError, match=rf'^{field}'):
    specjax.Target.of(**{**right, **given})


def test_what_does_not_fit_is_refused():
  for size in (0, -3, 2.5, True, 'wide'):
    with pytest.raises(ValueError, match=r'^width'):
      specjax.Sizes(61, size, 2, 1, 8, 256)
  target, _ = loaders('full')
  with pytest.raises(ValueError, match='of other code'):
    skip.load(target, skip_mlp=(0,))  # It needs the target's layers.
  with pytest.raises(ValueError, match='of this model'):
    specjax.check_model(own_models.full(), {'w': jnp.ones(3)})


def test_nothing_is_compiled_for_other_weights():
  target, drafters = loaders('adapted')
  decoded(target, drafters['tree'], 24)
  before, params = generate.count_programs(), own_models.weights(3)
  other = specjax.Target.of(target.model, params, eos=(1,))
  weights = own_models.weights(4)
  draft = lm.of(other, target.model, weights, widths=(2, 2, 1))
  out = specjax.decode(other, draft, PROMPTS, new_tokens=24, gamma=3)
  assert out.tokens[0] == own_models.greedy(params, PROMPTS[0], 24, (1,))
  assert generate.count_programs() == before
