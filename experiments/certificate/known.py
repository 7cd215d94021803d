"""What `handmade` must come to, worked out by hand.

The steps of every prompt, those that count: a step counts in the histogram
where the limit left room for a whole draft and one more token, and the end of
the text did not cut it. Everything else is typed out or follows from these.
"""

from typing import Any

import numpy as np

from specjax import metrics

# (tokens before the step, accepted, drafted) of every prompt.
STEPS = (
  ((1, 3, 3), (5, 1, 3), (7, 0, 3), (8, 2, 2)),
  ((2, 2, 3), (5, 0, 0)),
  ((3, 3, 3), (7, 3, 3), (11, 0, 1)),
  ((1, 0, 0), (2, 0, 0), (3, 1, 1), (5, 0, 0), (6, 3, 3)),
  ((2, 1, 3), (4, 2, 3), (7, 1, 3), (9, 0, 3), (10, 3, 3)),
  ((3, 2, 3), (6, 1, 2), (8, 3, 3)),
  ((1, 0, 3), (2, 0, 3), (3, 3, 3), (7, 2, 3)),
  ((2, 1, 1), (4, 2, 3), (7, 0, 2), (8, 1, 3), (10, 0, 0)),
)
# Between these lengths of the context: steps, accepted, drafted.
BINS = (
  (1, 4, 12, 16, 26),
  (4, 6, 5, 5, 9),
  (6, 9, 10, 16, 27),
  (9, 12, 4, 3, 7),
)
# Of an interval of which only this is known: it holds the value.
HOLDS = object()

FIELDS: dict[str, Any] = {
  'config': 'by hand',
  'target': 'by hand',
  'draft': 'by hand',
  'drafter': 'scripted',
  'verifier': 'token',
  'gamma': 3,
  'domain': 'code',
  'temperature': 0.0,
  'parameters': 0,
  'lossless': True,
  'prompts': 8,
  'prompts_hash': 'b061b748898d',
  'prompts_from': {
    'source': 'a script',
    'available': 8,
    'shortest': 1,
    'longest': 3,
    'cut': 0,
    'skipped': {},
  },
  'new_tokens': 12,
  'paper': None,
  'seed': 0,
  'mesh': {'data': 1, 'model': 1, 'split_draft': False, 'processes': 1},
  'collectives': {},
  'versions': {},
  'device': 'paper',
  'commit': None,
}

COUNTS: dict[str, Any] = {
  'tokens': 87,
  'target_calls': 39,
  'drafted': 69,
  'accepted': 40,
  'histogram': [11, 7, 6, 7],
  'unit_tokens': [12, 6, 12, 12, 12, 9, 12, 12],
  'unit_target_calls': [5, 3, 5, 7, 5, 3, 5, 6],
  'unit_accepted': [6, 2, 6, 4, 7, 6, 5, 4],
  'unit_steps': [4, 2, 3, 5, 5, 3, 4, 5],
  'unit_histogram': [
    [1, 1, 1, 1],
    [1, 0, 1, 0],
    [1, 0, 0, 2],
    [3, 1, 0, 1],
    [1, 2, 1, 1],
    [0, 1, 1, 1],
    [2, 0, 1, 1],
    [2, 2, 1, 0],
  ],
}

ACCEPTANCE: dict[str, Any] = {
  'coverage': 26 / 31,  # Five of the 31 steps drafted nothing.
  'alpha_mle': 40 / 56,
  'acceptance': 40 / 69,
  'acceptance_by_position': [20 / 31, 13 / 31, 7 / 31],
  'acceptance_by_position_conditional': [20 / 26, 13 / 18, 7 / 12],
}

ALPHA: dict[str, Any] = {
  'alpha': 44.75 / 81,
  'alpha_of_rule': 26 / 81,
  'unit_overlap': [6.125, 3.5, 8.25, 4.5, 6.375, 5.25, 6.25, 4.5],
  'unit_overlap_of_rule': [4, 2, 3, 3, 4, 3, 3, 4],
  # The last place of a text has no room for a draft and a token.
  'unit_prefixes': [11, 6, 11, 11, 11, 9, 11, 11],
}

TAU = {'tau': 87 / 39, 'tau_without_bonus': 40 / 31}

# Of 63 sequences of four tokens the fourth text repeats four.
TEXTS = {'identical_to_plain': 8, 'differences': [], 'repetition': 4 / 63}

SPEED: dict[int, dict[str, Any]] = {
  1: {
    'steps': 39,
    'seconds': 260,
    'prefill_seconds': 36,
    'tokens_per_second': 87 / 260,
    'baseline_tokens_per_second': 87 / 306,
    'speedup': 306 / 260,
    'unit_seconds': [40, 24, 30, 49, 30, 18, 45, 24],
  },
  2: {
    'steps': 5 + 7 + 5 + 6,
    'seconds': 166,
    'prefill_seconds': 16,
    'tokens_per_second': 87 / 166,
    'baseline_tokens_per_second': 87 / 168,
    'speedup': 168 / 166,
    'unit_seconds': [40, 42, 30, 54],
  },
}

# v is the median of 5/4, 7/5 and 3/2, and of 5/4, 3/2 and 4/3; c a third of
# that of 3/4, 1/5 and 3/2, and of 3/4, 3/2 and 2/3.
COSTS: dict[int, dict[str, Any]] = {
  1: {
    'c': 0.25,
    'v': 7 / 5,
    'seconds_per_step': {
      'plain': [4, 5, 2],
      'scored': [5, 7, 3],
      'whole': [8, 8, 6],
    },
    'predicted_speedup': 87 / 39 / (7 / 5 + 3 / 4),
    'measured_over_predicted': 306 / 260 / (87 / 39) * (7 / 5 + 3 / 4),
  },
  2: {
    'c': 0.25,
    'v': 4 / 3,
    'seconds_per_step': {
      'plain': [4, 2, 3],
      'scored': [5, 3, 4],
      'whole': [8, 6, 6],
    },
    'predicted_speedup': 87 / 39 / (4 / 3 + 3 / 4),
    'measured_over_predicted': 168 / 166 / (87 / 39) * (4 / 3 + 3 / 4),
  },
}

# Seconds and tokens of plain decoding, by unit.
BASE = {
  1: ([48, 30, 24, 48, 36, 36, 60, 24], COUNTS['unit_tokens']),
  2: ([48, 24, 36, 60], [18, 24, 21, 24]),
}


def by_context() -> list[dict]:
  """Acceptance along the text."""
  found = []
  for low, high, steps, accepted, drafted in BINS:
    inside = [[s for s in line if low <= s[0] < high] for line in STEPS]
    sums = np.array([[sum(s[i] for s in x) for x in inside] for i in (1, 2)])
    found.append(
      {
        'from': low,
        'to': high,
        'steps': steps,
        'acceptance': accepted / drafted,
        'acceptance_ci': metrics.ratio(*sums).interval,
      }
    )
  return found


def memory(lag: int) -> float:
  """Correlation of accepted lengths that are so many steps apart."""
  pairs = [
    (a[1], b[1])
    for line in STEPS
    for a, b in zip(line, line[lag:], strict=False)
  ]
  return float(np.corrcoef(np.transpose(pairs))[0, 1])


def intervals(batch: int) -> dict[str, Any]:
  """The intervals of the row that are those of its units."""
  units = COUNTS | ALPHA
  seconds, tokens = BASE[batch]
  own = SPEED[batch]['unit_seconds']
  columns = {
    'alpha': ('unit_overlap', 'unit_prefixes'),
    'alpha_of_rule': ('unit_overlap_of_rule', 'unit_prefixes'),
    'tau': ('unit_tokens', 'unit_target_calls'),
    'tau_without_bonus': ('unit_accepted', 'unit_steps'),
  }
  found = {
    name: metrics.ratio(*(units[c] for c in pair))
    for name, pair in columns.items()
  }
  found['speedup'] = metrics.speedup(seconds, tokens, own, tokens)
  return {f'{name}_ci': one.interval for name, one in found.items()}


def row(batch: int, timed: bool) -> dict[str, Any]:
  """Every field of the row."""
  timings = SPEED[batch] | COSTS[batch]
  found = intervals(batch)
  for name in ('predicted_speedup_ci', 'measured_over_predicted_ci'):
    found[name] = HOLDS
  along = dict.fromkeys(('acceptance_by_context', 'autocorrelation'))
  if not timed:
    timings = dict.fromkeys(timings) | {'steps': SPEED[batch]['steps']}
    for name in ('speedup_ci', 'predicted_speedup_ci'):
      found[name] = None
    found['measured_over_predicted_ci'] = None
    lags = [[memory(lag), HOLDS, HOLDS] for lag in range(1, metrics.LAGS + 1)]
    along = {'acceptance_by_context': by_context(), 'autocorrelation': lags}
  return {
    **FIELDS,
    **COUNTS,
    **ACCEPTANCE,
    **ALPHA,
    **TAU,
    **TEXTS,
    **timings,
    **found,
    **along,
    'batch': batch,
    'timed': timed,
    'compilations': 1,
  }
