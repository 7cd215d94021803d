"""The verdict on made-up numbers: each remedy where it is the right one."""

import pytest

from specjax.reports import explain as explain_report
from specjax.reports import remedies
from specjax.stats import theory

GAMMAS = range(1, 9)


def facts(
  alpha=0.8, c=0.05, v=0.05, overhead=0.03, plain_overhead=0.02, gamma=None
) -> remedies.Facts:
  """A draft whose tokens are accepted independently; v grows by row.

  Without a gamma the best one is asked for.
  """
  made = remedies.Facts(
    gamma=gamma or 1,
    alpha=alpha,
    tau={g: theory.tokens_per_call(alpha, g) for g in GAMMAS},
    c=dict.fromkeys(GAMMAS, c),
    v={g: 1 + v * g for g in GAMMAS},
    speedup={g: (1.5, [1.4, 1.6]) for g in GAMMAS},
    overhead=overhead,
    plain_overhead=plain_overhead,
  )
  if gamma:
    return made
  return facts(alpha, c, v, overhead, plain_overhead, remedies.best_gamma(made))


CASES = [
  ({'c': 0.5, 'alpha': 0.7}, 'draft', 'drafting takes'),
  ({'c': 0.01, 'v': 0.01, 'alpha': 0.4}, 'agreement', 'alpha 0.40'),
  ({'c': 0.01, 'v': 0.6, 'alpha': 0.9}, 'scoring', 'costs too much (v'),
  (
    {'v': 0.3, 'alpha': 0.6, 'overhead': 0.9, 'plain_overhead': 0.05},
    'overhead',
    'the target is too cheap: 5%',
  ),
  ({'alpha': 0.5, 'c': 0.15, 'gamma': 8}, 'gamma', 'gamma 8 is too long'),
  ({'alpha': 0.95, 'c': 0.01, 'gamma': 1}, 'gamma', 'gamma 1 is too short'),
]


@pytest.mark.parametrize(
  ('numbers', 'remedy', 'words'), CASES, ids=lambda x: str(x)[:9]
)
def test_the_remedy_that_helps_most(numbers, remedy, words):
  found = remedies.decide(facts(**numbers))
  assert found.remedy == remedy
  assert words in found.sentence
  assert found.gain > 1
  assert found.sentence.count('\n') == 0


def test_gain_is_what_the_costs_promise():
  """alpha 1 at gamma 2: 3 tokens for 1.2 + 2 * 0.5 steps."""
  made = facts(alpha=1.0, c=0.5, v=0.1)
  assert remedies.predict(made, 2) == pytest.approx(3 / 2.2)
  half = remedies.Change(drafting=0.5)
  assert remedies.predict(made, 2, half) == pytest.approx(3 / 1.7)
  half = remedies.Change(scoring=0.5)  # Of 0.2 more, 0.01 is not scoring.
  assert remedies.predict(made, 2, half) == pytest.approx(3 / (2.2 - 0.19 / 2))
  half = remedies.Change(overhead=0.5)
  assert remedies.predict(made, 2, half) == pytest.approx(3 * 0.99 / 2.185)


def test_disagreement_is_halved():
  made = facts(alpha=0.5, c=0.1, v=0.0)
  half = remedies.Change(disagreement=0.5)
  assert remedies.predict(made, 1, half) == pytest.approx(1.75 / 1.1)


def test_an_interval_around_one_is_no_gain():
  made = facts()
  here = made.gamma
  made.speedup[here] = (1.02, [0.95, 1.1])
  assert (
    'about as fast as plain decoding (1.02' in remedies.decide(made).sentence
  )
  made.speedup[here] = (1.02, None)
  assert 'is 1.02 times as fast' in remedies.decide(made).sentence


def cell(gamma, predicted, measured, **changes):
  row = {
    'gamma': gamma,
    'predicted_speedup': predicted,
    'speedup': measured,
    'domain': 'code',
    'temperature': 0.0,
  }
  return row | changes


def test_the_best_gamma_is_that_of_the_largest_prediction():
  """Whatever was measured a little faster beside it."""
  cells = [cell(4, 1.6, 1.5), cell(1, 1.2, 1.9), cell(3, 1.5, 1.55)]
  assert explain_report.choose(cells)['gamma'] == 4


def test_the_headline_is_greedy_code():
  rows = [
    cell(1, 1, 1, domain='structured'),
    cell(1, 1, 1, temperature=1.0),
    cell(1, 1, 1),
  ]
  assert explain_report.examined(rows) == rows[2:]
  assert explain_report.examined(rows[:1]) == rows[:1]


def test_phases_add_up_to_a_step():
  loops = {
    'plain': [2e-3, 2e-3, 4e-3],
    'whole': [3e-3, 3.2e-3, 9e-3],
    'scored': [2e-3, 2.1e-3, 8e-3],
    'judged': [0.5e-3, 0.4e-3, 0.6e-3],
    'committed': [0.3e-3, 0.3e-3, 0.3e-3],
    'bare': [0.1e-3, 0.1e-3, 0.2e-3],
  }
  few = explain_report.split(loops, 4.0)
  assert all(p.interval is None for p in few.values())
  found = explain_report.split({k: 2 * v for k, v in loops.items()}, 4.0)
  assert found['draft'].interval is not None
  found = explain_report.split(loops, 4.0)
  assert found['draft'].value == pytest.approx(2.2)
  assert found['loop'].value == pytest.approx(0.2)
  assert sum(p.value for p in found.values()) == pytest.approx(6.4)
  known = [p for p in found.values() if p.interval is not None]
  assert all(p.low <= p.value <= p.high for p in known)
