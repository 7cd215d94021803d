"""Samplers of others on trial: right ones and planted bugs."""

import functools
import re

import jax
import numpy as np
import pytest

from experiments.foreign import ours
from specjax import sampling, verify
from specjax.certify import cells, foreign, foreign_trial, planted
from specjax.certify.foreign_trial import SETTINGS
from tests.experiments import test_certify_one
from tests.support import foreign_on_trial as samplers

slow = pytest.mark.slow
SMALL = samplers.SMALL


@pytest.fixture
def judged(monkeypatch):
  return functools.partial(samplers.judge, monkeypatch)


CUT = 'T 2, top-p 0.7'
SEEN_AT = {
  'one temperature': 'mixed batch',
  'negative temperature': 'mixed batch',
  'temperature after top-p': CUT,
  'top-p on one side': CUT,
}


def by_hand(found: dict) -> np.ndarray:
  """The first token of the counterexample, from its outputs."""
  got = np.zeros(found['vocabulary'])
  for drafted, ends in found['outputs by draft'].items():
    chance = eval(re.search(r'chance (.*)\)', drafted)[1])
    for text, share in ends.items():
      got[int(text.split()[0])] += chance * eval(share)
  return got


@pytest.mark.parametrize('name', samplers.WRONG)
def test_a_planted_bug_is_convicted_in_numbers(judged, name):
  setting = SEEN_AT.get(name, 'T 1')
  shapes = SMALL if name in SEEN_AT else SMALL[:1]
  rows, verdict = judged(samplers.WRONG[name], (setting,), shapes)
  assert (verdict.text, verdict.status) == ('lossy', 3)
  found = verdict.counterexample
  assert found['expected'] != found['obtained']
  if found['what'] == 'the first token':
    said = [eval(x) for x in found['obtained'].values()]
    np.testing.assert_allclose(by_hand(found), said, atol=1e-5)
  assert rows[0]['worst'] > 0.01
  # Random steps agree with the law that was enumerated.
  assert rows[0]['strays'] <= 1


RIGHT = [
  ('right', ('T 1',), SMALL),
  ('raced', ('T 1',), SMALL),
  pytest.param('right', tuple(SETTINGS), ((2, 3), (4, 2)), marks=slow),
  pytest.param('raced', tuple(SETTINGS), ((2, 3), (3, 2)), marks=slow),
]


@pytest.mark.parametrize(('name', 'settings', 'shapes'), RIGHT)
def test_what_is_right_is_exact(judged, name, settings, shapes):
  rows, verdict = judged(getattr(samplers, name), settings, shapes)
  assert (verdict.text, verdict.why, verdict.status) == ('exact', '', 0)
  for row in rows:
    assert row['enumerated'] == row['pairs']
    assert row['worst'] < foreign_trial.TOLERANCE
    assert row['strays'] == 0
    assert row['checked'] > 0.99 * row['steps']


def test_coins_of_its_own_and_what_has_no_cells_are_simulated(judged):
  right, wrong = map(
    samplers.with_own_coins, (samplers.right, samplers.WRONG['rest is p'])
  )
  right.coins = wrong.coins = None
  rows, verdict = judged(right)
  said = verdict.text, verdict.exact, verdict.status
  assert said == ('not refuted', None, 0)
  assert (rows[0]['enumerated'], rows[0]['checked']) == (0, 0)
  assert 0 < rows[0]['least_seen'] < 0.1

  _, verdict = judged(wrong)
  assert verdict.text == 'lossy'
  assert verdict.counterexample['how'] == 'simulated'

  def blurred(draft, q, logits, values, uniforms):
    coins = uniforms.copy()
    coins[:, 0] = (coins[:, 0] + coins[:, 1]) % 1
    return samplers.right(draft, q, logits, values, coins)

  rows, verdict = judged(blurred)
  assert verdict.text == 'not refuted'
  assert rows[0]['enumerated'] < rows[0]['pairs']


def test_the_least_total_variation_is_seen_as_often_as_stated():
  """A law so far off is seen at power 0.99, and not a third of it."""
  steps, level = 4000, 1e-3
  far = foreign_trial.least_seen(steps, 3, level)
  plain = np.full(4, 0.25)
  for share, low, high in ((1, 0.97, 1), (1 / 3, 0, 0.6)):
    off = plain + share * far * np.array([1, -1, 1, -1]) / 2
    counts = np.random.default_rng(0).multinomial(steps, off, 400)
    alarms = [
      foreign_trial.fit_tests.fit(x, plain).p_value < level for x in counts
    ]
    assert low <= np.mean(alarms) <= high


def test_the_processed_law_is_that_of_the_library():
  logits = np.random.default_rng(0).normal(size=(40, 5))
  values = {
    'temperature': np.tile(np.float32([0, 0.7, 1, 2]), 10),
    'top_k': np.repeat([0, 1, 2, 3, 5], 8),
    'top_p': np.resize(np.float32([1, 0.3, 0.7]), 40),
  }
  with jax.enable_x64(True):
    law = jax.jit(jax.vmap(sampling.distribution))
    right = law(logits, sampling.Sampling(**values))
  found = foreign.processed(logits, values)
  np.testing.assert_allclose(found, right, atol=1e-12)


def test_the_cells_of_a_race_have_its_weights():
  weights = np.array([0, 5, 1, 2])
  space = cells.Coins(1, 1, 4)

  def call(task, coins):
    race = cells.exponentials(coins[:, 1:])
    return np.where(coins[:, 0] < 0.25, 9, np.argmax(weights / race, 1))

  (found,) = cells.run([cells.find(space, np.random.default_rng(0), 32)], call)
  law = cells.law(found, 10)
  np.testing.assert_allclose(law[:4], 0.75 * weights / 8, atol=1e-6)
  coins = np.random.default_rng(1).random((1000, space.width))
  expected = cells.predict(space, found, coins)
  assert (expected >= 0).mean() > 0.99
  assert (expected == call(None, coins))[expected >= 0].all()


def test_rows_that_hang_together_are_not_judged(judged):
  _, verdict = judged(samplers.beside)
  assert (verdict.text, verdict.status) == ('undecided', 1)
  assert 'beside other rows' in verdict.why


def test_what_is_refused_is_said(judged):
  def drawn_only(draft, q, *rest):
    if q is None:
      raise NotImplementedError('no drafts without q')
    return samplers.right(draft, q, *rest)

  rows, verdict = judged(drawn_only)
  assert verdict.text == 'exact'
  assert any('no drafts without q' in note for note in verdict.notes)
  assert rows[0]['pairs'] == 8


@slow
@pytest.mark.parametrize(
  ('made', 'setting', 'shapes', 'text'),
  [
    ((verify.token,), 'T 1', SMALL[:1], 'exact'),
    ((verify.block,), 'T 1', ((2, 3),), 'exact'),
    ((planted.WRONG_RULES[0].rule,), 'T 1', SMALL[:1], 'lossy'),
    ((verify.token, planted._temperature_last), CUT, ((1, 3),), 'lossy'),
    (
      (verify.token, planted._hottest_for_all),
      'mixed batch', ((1, 3),), 'lossy',
    ),
  ],
)  # fmt: skip
def test_our_rules_and_pipelines_through_the_same_door(
  judged, made, setting, shapes, text
):
  sampler = ours.of_rule(*made)

  def drawn(draft: jax.Array, q, *rest):
    if q is None:  # Not all wrong rules take a chosen draft.
      raise NotImplementedError
    return sampler(draft, q, *rest)

  drawn.coins = sampler.coins
  wrong_rule = text == 'lossy' and len(made) == 1
  _, verdict = judged(drawn if wrong_rule else sampler, (setting,), shapes)
  assert verdict.text == text


def test_the_program_says_it(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(foreign_trial, 'SETTINGS', {'T 1': SETTINGS['T 1']})
  monkeypatch.setattr(foreign_trial, '_QUICK', SMALL[:1])
  status, page, said = test_certify_one.certified(
    tmp_path, capsys, 'foreign', 'eager', rounds=8
  )
  assert (status, said['kind'], said['verdict']) == (3, 'foreign', 'lossy')
  assert said['counterexample']['total_variation'] == '1/30'
  assert '### Counterexample' in page
  assert 'T 1' in page
