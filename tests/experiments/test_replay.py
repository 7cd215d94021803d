"""Replayed target calls: by enumeration, and beside the loop itself."""

import dataclasses
import itertools
import types

import jax
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.bench import measure, replay
from specjax.certify import cases, exact, tiny_models
from specjax.drafters import lm, ngram, plain
from specjax.drafters.shapes import policies
from specjax.loop import generate
from specjax.prompts.conversations import Conversation
from specjax.stats import theory
from specjax.types import Draft
from tests.support import models

LIMIT, EOS = 4, (2,)
TEXTS = exact.Texts(3, LIMIT + 2)
NUMBERS = {TEXTS.tokens(i): i for i in range(len(TEXTS))}


def model(seed):
  random = np.random.default_rng(seed)
  probs = random.dirichlet(np.full(3, 0.7), len(TEXTS))
  return exact.Distributions(probs, np.log(probs))


def expected(source, p, q):
  """Calls [texts] on average over the loop, given each finished text."""
  contexts = exact.unfinished(TEXTS, LIMIT, EOS)
  step = exact.step(verify.token, source, TEXTS, p, q, contexts)
  chances = exact.sequence(step, TEXTS, contexts, LIMIT, EOS)
  numbers = np.flatnonzero(chances.sum(1))
  assert len(numbers) == 1 + 2 + 4 + 8 * 3  # Those that end and the others.
  calls = chances[numbers] @ np.arange(LIMIT + 1) / chances[numbers].sum(1)
  return {TEXTS.tokens(n): c for n, c in zip(numbers, calls, strict=True)}


def along_text(text, p):
  """Probability [T] of each token of a text."""
  above = [NUMBERS[text[:i]] for i in range(len(text))]
  return p.probs[above, text]


def test_calls_of_a_drawn_draft(float64):
  p, q = model(0), model(1)
  for text, calls in expected(exact.tree((0, 1)), p, q).items():
    seen = watched(text, along_text(text, p), along_text(text, q))
    assert seen.calls(2) == pytest.approx(calls, abs=1e-12)


def test_calls_by_the_overlap():
  """Six tokens of which all are drafted, though none of them is accepted."""
  one = watched([7] * 6, np.ones(6), np.zeros(6))._replace(beta=np.ones(6))
  assert (one.calls(2), one.calls_by_beta(2)) == (6, 2)


def test_who_looks_on_has_the_room_that_all_need():
  """The fewest positions, and the longest draft with what is beyond it."""
  one, two, three = (ngram.make(gamma) for gamma in (2, 3, 4))
  one = one._replace(taps=(9, 0), positions=20)
  three = three._replace(taps=(1, 0), positions=30)
  look = replay.onlooker((one, two._replace(beyond=2), three))
  assert (look.depth, look.nodes, look.taps) == (0, 0, (0, 1, 9))
  assert (look.positions, look.beyond) == (20, 5)


def watched(text, p, q, tokens=(), size=(), drawn=True):
  columns = (np.array(x) for x in (text, p, q, q, tokens, size))
  return replay.Watched(*columns, drawn=drawn)


def test_calls_of_a_draft_that_stops(float64):
  """Chances are 0 where nothing is drafted: behind an unlikely token."""
  p, q, threshold = model(0), model(1), 0.3
  source = exact.tree(
    (0, 1), size=exact.stopping(policies.confidence(threshold))
  )
  for text, calls in expected(source, p, q).items():
    chance = along_text(text, q)
    accept = theory.along(np.minimum(chance / along_text(text, p), 1), 2)
    accept = accept * np.stack([chance >= 0, chance >= threshold], 1)
    assert theory.expected_calls(accept) == pytest.approx(calls, abs=1e-12)


def test_calls_of_a_chosen_draft(float64):
  """What is copied depends on where the draft began."""
  p = model(0)
  tiny = tiny_models.tables(
    3, prompt=(0, 1, 0, 0, 1), eos=(), settings={'T 1': {}}
  )
  source = cases.of_chosen(tiny, ngram.make(2))
  begun = [n for text, n in NUMBERS.items() if len(text) < LIMIT]
  every = source(TEXTS, None, np.array(begun)).draft
  for text, calls in expected(source, p, p).items():
    starts = [begun.index(NUMBERS[text[:i]]) for i in range(len(text))]
    drafts = every.tokens[starts], every.size[starts]
    one = np.ones(len(text))
    seen = watched(text, one, one, *drafts, False)
    assert seen.calls(2) == pytest.approx(calls, abs=1e-12)


def recorded(drafts):
  """Records of four rows, in each of which the target wrote token 1."""
  p = np.tile(np.float32([0.5, 0.25, 0.25]), (4, 1))
  tokens = np.array([[1, 2], [1, 2], [0, 2], [2, 1]])
  size, none = np.array([2, 0, 1, 1]), np.zeros((4, 2), np.int32)
  written = replay._Seen(none, none[:, 0], np.ones(4, np.int32), p)
  draft = Draft(tokens, none, size, drafts)
  found = jax.device_get(jax.jit(replay._record)(draft, written))
  assert found.p.tolist() == [0.25] * 4
  assert (found.tokens == tokens).all()
  assert (found.size == size).all()
  return found


def test_the_record_of_a_drawn_draft():
  """The record has q of drawn tokens, but of none beyond the size."""
  q, none = [0.25, 0.5, 0.25], [0.0] * 3
  drafts = np.float32([[q, q], [none, none], [q, none], [none, q]])
  found = recorded(drafts)
  assert found.finite.tolist() == [True, True, True, False]
  assert found.q.tolist() == [0.5, 0, 0.5, 0]
  assert found.beta.tolist() == [0.75, 0, 0.75, 0]


def test_the_record_of_a_chosen_draft():
  """Its first token has all of q, if there is one."""
  found = recorded(None)
  assert found.finite.all()
  assert found.q.tolist() == [1, 0, 0, 0]
  assert found.beta.tolist() == [0.25, 0, 0.5, 0.25]


def test_every_turn_is_watched(monkeypatch):
  """Drawn drafts of one token, chosen ones whole.

  The first of two prompts has a second turn, which holds the answer.
  """
  asked = []

  def watch(ways, job, drawn):
    asked.append((ways, job.prompts, drawn))
    new = np.broadcast_to(job.new_tokens, 2)
    return [[watched([7] * n, (), ()) for n in new] for _ in ways]

  def write(says, answers):
    return [len(says), *itertools.chain(*answers)]

  monkeypatch.setattr(replay, 'watch', watch)
  methods = [
    types.SimpleNamespace(single=f'one of {name}', way=name) for name in 'ab'
  ]
  first = measure.Job([[1], [1]], np.arange(2), None, 3, 0, 8)
  talks = [Conversation(says, write, (9, 9)) for says in (('x', 'y'), ('x',))]
  drawn = True, False
  found = replay.watch_turns(methods, first, drawn, talks)
  ways = ['one of a', 'b']
  assert asked == [
    (ways, [[1], [1]], drawn),
    (ways, [[2, 7, 7, 7], [1]], drawn),
  ]
  lengths = [[[len(w.text) for w in row] for row in seen] for seen in found]
  assert lengths == [[[3, 3], [3]]] * 2
  asked.clear()
  alone = replay.watch_turns(methods, first, drawn, [])
  assert [[len(row) for row in seen] for seen in alone] == [[1, 1]] * 2
  assert len(asked) == 1


GAMMA, NEW = models.DEPTH, 40
LOOP = models.spec_of('lm')
LOOK = dataclasses.replace(LOOP, drafter=lm.make(models.DRAFT, 1))


def job(turn):
  rows = len(models.PROMPTS)
  return measure.Job(
    list(map(list, models.PROMPTS)),
    np.arange(rows) + turn * rows,
    sampling.make(rows, np.array(models.TEMPERATURES)),
    NEW,
    0,
    generate.slots_for(LOOP, max(map(len, models.PROMPTS)) + NEW),
  )


@pytest.mark.parametrize('kinds', models.slow_unless([2], [2, 3]))
def test_drafters_look_on_together_as_they_do_alone(kinds):
  """Drafts are drawn, copied, and made from features of the target."""
  names = ('lm', 'ngram', 'eagle 1')[:kinds]
  drawn = (True, False, False)[:kinds]
  ways = [
    measure.Decoding(models.spec_of(n), models.params_of(n)) for n in names
  ]
  ways[0] = ways[0]._replace(spec=LOOK)
  together = replay.watch(ways, job(0), drawn)
  plainly = dataclasses.replace(LOOP, drafter=plain.make())
  run = measure.decode(
    measure.Decoding(plainly, ways[0].params), job(0), timed=False
  )
  for way, has_probs, seen in zip(ways, drawn, together, strict=True):
    (alone,) = replay.watch([way], job(0), [has_probs])
    assert all(
      any(x.any() for x in columns)
      for columns in zip(*(one[:6] for one in seen), strict=True)
    )
    for one, other, text in zip(seen, alone, run.texts, strict=True):
      assert one.text.tolist() == text
      for column, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(column, same)


@pytest.mark.slow
def test_calls_are_those_of_the_loop():
  """The loop itself, by chance: 40 rounds of other keys.

  A shift of 4 standard errors would be a false alarm once in 16,000.
  """
  params, rounds = models.params_of('lm'), []
  loop, look = (measure.Decoding(spec, params) for spec in (LOOP, LOOK))
  for turn in range(40):
    run = measure.decode(loop, job(turn), timed=False)
    rounds.append((run, *replay.watch([look], job(turn), [True])))
  run, seen = rounds[0]
  for row in (0, 1):
    assert models.TEMPERATURES[row] == 0
    assert seen[row].text.tolist() == run.texts[row]
    assert seen[row].calls(GAMMA) == run.counts.target_calls[row]
    assert seen[row].calls(GAMMA) < len(run.texts[row])  # Some was accepted.
  rows = [i for i, t in enumerate(models.TEMPERATURES) if t]

  def calls_per_token(run, seen, i):
    ours = seen[i].calls(GAMMA) / len(seen[i].text)
    return run.counts.target_calls[i] / len(run.texts[i]) - ours

  apart = [np.mean([calls_per_token(*x, i) for i in rows]) for x in rounds]
  error = np.std(apart, ddof=1) / np.sqrt(len(apart))
  assert 0 < error < 0.02
  assert abs(np.mean(apart)) < 4 * error
  # sum(min(p, q)) is what min(1, q / p) is on average over the target.
  sampled = [seen for _, row in rounds for seen in row[2:]]
  beta = np.array([seen.beta.sum() for seen in sampled])
  chance = [np.minimum(seen.q / seen.p, 1).sum() for seen in sampled]
  apart = beta - chance
  error = apart.std(ddof=1) / np.sqrt(len(apart))
  assert abs(apart.mean()) < 4 * error
  assert error / np.mean(beta) < 0.02

  damaged = jax.tree.map(lambda x: x * np.nan, params.drafter)
  broken = look._replace(params=params._replace(drafter=damaged))
  with pytest.raises(measure.NotFinite):
    replay.watch([broken], job(0), [True])
