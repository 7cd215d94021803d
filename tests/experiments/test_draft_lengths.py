"""Policies of draft length along recorded drafts, beside runs of the loop."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from experiments import draft_lengths as study
from experiments.draft_lengths import Cell, Choice, Places
from specjax import reports, sampling, verify
from specjax.bench import measure
from specjax.bench.config import Prompts
from specjax.bench.measure import Decoding
from specjax.drafters import lm
from specjax.drafters.shapes import policies
from specjax.errors import UserError
from specjax.models import table
from specjax.stats import metrics, theory
from specjax.types import Params, Spec
from tests.support import tiny

VOCAB, DEPTH, ROWS, NEW = 24, 4, 48, 64
TABLE = table.build(VOCAB)


def tables() -> Params:
  random = np.random.default_rng(0)
  p, other = 2 * random.normal(size=(2, VOCAB, VOCAB)).astype(np.float32)
  return Params(p, (p + other) / 2)


def job(temperature: float, seed: int = 0) -> measure.Job:
  return measure.Job(
    [[i % VOCAB] for i in range(ROWS)], np.arange(ROWS),
    sampling.make(ROWS, temperature), NEW, seed, 128, live=ROWS,
  )  # fmt: skip


def way(policy) -> Decoding:
  spec = Spec(TABLE, lm.make(TABLE, DEPTH, policy), verify.token)
  return Decoding(spec, tables())


@pytest.fixture(scope='module')
def looks():
  """Places of texts without and with chance."""
  return [study.look(way(study.WHOLE), job(t)) for t in (0.0, 1.0)]


def curious() -> policies.Policy:
  """Looks at all that there is to see, and learns from verdicts."""
  sees = policies.learned(1, 1, -0.5, 0.2, 0.6)
  learns = policies.bandit(0.1, 0.1, 1, 3)

  def goes_on(memory, last):
    return sees.goes_on((), last) & learns.goes_on(memory, last)

  return learns._replace(goes_on=goes_on, chance=sees.chance)


def test_steps_along_recorded_drafts_are_those_of_the_loop(looks):
  """To the token where nothing is drawn, and on average where it is."""
  policy = curious()
  greedy, drawn = looks
  assert 0.1 < greedy.accepted.mean() < 0.95
  assert 0.1 < drawn.accepted.mean() < 0.95
  caps = np.array([DEPTH])
  found = study.take(policy, greedy, caps)
  counts = measure.decode(way(policy), job(0.0), timed=False).counts
  np.testing.assert_array_equal(found.steps[0], counts.histogram.sum(1))
  np.testing.assert_array_equal(found.drafted[0], counts.drafted)
  emitted = counts.histogram @ np.arange(1, DEPTH + 2)
  np.testing.assert_array_equal(found.tokens[0], emitted)

  found = study.take(policy, drawn, caps)
  counts = measure.decode(way(policy), job(1.0, seed=1), timed=False).counts
  emitted = counts.histogram @ np.arange(1, DEPTH + 2)
  pairs = (found.tokens[0], emitted), (found.drafted[0], counts.drafted)
  for ours, theirs in pairs:
    one = metrics.ratio(ours, found.steps[0])
    other = metrics.ratio(theirs, counts.histogram.sum(1))
    error = np.hypot(one.error, other.error)
    assert error < 0.06 * other.value
    assert abs(one.value - other.value) < 4 * error


def test_a_text_that_ends_keeps_its_last_place(looks):
  """It is not written again while other rows go on."""
  ends = way(study.WHOLE)
  ends = ends._replace(spec=dataclasses.replace(ends.spec, eos=(3,)))
  found, whole = study.look(ends, job(1.0)), looks[1]
  assert len({*found.length.tolist()}) > 5
  for row, length in enumerate(found.length):
    for ours, theirs in zip(found[:3], whole[:3], strict=True):
      np.testing.assert_array_equal(ours[row, :length], theirs[row, :length])
      assert not ours[row, length:].any()


def places(accepted, depth: int) -> Places:
  accepted = np.array(accepted, bool)
  shape = *accepted.shape, depth
  return Places(
    accepted,
    np.full(shape, 0.5, np.float32),
    np.ones(shape, np.float32),
    np.full(len(accepted), accepted.shape[1]),
  )


def test_steps_by_hand():
  """A rejected draft is the one that was made at the place of the rejection."""
  text = places([[1, 1, 0, 1, 0, 0, 1, 1]], 2)
  found = study.take(study.WHOLE, text, np.array([1, 2]))
  # One token: 0 1, 2, 3 4, 5; then two places are left. Two: 0 1 2, 3 4, 5.
  assert found.steps.tolist() == [[4], [3]]
  assert found.drafted.tolist() == [[4], [6]]
  assert found.tokens.tolist() == [[6], [6]]
  # Place 1 is unsure of its rejected draft's second token alone.
  sure = np.full((1, 5, 3), 0.9)
  sure[0, 1, 1] = 0.1
  text = places([[1, 0, 1, 1, 1]], 3)._replace(confidence=sure)
  found = study.take(policies.confidence(0.5), text, np.array([3]))
  # From 0: y0, x1, and x2, which is unlikely; from 2 on one place too few.
  assert (found.steps, found.drafted, found.tokens) == (1, 3, 2)
  sure[0, 0, 1] = 0.1  # No step that goes on from there reads it.
  again = study.take(policies.confidence(0.5), text, np.array([3]))
  assert again.drafted == 3


def test_a_constant_length_gives_what_theory_says():
  random = np.random.default_rng(0)
  text = places(random.random((400, 120)) < 0.7, 5)
  found = study.take(study.WHOLE, text, np.arange(1, 6))
  for gamma, *sums in zip(range(1, 6), *found, strict=True):
    steps, drafted, tokens, scored = sums
    assert (scored == drafted).all()
    assert drafted.sum() == gamma * steps.sum()
    tau = metrics.ratio(tokens, steps)
    expected = theory.tokens_per_call(0.7, gamma)
    assert abs(tau.value - expected) < 4 * tau.error


def best_of(ahead, cost: float, depth: int) -> float:
  """The best rate of one text, of all ways to take its steps."""
  rates = []

  def walk(place, steps, drafted):
    if place + depth + 1 > len(ahead):
      rates.append(place / (steps + cost * drafted) if steps else 0)
      return
    for size in range(min(ahead[place], depth) + 1):
      walk(place + size + 1, steps + 1, drafted + size)

  walk(0, 0, 0)
  return max(rates)


@pytest.mark.parametrize('cost', [0.02, 0.6])
def test_no_steps_are_better_than_the_oracle(cost, looks):
  random = np.random.default_rng(1)
  text = places(random.random((1, 14)) < 0.8, 3)
  runs = [
    len(list(itertools.takewhile(bool, text.accepted[0, i:])))
    for i in range(14)
  ]
  found = study.oracle(text, cost / 2, cost / 2)
  rate = study.rate_of(found, cost, 0.0)
  assert rate == pytest.approx(best_of(runs, cost, 3), abs=1e-12)

  many = looks[1]
  found = study.oracle(many, cost, 0.0)
  most = study.rate_of(found, cost, 0.0)
  made = study.families(DEPTH, cost, 0.0, (1.0, 1.0, -0.5, 0.2))
  cell = Cell(many, {})
  for name in (study.CONSTANT, 'expected', 'heuristic', 'learned 0.7'):
    for choice in made[name]:
      assert study.rate_of(cell.take(choice, False), cost, 0.0) <= most


def test_weights_are_found_again():
  random = np.random.default_rng(2)
  sure = random.uniform(0.05, 1, (300, 40, 3))
  entropy = random.uniform(0, 3, sure.shape)
  sums = 1 + 0.5 * np.log(sure[..., 0]) - 0.8 * entropy[..., 0]
  accepted = random.random(sums.shape) < 1 / (1 + np.exp(-sums))
  text = Places(accepted, sure, entropy, np.full(300, 40))
  np.testing.assert_allclose(
    study.fit([text, text]), (1, 0.5, -0.8, 0), atol=0.1
  )


def test_what_is_chosen_is_chosen_on_other_prompts(monkeypatch):
  def few(depth, cost, scoring, weights):
    return {
      study.CONSTANT: [Choice(str(n), study.WHOLE, n) for n in (1, 3)],
      'always': [Choice('', study.WHOLE, depth)],
    }

  monkeypatch.setattr(study, 'families', few)
  accepted = np.zeros((4, 20))
  accepted[::2] = 1  # Prompts 0 and 2 are one part, and like to be long.
  few_costs = {'costs': (0.1,), 'scoring': 0.1, 'folds': 2}
  x = dataclasses.replace(study.get_config(), **few_costs)
  cells = {('code', 0.0): Cell(places(accepted, 3), {})}
  made = study.compare(x, cells)
  rows = {(row['policy'], row['shapes']): row for row in made}
  fixed = rows['always', 'fixed']
  assert fixed['unit_scored'] == [3 * n for n in fixed['unit_steps']]
  constant, always, oracle = (
    rows[name, 'ragged'] for name in (study.CONSTANT, 'always', study.ORACLE)
  )
  drafted, steps = constant['unit_drafted'], constant['unit_steps']
  assert np.divide(drafted, steps).tolist() == [1, 3, 1, 3]
  assert (constant['gain'], constant['chosen']) == (1, '1; 3')
  assert always['unit_drafted'][0] == 3 * always['unit_steps'][0]
  # 10 steps of 2 tokens and 17 of 1, and the oracle's 5 of 4 and 17 of none.
  assert oracle['unit_steps'] == [5, 17, 5, 17]
  assert oracle['unit_drafted'] == [15, 0, 15, 0]
  assert oracle['share'] == pytest.approx(1)


def test_verdicts():
  intervals = [1.01, 1.2], [0.9, 0.99], [0.9, 1.1], None
  outcomes = ['holds', 'fails', 'undecided', 'undecided']
  assert [*map(study.verdict, intervals)] == outcomes


def test_a_run_keeps_its_places(folder, tmp_path, capsys, monkeypatch):
  made = study.families

  def few(*args):
    every = made(*args)
    return {n: every[n] for n in (study.CONSTANT, 'entropy 0.3')}

  monkeypatch.setattr(study, 'families', few)
  settings = tiny.experiment(
    folder, timed=False, quick=False, drafters=('draft',), temperatures=(0.0,)
  )
  more = {'results': str(tmp_path / 'rows'), 'costs': (0.1,), 'folds': 2}
  few = more | {'prompts': Prompts(count=1), 'results': str(tmp_path / 'none')}
  with pytest.raises(UserError, match=r'^prompts\.count'):
    study.run(study.DraftLengths(**vars(settings) | few))
  for _ in range(2):
    study.run(study.DraftLengths(**vars(settings) | more))
    monkeypatch.setattr(study, 'look', None)  # Not asked again.
  rows = [json.loads(s) for s in (tmp_path / 'rows/rows.jsonl').open()]
  names = [study.CONSTANT, 'entropy 0.3', study.HINDSIGHT, study.ORACLE]
  assert [r['policy'] for r in rows] == names * 2
  assert {*map(reports.fault, rows)} == {''}
  assert '| entropy 0.3 ' in capsys.readouterr().out
