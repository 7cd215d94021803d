"""Layouts of weights: who takes which, and that time decides."""

import dataclasses

import jax
import pytest

from specjax import native
from specjax.bench import costs, measure
from specjax.bench.config import Candidate
from specjax.bench.load import load_experiment
from specjax.bench.methods import Race
from specjax.bench.plan import plan
from specjax.models import layouts, linear
from specjax.models.layouts import NATIVE, WHOLE
from specjax.models.layouts import LayoutChoice as Choice
from tests.support import tiny

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())


@pytest.fixture(scope='module')
def loaded(folder):
  """A draft that is a model, heads of the target itself, and a lookup."""
  x = tiny.experiment(folder, gammas=(2, 12))
  x.candidates['exit'] = Candidate('early_exit', 2, options={'layers': 1})
  return load_experiment(plan(x))


class Script:
  """Chooses what it is told to, and remembers what it was asked."""

  def __init__(self, plain, scoring, drafting):
    self.says = {'plain': plain, 'draft': drafting, **scoring}
    self.asked = []

  def plain(self, ways):
    assert [*ways] == [WHOLE, NATIVE]
    for name, way in ways.items():
      assert way.spec.target.config.native == (name == NATIVE)
    return Choice(self.says['plain'], {WHOLE: 1.0, NATIVE: 2.0})

  def passes(self, forms, count):
    assert [*forms] == [WHOLE, NATIVE]
    for name, form in forms.items():
      assert form.model.config.native == (name == NATIVE)
    one_layer = forms[WHOLE].model.config.num_layers == 1
    self.asked.append('draft' if one_layer else count)
    best = self.says[self.asked[-1]]
    return Choice(best, {name: 1.0 + (name != best) for name in forms})


def test_every_part_takes_what_was_chosen_for_it(loaded):
  script = Script(WHOLE, {3: NATIVE, 13: WHOLE}, WHOLE)
  found = loaded.settle(script)
  assert script.asked == [3, 'draft', 13]  # A choice is made once.
  assert not found.plain.target.config.native
  assert found.baseline.fields() == {
    'layout': WHOLE,
    'seconds_per_step': {WHOLE: 1.0, NATIVE: 2.0},
  }
  few = {m.drafter: m for m in found.methods if m.gamma == 2}
  many = {m.drafter: m for m in found.methods if m.gamma == 12}
  for name in ('draft', 'ngram', 'exit'):
    assert few[name].spec.target.config.native
    assert linear.is_native(few[name].params.target['unembedding'])
    assert not many[name].spec.target.config.native
    assert many[name].params.target is found.base.params.target
  # The draft is whole at either length, beside a target of the kernel.
  assert few['draft'].params.drafter is many['draft'].params.drafter
  assert few['draft'].drafting.layout == WHOLE
  # What has no model of its own takes the target as it is.
  assert few['exit'].drafting is few['ngram'].drafting is None


def test_a_draft_may_be_the_kernels_beside_a_whole_target(loaded):
  found = loaded.settle(Script(WHOLE, {3: WHOLE, 13: WHOLE}, NATIVE))
  draft = next(m for m in found.methods if m.drafter == 'draft')
  assert linear.is_native(draft.params.drafter['unembedding'])
  assert draft.params.target['unembedding'].shape == (32, 2048)


def test_a_layout_that_nobody_takes_is_not_kept(loaded):
  found = loaded.settle(Script(WHOLE, {3: WHOLE, 13: WHOLE}, WHOLE))
  kept = [found.base.params, *(m.params for m in found.methods)]
  leaves = jax.tree.leaves([p.target for p in kept])
  whole = jax.tree.leaves(loaded.forms[WHOLE].params)
  assert {id(x) for x in leaves} == {id(x) for x in whole}
  assert (found.forms, found.drafts) == ({}, {})
  assert found.race() is found  # Once for all.


def test_plain_decoding_races_in_the_loop_itself(monkeypatch):
  """The faster way wins, and is compiled before its first turn."""
  seconds, compiled = {'a': 2.0, 'b': 1.0}, []
  ways = {name: measure.Decoding(name, None) for name in seconds}
  monkeypatch.setattr(
    measure, 'decode', lambda way, *_, timed: compiled.append(way.spec)
  )

  def of_texts(way, job):
    assert (compiled, job) == (['a', 'b'], 'job')
    return seconds[way.spec]

  monkeypatch.setattr(costs, 'seconds_per_step', of_texts)
  assert Race('job').plain(ways) == Choice('b', seconds)


def test_where_there_is_one_layout_nothing_is_measured(loaded):
  forms, drafts = ({WHOLE: x[WHOLE]} for x in (loaded.forms, loaded.drafts))
  one = dataclasses.replace(loaded, forms=forms, drafts=drafts)
  found = one.settle(race=None)
  assert found.baseline.fields() == {'layout': WHOLE, 'seconds_per_step': None}
  assert layouts.WHOLE in {m.verification.layout for m in found.methods}
