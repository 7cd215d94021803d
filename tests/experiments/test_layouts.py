"""Layouts of weights: who takes which, and that time decides."""

import jax
import pytest

from specjax import native
from specjax.bench import costs, measure
from specjax.bench.config import Candidate
from specjax.bench.loading import build
from specjax.bench.loading.layouts import Race
from specjax.bench.loading.plan import plan
from specjax.models import layouts, linear
from specjax.models.layouts import BLOCKED, CORES, NATIVE, WHOLE
from specjax.models.layouts import LayoutChoice as Choice
from tests.support import tiny


@pytest.fixture(scope='module')
def built(folder):
  """A draft that is a model, heads of the target itself, and a lookup.

  On a machine without the kernel.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(layouts, 'tried', lambda: (BLOCKED, CORES))
    return build_all(folder)


def build_all(folder):
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
      assert bool(way.spec.target.config.columns) == (name == BLOCKED)
    return Choice(self.says['plain'], {WHOLE: 1.0, BLOCKED: 2.0})

  def tokens(self, names, make, rows):
    config = make(names[0]).model.config
    what = 'draft' if config.num_layers == 1 else rows
    self.asked.append((what, *names))
    for name in names:
      assert bool(make(name).model.config.columns) == (name == BLOCKED)
    best = self.says[what]
    return Choice(best, {name: 1.0 + (name != best) for name in names})


def test_every_part_takes_what_was_chosen_for_it(built):
  script = Script(WHOLE, {3: BLOCKED, 13: WHOLE}, WHOLE)
  found = built.settle(script)
  # Of 13 rows there is one layout; a choice is made once.
  assert script.asked == [
    (3, WHOLE, BLOCKED),
    ('draft', WHOLE, BLOCKED),
    (13, WHOLE),
  ]
  assert not found.plain.target.config.columns
  assert found.baseline.fields() == {
    'layout': WHOLE,
    'seconds_per_step': {WHOLE: 1.0, BLOCKED: 2.0},
  }
  few = {m.drafter: m for m in found.methods if m.gamma == 2}
  many = {m.drafter: m for m in found.methods if m.gamma == 12}
  for name in ('draft', 'ngram', 'exit'):
    assert few[name].spec.target.config.columns
    assert not many[name].spec.target.config.columns
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


@pytest.mark.skipif(not native.available(), reason=native.reason())
def test_the_kernel_serves_target_and_drafts_at_any_length(folder):
  """It is for more rows than blocks are, so all lengths have a choice."""

  class Native:
    def plain(self, ways):
      assert [*ways] == [WHOLE, NATIVE]
      return Choice(WHOLE, {WHOLE: 1.0, NATIVE: 2.0})

    def tokens(self, names, make, rows):
      assert [*names] == [WHOLE, NATIVE]
      return Choice(NATIVE, {WHOLE: 2.0, NATIVE: 1.0})

  found = build_all(folder).settle(Native())
  assert not found.plain.target.config.columns
  for method in found.methods:
    config = method.spec.target.config
    assert (config.columns, config.for_kernel) == (native.COLUMNS, True)
    assert linear.is_native(method.params.target['unembedding'])
    assert method.verification.fields()['columns'] == native.COLUMNS
  draft = next(m for m in found.methods if m.drafter == 'draft')
  assert linear.is_native(draft.params.drafter['unembedding'])


def test_where_there_is_one_layout_nothing_is_measured():
  race = Race(job=None)
  alone = Choice(WHOLE, None)
  assert race.plain({WHOLE: None}) == race.tokens([WHOLE], None, 4) == alone
  assert alone.fields() == {'layout': WHOLE, 'seconds_per_step': None}


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
