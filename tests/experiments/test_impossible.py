"""Numbers that cannot be, in rows made by hand; and those that can."""

import pathlib
import re

import numpy as np
import pytest

from specjax.stats import sanity_checks
from tests.support import rows as made
from tests.support.resumed import lines

ROOT = pathlib.Path(__file__).parents[2]
# Eight prompts of 8 tokens each, two tokens a step: a plain step takes 1 s and
# a step 1.25, of which the draft takes 0.1.
SECONDS = {'plain': 1.0, 'scored': 1.15, 'whole': 1.25}


def timed(**changes):
  """A row with times that are as they should be."""
  row = made.row(
    timed=True, tokens_per_second=1.6, baseline_tokens_per_second=1.0,
    speedup=1.6, speedup_ci=[1.5, 1.7], predicted_speedup=1.6, c=0.05, v=1.15,
    seconds_per_step={k: noisy(s, 7) for k, s in SECONDS.items()},
    unit_baseline_tokens=[8] * 8, unit_baseline_seconds=noisy(8.0),
    unit_seconds=noisy(5.0, seed=1),
  )  # fmt: skip
  return row | changes


def noisy(seconds, count=8, seed=0):
  """Times that differ by some per cent, and by chance."""
  noise = np.random.default_rng(seed + count).normal(0, 0.02, count)
  return (seconds * np.exp(noise)).tolist()


def test_what_can_be_is_let_pass():
  assert sanity_checks.find(timed()) == []
  assert sanity_checks.find(made.row()) == []  # Not timed.
  # As many tokens as can be: all that was drafted, and one more.
  most = made.row() | {'tau': made.row()['gamma'] + 1.0}
  for probability in (-0.001, 1 + 0.001):  # That is rounding, at most.
    one = most | {'alpha': probability}
    assert not [x for x in sanity_checks.find(one) if 'outside' in x]
  costs = (0.994, 0), (0.996, -0.004), (1, -0.006), (None, None)
  found = [sanity_checks.noise({'v': v, 'c': c})[:6] for v, c in costs]
  assert found == ['v 0.99', '', 'c -0.0', '']
  nothing = {'alpha': None, 'unit_prefixes': [0] * 8, 'alpha_mle': None}
  assert sanity_checks.find(timed(**nothing)) == []


def test_committed_rows_can_be():
  """Of every run, prediction and explanation."""
  folders = ('quickstart', 'rules', 'explain', 'predict', 'drafters/timed')
  for folder in folders:
    for row in lines(ROOT / 'results' / folder / 'rows.jsonl'):
      assert sanity_checks.find(row) == []


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'alpha': 1.0015}, r'alpha is 1\.00[12], outside'),
    ({'alpha': -0.0015}, r'alpha is -0\.0015, outside'),
    ({'acceptance': 1.2}, 'acceptance is 1.2, outside'),
    ({'acceptance_by_position': [0.5, 1.5]}, 'is 1.5, outside'),
    ({'coverage': -1.0}, 'coverage is -1, outside'),
    ({'tau': 0.99}, r'tau is 0\.99, outside \[1, 3\]'),
    ({'tau': 3.01}, r'tau is 3\.01, outside \[1, 3\]'),
    (
      {'tau': [1.5, 3.5], 'gammas': [1, 2], 'speedup': None, 'timed': False},
      r'tau is 3\.5, outside \[1, 3\] of drafts 2 deep',
    ),
    ({'alpha': None}, 'alpha is not finite'),
    ({'tau': float('nan')}, 'tau is not finite'),
    ({'unit_overlap': [4.0, None]}, 'unit_overlap is not finite'),
    ({'tokens_per_second': 0.0}, 'tokens_per_second is 0.0'),
    (
      {'baseline_tokens_per_second': float('inf')},
      'baseline_tokens_per_second is inf',
    ),
    ({'speedup': None}, 'speedup is None, not above 0'),
    ({'speedup': 0.0, 'timed': False}, r'speedup is 0\.0, not above 0'),
    ({'v': 0.0}, r'v is 0\.00, below 1'),
  ],
)
def test_what_cannot_be_is_found(changes, words):
  (found,) = sanity_checks.find(timed(**changes))
  assert re.search(words, found)


def slower_baseline(factor):
  """Every plain step took so many times what it takes."""
  row = timed(
    unit_baseline_seconds=noisy(8.0 * factor),
    speedup=1.6 * factor,
    speedup_ci=[1.5 * factor, 1.7 * factor],
  )
  row['seconds_per_step']['plain'] = noisy(factor, 7)
  return row | {'v': 1.15 / factor, 'c': 0.05 / factor}


def test_a_slow_baseline_is_seen_in_the_speedup_and_in_v():
  speedup, v = sanity_checks.find(slower_baseline(1.5))
  assert speedup.startswith('the speed-up 2.40 is more than tau 2.00 allows')
  assert v.startswith('v is 0.77, below 1: scoring 3 tokens took less time')
  for sentence in (speedup, v):
    assert 'measure again' in sentence
  assert len(sanity_checks.find(slower_baseline(1.4))) == 1


def test_noise_is_not_called_impossible():
  """A step as dear as a plain one, and times that differ by some per cent."""
  row = slower_baseline(1.15)
  row |= {'unit_seconds': noisy(4.6, seed=3), 'v': 0.99, 'speedup': 2.01}
  row['seconds_per_step']['whole'] = noisy(1.14, 7, seed=5)
  assert sanity_checks.find(row | {'c': -0.005}) == []


def test_without_an_interval_it_takes_more():
  """Two prompts, of which nothing is known but the values."""
  few = {'unit_baseline_seconds': None, 'seconds_per_step': None}
  few |= {'speedup_ci': None, 'c': 0.05}
  row = timed(**few)
  assert sanity_checks.find(row | {'speedup': 2.4, 'v': 0.85}) == []
  assert len(sanity_checks.find(row | {'speedup': 2.6, 'v': 0.75})) == 2
  assert sanity_checks.find(row | {'c': -0.1}) == []
  assert len(sanity_checks.find(row | {'c': -0.15})) == 1


def test_a_draft_that_takes_no_time_or_less():
  row = timed(c=-0.25)
  row['seconds_per_step']['whole'] = noisy(0.65, 7)
  (found,) = sanity_checks.find(row)
  assert found.startswith('c is -0.250, below 0')


def test_a_draft_that_saved_time_in_one_turn_is_noise():
  """A difference may have either sign, however many of its turns have one."""
  row = timed(c=-0.1)
  saved = np.array([0.2, 0.2, 0.3, 0.2, 0.1, 0.2, 3])
  scored = np.array(row['seconds_per_step']['scored'])
  row['seconds_per_step']['whole'] = (scored - saved).tolist()
  assert sanity_checks.find(row) == []


def test_a_batch_steps_as_often_as_its_slowest_row():
  """Per token it looks impossible: plain decoding waits for one long text.

  Of two rows one ends after 2 tokens and one after 16: plain decoding takes 16
  steps, a draft that is right every other time in one row 8 steps.
  """
  row = timed(
    batch=2, unit_tokens=[2, 16] * 8, unit_target_calls=[2, 8] * 8,
    unit_baseline_tokens=[2, 16] * 8, unit_baseline_seconds=noisy(16.0),
    unit_seconds=noisy(8.05, seed=1), tau=1.8, speedup=1.99,
  )  # fmt: skip
  assert row['speedup'] > row['tau']
  assert sanity_checks.find(row) == []
  (found,) = sanity_checks.find(row | {'unit_seconds': noisy(6.0, seed=1)})
  assert 'a step took less time than a plain one' in found


def test_warnings_name_the_cell(capsys):
  good, bad = timed(), timed(gamma=4)
  rows = [
    row | {'impossible': sanity_checks.find(row)}
    for row in (good, bad | {'tau': 6})
  ]
  (found,) = sanity_checks.of([*rows, made.row()])
  assert found.startswith(
    'domain code, temperature 0.0, drafter draft, verifier token, gamma 4: tau '
  )
  sanity_checks.warn(rows)
  assert capsys.readouterr() == ('', f'warning: {found}\n')
  assert sanity_checks.without(rows) == rows[:1]
