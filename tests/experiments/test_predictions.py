"""Candidates in order, and pairs on the same prompts: numbers by hand."""

import types

import numpy as np
import pytest

from specjax.bench import replay
from specjax.programs import predict
from specjax.reports import paired
from specjax.reports import predict as predict_report
from tests.support import rows as made

FEW = [8, 8, 8, 8, 5], [4, 4, 4, 4, 8]  # calls; too few for a narrow interval


@pytest.mark.parametrize('calls', FEW)
def test_an_interval_of_tau_ends_where_tau_does(calls):
  """A call gives one token, or two of a draft of one."""
  base = [made.run([8], [8], 8.0)] * 5
  runs = [made.run([8], [n], 8.0) for n in calls]
  seen = {
    'gammas': [1], 'alpha': 0.5, 'alpha_ci': None, 'digests': [''] * 5,
    'unit_tokens': [8] * 5, 'unit_target_calls': [calls],
    'tau': [1.5], 'tau_by_beta': [1.5], 'tau_iid': [1.5],
  }  # fmt: skip
  steps = {'plain': [1.0], 'scored': [1.1], 'whole': [1.5]}
  cost = {'gamma': 1, 'c': 0.1, 'v': 1.1, 'seconds_per_step': steps}
  (low, high) = replay.compare(seen, cost, base, runs)['tau_ci']
  assert 1 <= low < high <= 2
  added = {}
  board = types.SimpleNamespace(
    plan=types.SimpleNamespace(gammas=(1,)),
    deepest=lambda drafter: None,
    add=lambda *where, **row: added.update(row),
  )
  ones = np.ones(8)
  watched = [
    [
      types.SimpleNamespace(
        text=ones,
        beta=ones,
        size=ones,
        calls=lambda gamma, n=n: n,
        calls_by_beta=lambda gamma, n=n: n,
      )
    ]
    for n in calls
  ]
  predict.Predictor.replay(board, 'a', 'code', 0.0, watched)
  assert 1 <= added['tau_ci'][0][0] < added['tau_ci'][0][1] <= 2


def check(**changes):
  """A row of `checks`."""
  row = {'part': 'check', 'drafter': 'a', 'gamma': 2, 'domain': 'code'}
  row |= {'temperature': 0.0, 'prompts': 8, 'same_text': 6, 'equal_calls': 5}
  row |= {'difference_ci': [0.1, 0.2], 'predicted_speedup': 1.2}
  return row | {'predicted_over_measured_ci': [0.8, 0.95]} | changes


def board(*checks, speeds=((60, 58), (70, 40))):
  """Two domains of 100 tokens each; target calls of drafts by length."""
  calls = dict(zip('ab', speeds, strict=True))
  rows = made.predicted(calls, {'code': 0, 'text': 30})
  return predict_report.Board([*checks, *rows])


def test_candidates_are_ranked_where_they_are_asked_for():
  """Tokens over target calls and plain steps a step, at the best length."""
  found = board()
  both = found.speed('b', 2, ['code', 'text'], 0.0)
  assert both == pytest.approx(200 / (40 + 70) / 1.3)
  assert found.winner(0.0) == ('b', 2, both)
  code = found.ranked(('b', 'a'), ['code'], 0.0)
  assert [(one.drafter, one.gamma) for one in code] == [('b', 2), ('a', 1)]
  speeds = [100 / 40 / 1.3, 100 / 60 / 1.2]
  assert [one.speed for one in code] == pytest.approx(speeds)
  assert found.ranked(('a',), ['code'], 0.0) == code[1:]


def test_cells_are_in_the_order_of_the_prediction():
  low, high = check(), check(drafter='b', predicted_speedup=1.4)
  assert board(low, high).cell('code', 0.0) == [high, low]
  assert board(low, check(domain='text')).cell('code', 0.0) == [low]


def test_the_verdict_counts_cells_that_meet():
  """Of one cell an interval that overlaps the range is enough."""
  warm = check(temperature=1.0)
  found = board(
    check(),
    check(drafter='b', same_text=4, predicted_over_measured_ci=[1.2, 1.3]),
    warm,
    warm | {'difference_ci': [-0.1, 0.1]},
    warm | {'difference_ci': None, 'predicted_over_measured_ci': None},
  ).agreement()
  assert [line[1:] for line in found] == [['10', '10'], ['1', '2'], ['3', '4']]
  assert 'of 16' in found[0][0]


def test_what_is_recommended_was_measured():
  times = {
    'unit_baseline_seconds': [30.0, 10.0],
    'unit_baseline_tokens': [10, 10],
    'unit_seconds': [10.0, 6.0],
    'unit_tokens': [10, 10],
  }
  one = check(drafter='b', **times)
  found = board(one, check(drafter='a', **times)).recommend(0.0)
  assert found == ['0', 'b', '2', '1.40', '2.50']
  # Of code alone another one is faster, but the same one is named.
  fast = check(drafter='a', predicted_speedup=1.5, **times)
  assert board(one, fast).last_line()['drafter'] == 'b'
  slow = board(speeds=((90, 85), (95, 95))).recommend(0.0)
  assert slow[1] == 'nothing (a)'


def test_pairs_stand_beside_the_first_value():
  """A row with the first rule, and then each other one."""
  token, block = made.row(), made.row(verifier='block')
  warm = made.row(verifier='block', temperature=1.0)
  assert paired.pairs([token, block, warm], 'verifier') == [(token, block)]
  found = paired.pairs([token, block, warm], 'temperature')
  assert found == [(block, warm)]
  # Drafters with a length of their own each; otherwise the same length.
  other = made.row(drafter='other', gamma=5)
  assert paired.pairs([token, other], 'drafter') == [(token, other)]
  longer = made.row(gamma=5)
  pairs = paired.pairs([token, longer, other], 'drafter')
  assert pairs == [(longer, other)]


@pytest.mark.parametrize(
  ('statistic', 'relative', 'value'),
  [
    (paired.TAU, False, 4.0 - 2.0),
    (paired.TAU, True, 100.0),
    (paired.ALPHA, False, 0.75 - 0.5),
    (paired.SPEED, True, 300.0),
  ],
)
def test_a_difference_is_the_other_less_the_one(statistic, relative, value):
  one = made.row(unit_seconds=[4.0] * 8)
  other = made.row(
    unit_target_calls=[2] * 8, unit_overlap=[6.0] * 8, unit_seconds=[1.0] * 8
  )
  found = paired.difference(one, other, statistic, relative)
  assert found.value == pytest.approx(value)
  assert paired.difference(one, made.row(prompts=7), statistic) is None
