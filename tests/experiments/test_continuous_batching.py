"""Many prompts through few rows: what is said of draft lengths by load."""

from experiments.reports import continuous_batching


def row(drafter, gamma, seconds, way='continuous', chunk=4):
  return {
    'drafter': drafter,
    'gamma': gamma,
    'way': way,
    'chunk': chunk,
    'seconds_by_pass': seconds,
  }


def test_lengths_by_load_are_compared_pass_by_pass():
  """A machine that is half as fast for a pass is so for every side."""
  rows = [
    row('plain', 0, [3.0, 6.0, 3.0, 3.0, 3.0]),
    row('draft', 1, [2.0, 4.0, 2.0, 2.0, 2.0]),
    row('draft', 2, [2.2, 4.4, 2.2, 2.2, 2.2]),
    row('draft, by load', 2, [2.5, 5.0, 2.5, 2.5, 2.6]),
    row('draft', 1, [0.1, 0.1, 0.1], 'static', None),
  ]
  (line,) = continuous_batching._by_load(rows)
  assert line == (
    'draft, by load, chunks of 4: 0.79 [0.76, 0.81] times as fast as the best '
    'constant length (1), 1.19 [1.15, 1.21] times as fast as plain decoding, '
    'of 5 passes that took turns'
  )


def test_passes_that_took_no_turns_are_not_compared():
  rows = [
    {k: v for k, v in row(*one).items() if k != 'seconds_by_pass'}
    for one in (
      ('plain', 0, []),
      ('draft', 1, []),
      ('draft, by load', 1, []),
    )
  ]
  assert continuous_batching._by_load(rows) == []
