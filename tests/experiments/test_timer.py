"""Loops that are timed: their order, the drafts they replay, their paces."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np

from specjax import verify
from specjax.bench import costs, measure
from specjax.bench.measure import Decoding
from specjax.drafters import plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.types import (
  Context,
  Draft,
  History,
  Params,
  Scores,
  Spec,
  SpecState,
  Verdict,
)
from tests.support import models
from tests.support import rows as made


def test_a_few_methods_share_the_plain_seconds_before_them(monkeypatch):
  """Loops take as many seconds as were timed before: 0, 1, 2, ..."""
  timed = []

  def take(way, job, steps=None):
    timed.append((way, steps))
    counts = types.SimpleNamespace(target_calls=np.array([5, 7]))
    return float(len(timed) - 1), types.SimpleNamespace(counts=counts)

  monkeypatch.setattr(costs, '_time', take)
  monkeypatch.setattr(costs, '_pace', lambda run, drafter: 1.5)
  monkeypatch.setattr(costs, 'known_text', lambda *_: len(timed))
  monkeypatch.setattr(
    costs, 'ways', lambda full, replayed, known: {'scored': (replayed, known)}
  )
  spec = types.SimpleNamespace(
    target=types.SimpleNamespace(config=None),
    drafter=types.SimpleNamespace(depth=2),
  )
  base = Decoding(spec, Params(None, None))
  methods = {name: (Decoding(spec, name), name) for name in 'abcde'}
  timer = costs.Timer(base, methods)
  timer.turn('job')
  timer.turn('job')
  plain = [timer.costs(name).plain.tolist() for name in 'abcde']
  assert plain == [[0, 12]] * 3 + [[7, 19]] * 2
  assert timer.costs('b').whole.tolist() == [3, 15]
  assert timer.costs('d').scored.tolist() == [9, 21]
  # The replay is of the text that plain decoding wrote last, in as many steps.
  assert timed[:3] == [
    (base, None),
    (methods['a'][0], None),
    (('a', (1, 1.5)), 7),
  ]
  assert timed[9] == (('d', (8, 1.5)), 7)


def test_a_row_without_a_step_says_nothing_of_the_pace():
  """The second row made no whole step; in the last case no step drafted."""
  drafter = plain.make()._replace(nodes=4)
  one = made.run([12, 1], [6, 1], drafted=np.array([10, 0]))
  counts = one.counts._replace(
    histogram=np.array([[4, 2], [0, 0]]), misses=np.array([2, 0])
  )
  pace = costs._pace(types.SimpleNamespace(counts=counts), drafter)
  np.testing.assert_allclose(pace, [13 / 7 - 1, 1 - 1 / 3, 10 / 4])
  none = counts._replace(misses=np.array([6, 0]), drafted=np.zeros(2))
  pace = costs._pace(types.SimpleNamespace(counts=none), drafter)
  np.testing.assert_allclose(pace, [13 / 7 - 1, 0, 0])
  # Without a whole step drafts are taken to be what they may be.
  none = counts._replace(histogram=np.zeros((2, 2)), misses=np.zeros(2))
  pace = costs._pace(types.SimpleNamespace(counts=none), drafter)
  np.testing.assert_allclose(pace, [13 / 7 - 1, 1, 4])


def drafting(depth, nodes, parents, drawn):
  """A way whose drafts have a shape, and a job; no model is read."""

  def propose(params, state, ctx, key):
    del params, ctx, key  # Unused.
    probs = jnp.ones((1, nodes, 11)) if drawn else None
    size = jnp.full(1, nodes)
    return Draft(size, jnp.array([parents]), size, probs), state

  drafter = plain.make()._replace(depth=depth, nodes=nodes, propose=propose)
  spec = Spec(models.TARGET, drafter, verify.token)
  return Decoding(spec, Params(None, None))


def test_a_replayed_draft_has_the_shape_of_the_methods(monkeypatch):
  monkeypatch.setattr(measure, 'start', lambda *_: SpecState(*range(14)))
  vocab = models.TARGET.config.vocab_size
  for way, args in (
    (drafting(2, 3, (0, 0, 1), False), ((0, 0, 1), 2, False)),
    # A chain is one without being asked.
    (drafting(2, 2, (0, 0), True), ((0, 1), 2, True)),
  ):
    found = costs.replay(way, None)
    assert found.drafter is costs._replay(*args, vocab)
    assert found.target is way.spec.target
  base = drafting(0, 0, (), False)
  assert costs.replay(base, None) is base.spec


def test_a_replayed_tree_is_right_down_to_a_level():
  """Siblings stand at one place of the text, whose end repeats."""
  drafter = costs._replay((0, 0, 1), 2, True, 11)
  assert (drafter.depth, drafter.nodes) == (2, 3)
  text = jnp.array([[4, 5, 10, 7], [4, 5, 6, 7]])
  params = Params(None, (text, jnp.array([1.0, 1.0, 3.0])))
  ctx = Context(text, jnp.array([1, 4]), (), None, History())
  probs, turn = drafter.init(params, ctx, None)
  assert (probs.shape, turn.tolist()) == ((2, 3, 11), [0, 0])
  np.testing.assert_allclose(probs, 1 / 11)
  draft, (_, turn) = drafter.propose(params, (probs, turn), ctx, None)
  assert draft.tokens.tolist() == [[5, 5, 0], [7, 7, 8]]
  assert draft.parents.tolist() == [[0, 0, 1]] * 2
  assert draft.size.tolist() == [3, 3]
  assert turn.tolist() == [1, 1]


def test_loops_leave_out_what_they_are_called_after():
  full = drafting(2, 2, (0, 1), False)
  replayed = dataclasses.replace(full.spec, eos=(2, 5))
  loops = costs.ways(full, replayed, 'known')
  assert [*loops] == ['whole', 'scored', 'judged', 'committed', 'bare']
  whole, scored, judged, committed, bare = loops.values()
  assert whole is full
  assert scored == Decoding(replayed, Params(None, 'known'))
  assert judged.parts is generate.PARTS
  assert committed.parts.write is generate.PARTS.write
  assert bare.parts.judge is committed.parts.judge is not generate.PARTS.judge
  assert bare.parts.write('cache', 'rows') == 'cache'
  none = np.zeros((3, 11))
  verdict = committed.parts.judge(None, None, Scores(none, none), None, 2)
  assert jax.tree.map(np.ndarray.tolist, jax.device_get(verdict)) == (
    Verdict([0, 0, 0], 0, 1)
  )
  # Without a draft there is none to leave out.
  base = drafting(0, 0, (), False)
  assert costs.ways(base, base.spec, 'known')['scored'] is base
  # No text of a table ends, whichever of its rows is read.
  for way in (judged, committed, bare):
    table, known = way.params
    assert known == 'known'
    assert table.shape == (8, 11)
    ends, others = table[:, [2, 5]], np.delete(table, [2, 5], 1)
    assert ends.max() < others.min() - 1e6
    assert len(np.unique(others)) == others.size


def test_a_table_stands_for_the_target():
  """Rows are read by position; keys and values depend on them, too."""
  config, table = models.TARGET.config, np.arange(88.0).reshape(8, 11)
  cache = caches.empty(config, 2, 128, 'float32')
  at = jnp.array([[5, 6, 7], [7, 8, 9]])
  answers, mask = costs._answers(models.TARGET), np.ones((2, 3, 3), bool)
  out = answers.forward(
    jnp.asarray(table), 0 * at, at, cache, 0, mask, taps=(0, 1)
  )
  np.testing.assert_array_equal(out.hidden, table[at % 8])
  assert answers.head(None, 'hidden') == 'hidden'
  assert out.taps.shape == (2, 3, 2, config.width)
  assert not out.taps.any()
  for i, block in enumerate(out.flight):
    heads, key, value = caches.heads(config, i)
    first = np.broadcast_to(table[at % 8, 0][:, None, None], (2, heads, 1, 3))
    np.testing.assert_array_equal(block.k, np.repeat(first, key, 2))
    last = np.repeat(first.swapaxes(2, 3), value, 3)
    np.testing.assert_array_equal(block.v, last)


def test_the_known_text_is_the_prompt_and_what_was_added():
  """A third row only fills up the batch."""
  job = measure.Job([[1, 2], [3], [4]], np.arange(3), None, 2, 0, 128, live=2)
  run = made.run([1, 2], [1, 2], texts=[[5], [6, 7]])
  text = costs.known_text(job, run, models.TARGET.config)
  assert text.shape == (3, 128)
  assert text[:, :4].tolist() == [[1, 2, 5, 0], [3, 6, 7, 0], [4, 0, 0, 0]]
  # Costs are timed with the program that is compiled for this text.
  full = drafting(2, 2, (0, 1), False)
  ((way, _),) = costs.to_compile(full, full.spec, job, ('scored',))
  one = jax.tree.map(lambda x: (x.shape, x.dtype), way.params.drafter)
  pace = costs._pace(run, full.spec.drafter)
  assert one == tuple((x.shape, x.dtype) for x in (text, pace))
