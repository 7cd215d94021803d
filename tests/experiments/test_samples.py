"""Recorded texts are the measured ones, with their chances."""

import itertools

import jax.numpy as jnp
import pytest

from specjax.bench import measure, samples, trace
from specjax.bench.config import Candidate, SamplingValues
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.drafters import plain
from specjax.stats import folders
from specjax.types import Draft, Drafter, LoadedDrafter
from tests.support import tiny


def load(target, path=''):
  del path  # Unused.
  return LoadedDrafter(target.model, make)


def make(depth):
  """Always the same tree: 7 or 9, and below the 7 once more."""
  base = plain.make()
  tokens, parents = jnp.array([7, 9, 7, 9]), jnp.array([0, 0, 1, 1])
  nodes = 2 * depth

  def propose(params, state, ctx, key):
    del params, key  # Unused.
    shape = ctx.length.shape[0], nodes
    return Draft(
      jnp.broadcast_to(tokens[:nodes], shape),
      jnp.broadcast_to(parents[:nodes], shape),
      jnp.full(shape[0], nodes, jnp.int32),
      None,
    ), state

  return Drafter(depth, nodes, base.init, propose, base.commit)


@pytest.fixture(scope='module')
def runner(folder, tmp_path_factory):
  """A target that hardly says anything but 7 and 9."""
  x = tiny.experiment(
    folder,
    candidates={'tree': Candidate('tests.experiments.test_samples.load', 2)},
    verifiers=('specjax.verify.recursive',),
    sampling=SamplingValues(logit_bias=((7, 99.0), (9, 99.0))),
    temperatures=(0.0, 8.0),  # So hot that 7 is about as likely as 9.
    results=str(tmp_path_factory.mktemp('samples') / 'a'),
  )
  return Runner(plan(x))


@pytest.fixture(scope='module')
def texts(runner):
  return samples.add(runner)


def test_steps_make_the_text_that_is_measured(runner, texts):
  del texts  # Compiled the recording.
  tree = runner.built.methods[0]
  job = runner.units('code', 8.0)[0]
  measured = measure.decode(tree.way, job, timed=False)
  steps = list(trace.steps(tree.way, job))
  tokens = [trace.tokens(step) for step in steps]
  assert [t.token for new in tokens for t in new] == measured.texts[0]
  counts = steps[-1].counts
  assert counts.target_calls == measured.counts.target_calls[0]
  assert counts.accepted.tolist() == measured.counts.accepted[0].tolist()
  # Steps count that began with room for the longest.
  begun = itertools.accumulate(map(len, tokens), initial=0)
  longest = tree.spec.drafter.depth + 1
  whole = [
    new
    for new, at in zip(tokens, begun, strict=False)
    if job.new_tokens - at >= longest
  ]
  assert len(whole) == counts.histogram.sum()
  accepted = sum(t.origin == 'accepted' for new in whole for t in new)
  assert accepted == counts.accepted.sum()


def test_every_cell_has_a_text_with_chances(runner, texts, monkeypatch):
  assert [t['temperature'] for t in texts] == [0.0, 8.0]
  for text in texts:
    folders.check_sample(text)
    assert len(text['tokens']) == 12
    for token in text['tokens']:
      drafted = token['origin'] == 'accepted'
      assert (token['chance'] is not None) == drafted
      assert drafted or bool(token['others']) == (
        token['origin'] == 'corrected'
      )
      if text['temperature'] == 0:  # p is one-hot: all or nothing.
        assert token['chance'] in (None, 1.0)
        tried = [o for o in token['others'] if o['fate'] == 'rejected']
        assert all(o['chance'] == 0 for o in tried)
  drawn = texts[-1]['tokens']
  fates = {o['fate'] for token in drawn for o in token['others']}
  assert fates == {'rejected', 'not judged'}
  assert {'accepted', 'bonus'} <= {token['origin'] for token in drawn}
  # They are recorded once.
  assert folders.read_samples(runner.folder) == texts
  monkeypatch.setattr(samples, 'record', None)
  assert samples.add(runner) == texts


def test_methods_of_different_drafters_are_shown_first(monkeypatch):
  monkeypatch.setattr(samples, 'METHODS', 3)

  class Method:
    def __init__(self, drafter, gamma):
      self.drafter, self.gamma = drafter, gamma

  methods = [Method(d, g) for d in 'ab' for g in (2, 4)]
  shown = samples.choose(methods)
  assert [(m.drafter, m.gamma) for m in shown] == [('a', 2), ('b', 2), ('a', 4)]
