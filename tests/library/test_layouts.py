"""Layouts of weights: which there are, that time decides, and who remembers."""

import dataclasses

import jax
import numpy as np
import pytest

import specjax
from specjax import native
from specjax.loop import generate
from specjax.models import layouts, linear, transformer
from specjax.models.layouts import NATIVE, WHOLE, LayoutChoice
from tests.support import models, tiny

BUFFER = layouts.Buffer(batch=1, slots=128, used=4)


pytestmark = pytest.mark.usefixtures('kernel')


@pytest.fixture
def target(folder):
  return specjax.load(folder / 'target', max_length=96)


@pytest.fixture
def arranged(target):
  return layouts.arrange(target.model, target.params)


@pytest.fixture
def races(monkeypatch):
  """What was raced; the kernel wins where there is one."""
  found = []

  def race(choices, buffer, tokens, *_):
    found.append(([*choices], buffer.batch, tokens))
    return LayoutChoice([*choices][-1])

  monkeypatch.setattr(layouts, 'race', race)
  return found


def test_the_kernel_is_for_one_cpu_and_weights_that_come_out_even(
  arranged, monkeypatch
):
  whole = arranged[WHOLE]
  assert [*arranged] == [WHOLE, NATIVE]
  assert arranged[NATIVE].model.config.native
  split = whole.model._replace(placement='a mesh')
  assert [*layouts.arrange(split, whole.params)] == [WHOLE]
  # Where no weight comes out in blocks there is nothing to choose.
  narrow = tiny.model(24, 1, vocab=100, mlp_width=28, head_dim=6)
  shapes = jax.eval_shape(narrow.init, jax.random.key(0))
  params = jax.tree.map(lambda x: np.zeros(x.shape), shapes)
  assert [*layouts.arrange(narrow, params)] == [WHOLE]
  monkeypatch.setattr(native, 'available', lambda: False)
  assert [*layouts.arrange(*whole)] == [WHOLE]


def test_the_least_median_of_turns_that_take_turns():
  """One turn that took long, and a machine that is slower every turn."""
  calls = []

  def clock(name, times):
    times = iter(times)

    def run():
      calls.append(name)
      return next(times)

    return run

  found = layouts.fastest(
    {
      WHOLE: clock(WHOLE, [2.0, 9.0, 3.0]),
      NATIVE: clock(NATIVE, [2.5, 3.5, 4.5]),
    },
    turns=3,
  )
  assert found == LayoutChoice(WHOLE, {WHOLE: 3.0, NATIVE: 3.5})
  assert calls == [WHOLE, NATIVE, NATIVE, WHOLE, WHOLE, NATIVE]


def test_passes_race_for_a_while(arranged, monkeypatch):
  passes = []

  def clock(form, buffer, tokens):
    del buffer, tokens  # Unused.
    each = 1e-3 if form.model.config.native else 2e-3

    def run(count):
      passes.append(count)
      return each

    return run

  monkeypatch.setattr(layouts, 'clock', clock)
  assert layouts.race(arranged, BUFFER, 3).layout == NATIVE
  assert set(passes[2:]) == {100}


def test_a_pass_is_the_model_s_own(arranged):
  """What the loop feeds follows from the largest logit of the model's own."""
  model, params = arranged[WHOLE]
  tokens = np.array([[5, 6, 7]])
  cache = transformer.open_cache(model, params, 1, 128)
  args = model, params, tokens, cache, np.zeros(1, np.int32)
  logits = models.score(model, params, tokens)
  for passes in (1, 2):
    fed = layouts._feed(*args, passes)
    top = np.abs(np.asarray(logits).max(-1))
    expected = (top * 1024).astype(int) % model.config.vocab_size
    np.testing.assert_array_equal(fed, expected)
    assert len(set(expected[0].tolist())) > 1
    logits = models.score(model, params, fed)


def test_a_race_measures_both(arranged):
  found = layouts.race(arranged, BUFFER, 2, turns=1, seconds=0.0, passes=1)
  assert found.seconds.keys() == {WHOLE, NATIVE}
  assert min(found.seconds.values()) > 0


def decode(target, drafter, tokens=64, gamma=2, **options):
  return specjax.decode(
    target, drafter, ['def f():'], gamma=gamma, new_tokens=tokens, **options
  )


@pytest.mark.slow
def test_a_choice_is_made_once_and_compiles_once(folder, target, races):
  draft = specjax.drafters.lm.load(target, str(folder / 'draft'))
  fixed = specjax.load(folder / 'target', max_length=96, layout=WHOLE)
  expected = decode(fixed, draft).tokens
  assert decode(target, draft).tokens == expected
  assert races == [([WHOLE, NATIVE], 1, 3)]
  compiled = generate.count_programs()
  assert decode(target, draft, seed=2).tokens == expected
  assert generate.count_programs() == compiled
  assert len(races) == 1
  # Another number of tokens is another choice, of the same weights in blocks.
  decode(target, draft, gamma=3)
  assert races[1:] == [([WHOLE, NATIVE], 1, 4)]
  assert fixed.remembered == {}
  native = specjax.load(folder / 'target', max_length=96, layout=NATIVE)
  own = specjax.drafters.lm.load(native, str(folder / 'draft'))
  assert native.model.config.native
  assert own.draft[0].config.native
  assert linear.is_native(native.params['unembedding'])
  assert decode(native, own).tokens == expected
  assert len(races) == 2


def test_who_computes_with_the_target_s_weights_keeps_them(target, races):
  """An exit reads the target's weights as they were when it was loaded."""
  early = specjax.drafters.early_exit.load(target, layers=1)
  out = decode(target, early)
  assert out.tokens == decode(target, None).tokens
  assert [tokens for _, _, tokens in races] == [3, 1]
  # Other weights have choices of their own.
  assert target.remembered
  assert dataclasses.replace(target, eos=(3,)).remembered == {}


def test_little_work_is_not_worth_a_race(target, races):
  decode(target, None, tokens=12)
  half = jax.tree.map(lambda x: x.astype('int8'), target.params)
  whole = dataclasses.replace(target, params=half)
  assert layouts.choose(whole, BUFFER, 1, 64).model is target.model
  assert races == []
  assert target.remembered == {}
