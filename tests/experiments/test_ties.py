"""Verdicts on differences of greedy texts, by hand: no model, logits typed out.

Five tokens whose logits are sums of powers of two, so that every threshold is
met exactly: one step less is a tie, one step more a bug.
"""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.bench import ties
from tests.support import models

FIRST = (8.0, 7.75, 7.5, 1.0, -4.0)
UNIT = 2.0**-23  # of float32, at 1
LAST_PLACE = 8 * UNIT  # of numbers from 8 on


def moved(**changes):
  """The logits, of which some tokens' are moved."""
  logits = np.array(FIRST)
  for name, change in changes.items():
    logits['abcde'.index(name)] += change
  return logits


def ways(*dtypes):
  """Ways to compute of which only the precision is looked at."""
  target = types.SimpleNamespace(config=None, forward=None)  # of other code
  return [
    ties.Scoring(target, np.zeros(1, dtype), 2, 1, 128) for dtype in dtypes
  ]


@pytest.fixture
def explain(monkeypatch):
  """The verdict on two tokens, from logits as they were measured."""

  def explain(pair, scored, nudged, whole=(), dtypes=(np.float32,), **more):
    measured = (
      np.array([FIRST, *whole]),
      np.array([nudged, *[nudged] * len(whole)]),
      np.array([scored]),
    )
    asked, sought = [], []

    def measure(ways, prompt, new, values):
      asked.append((prompt, new))
      return measured

    def find(ways, prompt, new):
      sought.append((prompt, new))

    monkeypatch.setattr(ties, '_measure', measure)
    monkeypatch.setattr(ties.parting, 'find', find)
    text, other = ([1, 2, token] for token in pair)
    found = ties.explain(ways(*dtypes), [9], None, text, other, **more)
    assert asked == [([9], [1, 2])]
    assert sought == (asked if more.get('ours', True) else [])
    assert (found.position, found.tokens) == (2, tuple(pair))
    return found

  return explain


A_LOT = moved(a=1.0)  # so that the rounding excuses everything


@pytest.mark.parametrize(
  ('pair', 'margin'),
  [
    ((0, 1), 0.25),
    ((1, 0), 0.25),
    # From the largest logit of all, not from the better token of the two.
    ((1, 2), 0.5),
    ((2, 1), 0.5),
    ((3, 4), 12.0),
  ],
)
def test_the_margin_is_to_the_largest(explain, pair, margin):
  found = explain(pair, moved(), A_LOT)
  assert (found.margin, found.gap) == (margin, 0.25)


@pytest.mark.parametrize(
  ('change', 'verdict'), [(0.125, 'tie'), (0.125 - 2**-9, 'bug')]
)
@pytest.mark.parametrize('sign', [-1, 1])
@pytest.mark.parametrize('token', 'abcde')
def test_the_noise_is_twice_the_largest_change(
  explain, token, sign, change, verdict
):
  """A margin of 0.25 needs a change of half of it."""
  found = explain((0, 1), moved(**{token: sign * change}), A_LOT)
  assert found.noise == 2 * change
  assert (found.margin, found.verdict) == (0.25, verdict)


def test_nothing_is_a_tie_where_rows_have_the_same_bits(explain, monkeypatch):
  assert explain((0, 1), moved(a=0.125), A_LOT).verdict == 'tie'
  monkeypatch.setattr(ties, 'same_bits', lambda ways: len(ways) == 1)
  assert explain((0, 1), moved(a=0.125), A_LOT).verdict == 'bug'
  # Another program's text was computed in another way.
  theirs = explain((0, 1), moved(a=0.125), A_LOT, ours=False)
  assert theirs.verdict == 'tie'


def test_passes_in_other_precisions_are_noise_too(explain):
  """And the rounding is that of each pass with its own weights."""
  found = explain((0, 1), moved(), A_LOT, whole=[moved(a=-0.25)])
  assert (found.noise, found.verdict) == (0.5, 'tie')
  assert found.rounding == 1.25


@pytest.mark.parametrize(
  ('change', 'verdict'), [(2**-6, 'tie'), (2**-6 - 2**-12, 'bug')]
)
@pytest.mark.parametrize('token', 'ade')
def test_shapes_may_be_16_roundings_apart(explain, token, change, verdict):
  found = explain((0, 1), moved(a=1.0), moved(**{token: -change}))
  assert found.rounding == change
  assert (found.margin, found.verdict) == (0.25, verdict)


@pytest.mark.parametrize(
  ('dtypes', 'noise'),
  [
    ((np.float32,), LAST_PLACE),
    ((np.float32, np.float64), LAST_PLACE),
    ((np.float64,), 8 * 2.0**-52),
  ],
)
def test_noise_is_at_least_one_unit_in_the_last_place(explain, dtypes, noise):
  """Of the largest logit, in the coarsest precision."""
  assert explain((0, 1), moved(), A_LOT, dtypes=dtypes).noise == noise


def test_the_last_place_follows_the_largest_logit():
  for largest, power in ((7.99, 4), (8.0, 8), (-15.9, 8), (0.75, 0.5)):
    place = ties._last_place(np.array([0.1, largest]), ways(np.float32))
    assert place == power * UNIT


def test_only_the_largest_logits_and_the_two_tokens_make_noise(monkeypatch):
  """Of twenty tokens the sixteenth counts and the seventeenth does not."""
  first = np.arange(20.0)[::-1]

  def noise(changed, pair):
    scored = first.copy()
    scored[changed] += 1.0
    monkeypatch.setattr(
      ties, '_measure', lambda *_: (first[None], first[None], scored[None])
    )
    text, other = ([token] for token in pair)
    return ties.explain(ways(np.float64), [9], None, text, other).noise

  assert noise(15, (0, 1)) == 2
  assert noise(16, (0, 1)) < 1e-10
  assert noise(16, (0, 16)) == 2


def test_each_weight_moves_by_one_unit_up_or_down():
  weights = {
    'single': jnp.ones(64), 'half': jnp.ones(64, 'bfloat16'),
    'whole': jnp.arange(3),
  }  # fmt: skip
  found = ties._nudge(weights)
  for name, unit in (('single', UNIT), ('half', 2.0**-7)):
    assert found[name].dtype == weights[name].dtype
    assert {*found[name].tolist()} == {1 - unit, 1 + unit}
  assert found['whole'].tolist() == [0, 1, 2]


def test_what_is_no_number_excuses_nothing(explain):
  for broken in (moved(a=np.nan), moved(d=np.inf)):
    assert explain((0, 1), broken, moved()).verdict == 'bug'
    assert explain((0, 1), moved(), moved(a=np.nan)).verdict == 'bug'


def test_every_row_of_a_block_and_of_a_batch_is_scored(monkeypatch):
  """As many rows as there are tokens, and of each the logits of that row."""
  asked = []

  def in_block(weights, tokens, begin, source, *, target, rows):
    asked.append((tokens.shape, begin.tolist(), rows))
    at = np.arange(rows) + int(begin[0])  # Tokens that each row has seen.
    return np.broadcast_to(at[:, None], (len(begin), rows, 3))

  monkeypatch.setattr(ties, '_in_block', in_block)
  monkeypatch.setattr(ties, 'sharding', types.SimpleNamespace(fetch=np.asarray))
  way = ties.Scoring(None, None, rows=3, batch=2, slots=4)
  for length, rows in ((5, 3), (2, 2), (1, 1)):
    asked.clear()
    found = ties._score(way, np.zeros((1, 8), np.int32), length, None)
    assert len(found) == 2 * rows
    assert all((logits == length).all() for logits in found)
    assert asked == [((2, 4), [length - row] * 2, 3) for row in range(rows)]


def test_each_set_of_weights_is_nudged_once_and_each_way_is_scored(monkeypatch):
  """The first two ways share weights, and the third has its own."""
  first, other = np.array([1.0]), np.array([2.0])

  def one_pass(weights, *_, **options):
    return np.repeat(weights, 3)

  monkeypatch.setattr(ties, '_in_one_pass', one_pass)
  monkeypatch.setattr(ties, '_nudge', lambda weights: weights + 8)
  monkeypatch.setattr(ties, '_score', lambda way, *_: [np.repeat(way.rows, 3)])
  monkeypatch.setattr(ties, 'read_source', lambda *_: None)
  monkeypatch.setattr(ties, 'sharding', types.SimpleNamespace(fetch=np.asarray))
  given = [
    ties.Scoring(models.TARGET, weights, rows, 1, 8)
    for rows, weights in ((3, first), (4, first), (5, other))
  ]
  measured = ties._measure(given, [1], [2], sampling.make(1, 0.0))
  assert [x[:, 0].tolist() for x in measured] == [[1, 2], [9, 10], [3, 4, 5]]
