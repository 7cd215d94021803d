"""Rows of cells, from runs whose counts and times are written by hand."""

import numpy as np
import pytest

from specjax import prompts
from specjax.bench import costs, replay, row_fields
from specjax.sampling import Automaton
from specjax.stats import metrics, sanity_checks
from tests.support import rows as made


def run(histogram, overlap=(0.0,), seconds=1.0, tokens=None):
  """A batch of prompts, one for each line of a histogram [B, K + 1]."""
  histogram = np.array(histogram)
  after = histogram[:, ::-1].cumsum(1)[:, ::-1]  # steps that accepted as many
  steps, accepted = after[:, 0], after[:, 1:]
  if tokens is None:
    tokens = steps + accepted.sum(1)
  # A token is judged where all before it were accepted.
  counts = {'histogram': histogram, 'tried': after[:, :-1]}
  counts |= {'accepted': accepted, 'overlap': np.array(overlap)}
  counts['drafted'] = steps * accepted.shape[1]
  return made.run(tokens, steps, seconds, **counts)


def test_alpha_is_over_prefixes_of_the_prompts_alone():
  """The third row is there to fill up a mesh.

  A step that was cut short has tokens and is no prefix; a step that accepted
  what it drafted is one.
  """
  runs = [
    run([[5, 1], [3, 0]], [3.0, 1.5], tokens=[9, 4]),
    run([[9, 0]], [9.0]),
  ]
  found = row_fields.alpha_of(runs, 2)
  assert found.prefixes.tolist() == [6, 3]
  assert found.estimate.value == pytest.approx(4.5 / 9)
  assert found.played.prefixes.tolist() == [6, 3]


def test_prompts_without_a_prefix_were_not_played():
  found = row_fields.Alpha(np.array([0.0, 0.5, 1.5]), np.array([0, 1, 2]))
  assert found.played.overlap.tolist() == [0.5, 1.5]
  assert found.played.prefixes.tolist() == [1, 2]


def prices(spread, turns=9):
  """c 0.1 and v 1.2 at gamma 2, of turns that differ by so much."""
  away = spread * np.linspace(-1, 1, turns)
  plain = np.ones(turns)
  scored = 1.2 + away
  return costs.Costs(2, plain, scored, scored + 0.2)


def width(ends):
  return ends[1] - ends[0]


def loops():
  """Plain decoding and speculation on eight prompts that are nearly alike."""
  base, runs = [], []
  for i in range(8):
    runs.append(run([[4, 3, 3 + i % 2]], seconds=6.0 + 0.01 * i))
    base.append(run([[20]], seconds=10.0 + 0.01 * (i % 3), tokens=[20]))
  return base, runs


def test_intervals_of_predictions_know_how_sure_costs_are():
  base, runs = loops()
  sure, unsure = (row_fields.speed(runs, base, prices(x)) for x in (0.0, 0.4))
  for name in ('predicted_speedup', 'measured_over_predicted'):
    assert sure[name] == pytest.approx(unsure[name])
    assert width(unsure[f'{name}_ci']) > 5 * width(sure[f'{name}_ci'])
  # Measured alone, costs have no part in it.
  assert sure['speedup_ci'] == unsure['speedup_ci']
  tau = metrics.ratio(
    [r.counts.tokens.sum() for r in runs],
    [r.counts.target_calls.sum() for r in runs],
  )
  assert sure['predicted_speedup_ci'] == pytest.approx(
    [end / 1.4 for end in tau.interval]
  )


def test_costs_of_few_turns_leave_a_prediction_alone():
  base, runs = loops()
  row = row_fields.speed(runs, base, prices(0.1, turns=3))
  assert row['predicted_speedup_ci'] is None
  assert row['speedup_ci'] is not None


def test_a_check_of_a_prediction_knows_how_sure_costs_are():
  base, runs = loops()
  calls = [int(r.counts.target_calls.sum()) for r in runs]
  seen = {
    'gammas': [2], 'unit_tokens': [int(r.counts.tokens.sum()) for r in runs],
    'unit_target_calls': [calls], 'digests': ['other'] * 8, 'tau': [2.0],
    'tau_by_beta': [2.0], 'tau_iid': [2.0], 'alpha': 0.5, 'alpha_ci': None,
  }  # fmt: skip

  def check(cost):
    turns = {'seconds_per_step': cost.seconds()}
    row = {'gamma': 2, 'c': cost.c, 'v': cost.v} | turns
    return replay.compare(seen, row, base, runs)

  sure, unsure = check(prices(0.0)), check(prices(0.4))
  name = 'predicted_over_measured'
  assert sure[name] == pytest.approx(unsure[name])
  assert width(unsure[f'{name}_ci']) > 5 * width(sure[f'{name}_ci'])


def test_without_a_whole_step_nothing_is_known_of_coverage():
  runs = [run([[0, 0], [0, 0]], [0.0, 0.0], tokens=[2, 1])]
  alpha = row_fields.alpha_of(runs, 2)
  row = row_fields.acceptance(runs, alpha, alpha)
  assert row['coverage'] is None
  assert row['tokens'] == 3
  assert not any(
    'coverage' in x for x in sanity_checks.find(row | {'gamma': 1})
  )


def test_intervals_of_acceptance_lengths_end_where_these_do():
  few, many = ([4, 0, 0], [3, 1, 0]), ([0, 0, 4], [0, 1, 3])
  for usual, other in (few, many):
    runs = [run([*[usual] * 7, other], np.zeros(8))]
    alpha = row_fields.alpha_of(runs, 8)
    row = row_fields.acceptance(runs, alpha, alpha)
    for name, least, most in (
      ('tau', 1, 3), ('tau_per_step', 1, 3), ('tau_without_bonus', 0, 2),
    ):  # fmt: skip
      low, high = row[f'{name}_ci']
      assert least <= low <= row[name] <= high <= most


def test_an_alpha_beyond_what_is_possible_is_told_and_not_hidden():
  found = row_fields.Alpha(np.full(6, 3.0), np.array([2, 1, 2, 3, 2, 2]))
  assert found.estimate.value == found.estimate.high == 1.5


def test_a_prediction_and_the_loop_by_hand():
  """Three prompts in batches of two, at the second of two draft lengths.

  Of the first row text and calls are those of the replay, of the second the
  calls alone, of the third the text.
  """
  runs = [
    made.run([6, 3], [3, 2], 4.0, texts=[[1] * 6, [2] * 3]),
    made.run([4], [4], 8.0, texts=[[3] * 4]),
  ]
  base = [made.run([6, 3], [6, 3], 12.0), made.run([4], [4], 6.0)]
  seen = {
    'gammas': [1, 2], 'unit_tokens': [6, 3, 5],
    'unit_target_calls': [[9, 9, 9], [3.0, 2.0, 4.5]],
    'digests': [prompts.digest([x]) for x in ([1] * 6, [1] * 3, [3] * 4)],
    'tau': [1.2, 1.5], 'tau_by_beta': [1.1, 1.4], 'tau_iid': [1.0, 1.3],
    'alpha': 0.5, 'alpha_ci': [0.4, 0.6],
  }  # fmt: skip
  cost = costs.Costs(2, np.ones(3), np.full(3, 1.3), np.full(3, 1.5))
  price = {'gamma': 2, 'c': 0.1, 'v': 1.3, 'seconds_per_step': cost.seconds()}
  row = replay.compare(seen, price, base, runs)
  # 13 tokens in 9 calls. Of the steps, 6 + 4 places took 12 seconds, and of
  # plain decoding 12 + 4 took 18.
  at_work = (18 / 16) / (12 / 10) * 13 / 9
  expected = {
    'alpha': 0.5, 'alpha_ci': [0.4, 0.6], 'predicted_tau': 1.5,
    'tau_by_beta': 1.4, 'tau_iid': 1.3, 'same_text': 2, 'equal_calls': 1,
    'c': 0.1, 'v': 1.3, 'predicted_speedup': 1.5 / 1.5, 'tau': 13 / 9,
    'difference': 13 / 9 - 14 / 9.5, 'speedup': 18 / 12,
    'speedup_at_work': at_work,
    'predicted_over_measured': 14 / 9.5 / 1.5 / at_work,
    'unit_tokens': [6, 3, 4], 'unit_target_calls': [3, 2, 4],
    'unit_seconds': [4.0, 8.0], 'unit_baseline_tokens': [6, 3, 4],
    'unit_baseline_seconds': [12.0, 6.0],
  }  # fmt: skip
  for name, value in expected.items():
    assert row[name] == pytest.approx(value), name
  assert {*row} - {*expected} == {
    *('tau_ci', 'difference_ci', 'speedup_ci', 'speedup_at_work_ci'),
    'predicted_over_measured_ci',
  }


def test_texts_of_a_language_ended_or_were_cut():
  """The end stands behind two of four texts; an empty row is no text."""
  moves = np.array([[0, 1], [-1, 1]], np.int16)
  zeros = Automaton('zeros', np.arange(2, dtype=np.int16), moves, (1,), '')
  one = made.run([3, 1], [3, 1], texts=[[0, 0, 1], [0]])
  turn = made.run([2, 0, 1], [2, 0, 1], texts=[[0, 0], [], [1]])
  other = made.run([2], [2], texts=[[0, 0]])
  other.turns = [turn]
  row = row_fields.language(zeros, [one, other], (1,))
  assert row == {
    'constraint': {'what': 'zeros', 'states': 2, 'classes': 2}, 'ended': 0.5
  }  # fmt: skip
