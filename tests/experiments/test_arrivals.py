"""What is measured of requests that come at random times."""

import numpy as np
import pytest

from experiments import arrivals
from experiments.arrivals import Arrivals
from specjax.bench.measure import NotFinite
from specjax.cli import command
from specjax.errors import UserError
from specjax.loop import counting
from specjax.requests import pool
from tests.support.resumed import run_twice
from tests.support.tiny import experiment


class Time:
  """A clock that goes on when it is told to."""

  def __init__(self):
    self.now = 100.0

  def pass_by(self, seconds):
    assert seconds > 0
    self.now += seconds


class Script:
  """A pool of one row: a turn takes so long, and tells so many tokens.

  Requests are answered one after the other.
  """

  def __init__(self, time, turns):
    self.time, self.turns = time, [*turns]
    self.queue: list = []
    self.submitted: list = []

  @property
  def live(self):
    return min(len(self.queue), 1)

  @property
  def waiting(self):
    return len(self.queue) - self.live

  def submit(self, request):
    number = len(self.submitted)
    self.submitted.append(self.time.now)
    self.queue.append([number, request.new_tokens])
    return number

  def turn(self, steps):
    assert steps == 3
    seconds, count = self.turns.pop(0)
    self.time.pass_by(seconds)
    one = self.queue[0]
    count = min(count, one[1])
    one[1] -= count
    if done := not one[1]:
      self.queue.pop(0)
    counts = counting.none(1, 1)
    return [pool.Progress(one[0], [7] * count, [], [], [], counts, done, True)]


def test_times_begin_when_a_request_was_scheduled():
  """The second one comes while the first turn keeps the loop busy."""
  turns = [(2.0, 2), (1.0, 1), (0.5, 4), (1.5, 1)]
  requests = [pool.Request([1], n, None, None) for n in (3, 4, 1)]
  time, times = Time(), [1.0, 1.25, 9.0]
  held, clock = Script(time, turns), (lambda: time.now, time.pass_by)
  texts = arrivals.play(held, requests, times, 3, *clock)
  arrivals.check_texts(texts, requests, ())
  assert texts == [
    arrivals.Text(1.0, 1.0, [(3.0, 2), (4.0, 1)], [7] * 3, True),
    # Noticed at 3.0, when the turn was over.
    arrivals.Text(1.25, 3.0, [(4.5, 4)], [7] * 4, True),
    # The loop had nothing to do from 4.5 to 9.
    arrivals.Text(9.0, 9.0, [(10.5, 1)], [7], True),
  ]
  assert (texts[0].first, texts[0].last) == (3.0, 4.0)


def made(count=20):
  """Texts a second apart: the first tokens after i / 100, 2 more a second."""
  return [
    arrivals.Text(
      float(i), i + 0.001 * i, [(i + i / 100, 1), (i + i / 100 + 1, 2)],
      [5, 5, 5], True
    )
    for i in range(count)
  ]  # fmt: skip


def test_every_number_of_a_row_by_hand():
  """A hundred texts from 4 on."""
  found = arrivals.numbers(made(104), 4)
  wait = np.arange(4, 104) / 100
  intervals = {name: found.pop(name) for name in [*found] if 'ci' in name}
  tokens = 0
  for i in range(104):
    tokens += 1 * (4 <= i + i / 100 <= 103)
    tokens += 2 * (4 <= i + i / 100 + 1 <= 103)
  expected = {
    'counted': 100, 'told_at_once': 0, 'tokens': 300,
    'tokens_per_second': tokens / 99, 'noticed_ms': 103.0,
    'first_token_ms': 535.0, 'between_tokens_ms': 500.0, 'latency_ms': 1535.0,
  }  # fmt: skip
  for percent in (50, 95, 99):
    value = 1e3 * np.percentile(wait, percent)
    expected |= {
      f'first_token_p{percent}_ms': value,
      f'between_tokens_p{percent}_ms': 500.0,
      f'latency_p{percent}_ms': 1000 + value,
    }
  assert found == pytest.approx(expected)
  assert intervals.keys() == {
    'tokens_per_second_ci',
    *(f'{name}_ms_ci' for name in ('first_token', 'between_tokens', 'latency')),
  }
  low, high = intervals['first_token_ms_ci']
  assert 200 < low < 535 < high < 900


def test_few_texts_have_no_tail():
  found = arrivals.numbers(made(24), 4)
  assert found['latency_p95_ms'] == pytest.approx(1000 + 10 * (4 + 0.95 * 19))
  assert found['latency_p99_ms'] is None
  assert arrivals.numbers(made(23), 4)['latency_p95_ms'] is None


def test_tokens_that_are_told_together_have_no_time_between_them():
  """Three at once and one a second later; and texts that are told at once."""
  later = [
    arrivals.Text(i, i, [(i + 0.5, 3), (i + 1.5, 1)], [5] * 4, True)
    for i in map(float, range(12))
  ]
  at_once = [
    arrivals.Text(i, i, [(i + 0.5, 8)], [5] * 8, True)
    for i in map(float, range(12, 20))
  ]
  found = arrivals.numbers(later + at_once, 0)
  assert found['between_tokens_ms'] == pytest.approx(1000)
  assert (found['told_at_once'], found['counted']) == (8, 20)
  with pytest.raises(UserError, match='max_new_tokens: every text is given at'):
    arrivals.numbers(at_once, 0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'given': []}, 'given nothing'),
    ({'submitted': -1.0}, 'submitted before it came'),
    ({'given': [(2.0, 1), (2.0, 2)]}, 'in no order'),
    ({'submitted': 1.6}, 'answered before it came'),
    ({'given': [(2.0, 3), (3.0, 0)]}, 'given no tokens'),
    ({'given': [(2.0, 2)]}, 'given tokens that it has not'),
    ({'tokens': [5, 5], 'given': [(2.0, 2)]}, 'another length'),
    ({'tokens': [5, 5, 9, 9], 'given': [(2.0, 4)]}, 'another length'),
  ],
)
def test_what_cannot_have_happened_ends_the_program(changes, message):
  right = arrivals.Text(1.0, 1.1, [(1.5, 1), (2.0, 2)], [5, 5, 5], True)
  requests = [pool.Request([1], 3, None, None)]
  arrivals.check_texts([right], requests, (9,))
  ended = right._replace(tokens=[5, 9], given=[(2.0, 2)])
  arrivals.check_texts([ended], requests, (9,))
  with pytest.raises(RuntimeError, match=message):
    arrivals.check_texts([right._replace(**changes)], requests, (9,))
  with pytest.raises(NotFinite):
    arrivals.check_texts([right._replace(finite=False)], requests, (9,))
  with pytest.raises(RuntimeError, match='0 texts of 1 requests'):
    arrivals.check_texts([], requests, (9,))


def test_arrivals_are_drawn_once_and_scaled(folder, tmp_path):
  x = settings(folder, tmp_path, requests=4000, seed=3)
  load, again = arrivals.draw(x, [[1], [2]]), arrivals.draw(x, [[1], [2]])
  np.testing.assert_array_equal(load.times(2.0), again.times(2.0))
  np.testing.assert_allclose(load.times(2.0), 2 * load.times(4.0))
  gaps = np.diff(load.times(2.0))
  # Those of a Poisson process: exponential, of mean and deviation 1 / rate.
  assert gaps.mean() == pytest.approx(0.5, rel=0.06)
  assert gaps.std() == pytest.approx(0.5, rel=0.1)
  assert (gaps > 0.5).mean() == pytest.approx(np.exp(-1), abs=0.03)
  assert load.prompts[:3] == [[1], [2], [1]]
  assert {*load.new} == {*range(x.shortest, x.max_new_tokens + 1)}


def settings(folder, tmp_path, **changes):
  options = {
    'drafters': ('ngram',), 'verifiers': ('token',), 'temperatures': (1.0,),
    'batch': 2, 'shortest': 2, 'fractions': (0.5,), 'requests': 18,
    'skipped': 2, 'group': 1, 'repeats': 1, 'results': str(tmp_path / 'rows'),
  }  # fmt: skip
  return Arrivals(**vars(experiment(folder)) | options | changes)


@pytest.mark.slow
def test_rates_are_measured_and_rendered(folder, tmp_path, capsys):
  x = settings(folder, tmp_path, quick=False)
  rows = run_twice(arrivals, x, capsys)
  assert [(r['drafter'], r['fraction']) for r in rows] == [
    (name, fraction) for fraction in (None, 0.5) for name in ('plain', 'ngram')
  ]
  once, _, slow, other = rows
  assert slow['requests_per_second'] == 0.5 * once['requests_per_second']
  assert slow['requests_per_second'] == other['requests_per_second']
  assert slow['counted'] == 16
  assert (tmp_path / 'rows/latency_by_rate.png').exists()


def test_a_study_has_its_own_config():
  argv = ['--config.requests=20', '--prompts.count=9']
  x = command.parse(argv, (Arrivals,), get_config=arrivals.get_config)
  assert (type(x), x.requests, x.prompts.count) == (Arrivals, 20, 9)
