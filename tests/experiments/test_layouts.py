"""Layouts of weights: who takes which, and that time decides."""

import jax
import numpy as np
import pytest

from experiments.measuring import build, costs, layouts, measure
from experiments.measuring.layouts import BLOCKED, WHOLE, Choice
from experiments.settings import Candidate
from experiments.setup.plan import plan
from tests.support import tiny


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """A draft that is a model, heads of the target itself, and a lookup."""
  folder = tmp_path_factory.mktemp('pair')
  tiny.write_pair(folder)
  x = tiny.experiment(folder, gammas=(2, 12))
  exit_ = Candidate('early_exit', 2)
  exit_.options = {'layers': 1}
  x.candidates['exit'] = exit_
  return build.build(plan(x))


class Script:
  """Chooses what it is told to, and remembers what it was asked."""

  def __init__(self, plain, scoring, drafting):
    self.says = {'plain': plain, 'draft': drafting, **scoring}
    self.asked = []

  def plain(self, ways):
    assert [*ways] == [WHOLE, BLOCKED]
    for name, way in ways.items():
      assert way.spec.target.config.blocked == (name == BLOCKED)
    return Choice(self.says['plain'], {WHOLE: 1.0, BLOCKED: 2.0})

  def tokens(self, names, make, rows):
    config = make(names[0]).model.config
    what = 'draft' if config.num_layers == 1 else rows
    self.asked.append((what, *names))
    for name in names:
      assert make(name).model.config.blocked == (name == BLOCKED)
    return Choice(self.says[what], {name: 1.0 for name in names})


def test_every_part_takes_what_was_chosen_for_it(built):
  script = Script(WHOLE, {3: BLOCKED, 13: WHOLE}, WHOLE)
  found = built.settle(script)
  # Of 13 rows there is one layout; a choice is made once.
  assert script.asked == [
    (3, WHOLE, BLOCKED),
    ('draft', WHOLE, BLOCKED),
    (13, WHOLE),
  ]
  assert not found.plain.target.config.blocked
  assert found.baseline.fields() == {
    'layout': WHOLE,
    'seconds_per_step': {WHOLE: 1.0, BLOCKED: 2.0},
  }
  few = {m.drafter: m for m in found.methods if m.gamma == 2}
  many = {m.drafter: m for m in found.methods if m.gamma == 12}
  for name in ('draft', 'ngram', 'exit'):
    assert few[name].spec.target.config.blocked
    assert not many[name].spec.target.config.blocked
    assert many[name].params.target is found.plain_params.target
    assert few[name].verification.layout == BLOCKED
  # The draft is whole at either length, beside a target in blocks at one.
  assert few['draft'].params.drafter is many['draft'].params.drafter
  assert few['draft'].params.drafter is few['draft'].single_params.drafter
  assert few['draft'].drafting.layout == WHOLE
  # What has no model of its own takes the target as it is.
  assert few['exit'].drafting is few['ngram'].drafting is None


def test_a_draft_may_be_in_blocks_beside_a_whole_target(built):
  found = built.settle(Script(WHOLE, {3: WHOLE, 13: WHOLE}, BLOCKED))
  draft = next(m for m in found.methods if m.drafter == 'draft')
  assert draft.params.drafter['unembedding'].shape == (32, 32, 64)
  assert draft.params.target['unembedding'].shape == (32, 2048)


def test_a_layout_that_nobody_takes_is_not_kept(built):
  found = built.settle(Script(WHOLE, {3: WHOLE, 13: WHOLE}, WHOLE))
  kept = [found.plain_params, *(m.params for m in found.methods)]
  kept += [m.single_params for m in found.methods]
  leaves = jax.tree.leaves([p.target for p in kept])
  whole = jax.tree.leaves(built.loaded.forms[WHOLE].params)
  assert {id(x) for x in leaves} == {id(x) for x in whole}
  assert found.loaded is None
  assert found.race() is found  # Once for all.


def test_blocks_are_for_few_rows_of_one_device(built):
  whole = built.loaded.forms[WHOLE]
  assert [*layouts.forms(*whole, 12)] == [WHOLE, BLOCKED]
  assert [*layouts.forms(*whole, 13)] == [WHOLE]
  split = whole.model._replace(layout='a mesh')
  assert [*layouts.forms(split, whole.params, 1)] == [WHOLE]
  # Where no weight comes out in blocks there is nothing to choose.
  narrow = tiny.model(32, 1, vocab=100, mlp_width=48, head_dim=12)
  shapes = jax.eval_shape(narrow.init, jax.random.key(0))
  params = jax.tree.map(lambda x: np.zeros(x.shape), shapes)
  assert [*layouts.forms(narrow, params, 1)] == [WHOLE]


def test_the_least_median_of_turns_that_take_turns(built):
  """One turn that took long, and a machine that is slower every turn."""
  calls = []

  def clock(name, times):
    times = iter(times)

    def run():
      calls.append(name)
      return next(times)

    return run

  race = layouts.Race(job=None, turns=3)
  found = race.choose(
    {
      WHOLE: clock(WHOLE, [2.0, 9.0, 3.0]),
      BLOCKED: clock(BLOCKED, [2.5, 3.5, 4.5]),
    }
  )
  assert found == Choice(WHOLE, {WHOLE: 3.0, BLOCKED: 3.5})
  assert calls == [WHOLE, BLOCKED, BLOCKED, WHOLE, WHOLE, BLOCKED]


def test_where_there_is_one_layout_nothing_is_measured():
  race = layouts.Race(job=None)
  alone = Choice(WHOLE, None)
  assert race.plain({WHOLE: None}) == race.tokens([WHOLE], None, 4) == alone
  assert alone.fields() == {'layout': WHOLE, 'seconds_per_step': None}


def test_plain_decoding_races_in_the_loop_itself(monkeypatch):
  """The faster way wins, and is compiled before its first turn."""
  seconds, compiled = {'a': 2.0, 'b': 1.0}, []
  ways = {name: measure.Way(name, None) for name in seconds}
  monkeypatch.setattr(
    measure, 'decode', lambda spec, *_, timed: compiled.append(spec)
  )

  def of_texts(way, job):
    assert (compiled, job) == (['a', 'b'], 'job')
    return seconds[way.spec]

  monkeypatch.setattr(costs, 'seconds_per_step', of_texts)
  assert layouts.Race('job').plain(ways) == Choice('b', seconds)


def test_passes_race_for_a_while(built, monkeypatch):
  """The loop runs for some time, and longer where a pass takes less."""
  steps = []

  def loop(form, job, rows):
    del job, rows  # Unused.
    each = 1e-3 if form.model.config.blocked else 2e-3

    def run(count):
      steps.append(count)
      return each

    return run

  monkeypatch.setattr(layouts, '_loop', loop)
  forms = built.loaded.forms
  found = layouts.Race('job').tokens([*forms], forms.__getitem__, 3)
  assert found.layout == BLOCKED
  assert set(steps[2:]) == {100}


def test_a_pass_is_the_model_s_own(built, monkeypatch):
  """What the loop feeds is what the model says comes next."""
  form = built.loaded.forms[WHOLE]
  tokens = np.array([[5, 6, 7]])
  cache = layouts.transformer.open_cache(form.model, form.params, 1, 128)
  args = form.params, tokens, cache, np.zeros(1, np.int32)
  logits = layouts.transformer.score(form.model, form.params, tokens)
  for steps in (1, 2):
    fed = layouts._feed(*args, steps, model=form.model)
    np.testing.assert_array_equal(fed, logits.argmax(-1))
    logits = layouts.transformer.score(form.model, form.params, fed)
