"""Rows of a run as speculation profiles: how good a draft is, for simulators.

The form is `speculation_profile.json` 1.0 of NVIDIA Model Optimizer. Dynamo's
mocker reads the conditional rates (of a position, once all before it were
accepted), synthetic acceptance in vLLM the marginal ones (of a position and all
before it). Entry i is about the drafted token i + 1. An acceptance length has
the bonus or corrected token: it is accepted + 1.
"""

import itertools
import re
from typing import Any

import numpy as np

from specjax.bench.selecting import pick
from specjax.stats import metrics

FILE = 'speculation_profile.json'
_DIGITS = 6
_TOLERANCE = 0.02  # of the mean that the vectors imply
# What others call our drafters.
_METHODS = {'lm': 'draft_model'}
# Their draft of K tokens begins with that of K - 1, where it is a chain.
_CHAINS = ('draft_model', 'eagle', 'quantized')
_SHAPES = {'policy', 'widths', 'parents', 'beam', 'nodes', 'replacement'}
_UNAVAILABLE = (
  'block verification judges a draft as a whole: what it accepts is no '
  'longest-prefix distribution'
)


def _histogram(rows: list[dict]) -> np.ndarray:
  """Whole steps by accepted length, of all rows: [K + 1]."""
  return np.sum([row['histogram'] for row in rows], 0)


def _per_step(rows: list[dict]) -> float:
  histogram = _histogram(rows)
  accepted = (histogram * np.arange(len(histogram))).sum()
  return round(
    float(metrics.tau_per_step([accepted], [histogram.sum()]).value), _DIGITS
  )


def _per_request(rows: list[dict]) -> float:
  tokens, calls = (
    [n for row in rows for n in row[f'unit_{name}']]
    for name in ('tokens', 'target_calls')
  )
  return round(metrics.tau_per_request(tokens, calls).value, _DIGITS)


def _rates(histogram: np.ndarray) -> tuple[list[float], list[float]]:
  """Conditional and marginal acceptance of each position, [K] each."""
  # Steps that accepted at least 0, 1, ... K tokens.
  least = histogram[::-1].cumsum()[::-1].tolist()
  conditional = [b / a if a else 0.0 for a, b in itertools.pairwise(least)]
  marginal = [n / least[0] for n in least[1:]]
  return conditional, marginal


def _validation(mean: float, marginal: list[float]) -> dict:
  implied = 1 + sum(marginal)
  rising = [
    {'position': i, 'value': b, 'previous': a}
    for i, (a, b) in enumerate(itertools.pairwise(marginal), 1)
    if b > a + 1e-9
  ]
  return {
    'mean_consistency': {
      'implied_mean_accept_length': round(implied, _DIGITS),
      'reported_mean_accept_length': mean,
      'abs_delta': round(abs(implied - mean), _DIGITS),
      'tolerance': _TOLERANCE,
      'passed': abs(implied - mean) <= _TOLERANCE,
    },
    'marginal_monotonicity': {'passed': not rising, 'violations': rising},
  }


def _conditions(rows: list[dict]) -> dict:
  """What the numbers were measured under."""
  first = rows[0]
  sources = {row['domain']: row.get('prompts_from') or {} for row in rows}
  return {
    'engine': 'specjax',
    'dataset': {name: x.get('source') for name, x in sources.items()},
    'prompts_hash': {r['domain']: r.get('prompts_hash') for r in rows},
    'num_samples': sum(row['prompts'] for row in rows),
    'osl': first.get('new_tokens'),
    'concurrency': first['batch'],
    'dtype': first.get('dtype'),
    'draft_dtype': first.get('draft_dtype'),
    'temperature': first['temperature'],
    'verifier': first['verifier'],
    'lossless': first['lossless'],
    'seed': first.get('seed'),
    'device': first.get('device'),
    'versions': first.get('versions'),
  }


def _checkpoint(row: dict, name: str) -> dict | None:
  if not row.get(name):
    return None
  return {'id': row[name], 'revision': row.get(f'{name}_revision')}


def profile(rows: list[dict]) -> dict[str, Any]:
  """The profile of one drafter, rule and temperature.

  Args:
    rows: its rows, of all domains and draft lengths. The vectors are those of
      the longest drafts.
  """
  depth = max(row['gamma'] for row in rows)
  deepest = pick(rows, gamma=depth)
  first, histogram = deepest[0], _histogram(deepest)
  load = (first.get('load') or first['drafter']).split('.')
  method = load[-2] if len(load) > 1 else load[0]
  method = _METHODS.get(method, method)
  chain = method in _CHAINS and not _SHAPES & {*(first.get('options') or {})}
  whole = first['verifier'].partition(':')[0] == 'block'
  conditional, marginal = (
    [round(rate, _DIGITS) for rate in rates] for rates in _rates(histogram)
  )
  mean = _per_step(deepest)
  made = {
    'schema_version': '1.0',
    'measured': True,
    'method': method,
    'draft_checkpoint': _checkpoint(first, 'draft'),
    'target_model': _checkpoint(first, 'target'),
    'num_speculative_tokens': depth,
    'block_size': None,
    'max_supported_k': depth,
    'verification_method': 'block' if whole else 'longest_prefix',
    'conditional_accept_rates': None if whole else conditional,
    'marginal_accept_rates': None if whole else marginal,
    'mean_accept_length': mean,
    'mean_accept_length_per_request': _per_request(deepest),
    'accept_length_model': (
      'chain_analytic' if chain and not whole else 'measured_per_k'
    ),
    'accept_length_by_k': {
      str(k): _per_step(pick(rows, gamma=k))
      for k in sorted({row['gamma'] for row in rows})
    },
    'acceptance_length_histogram': {
      str(accepted + 1): steps
      for accepted, steps in enumerate(histogram.tolist())
    },
    'per_category': {
      row['domain']: {
        'mean_accept_length': _per_step([row]),
        'mean_accept_length_per_request': _per_request([row]),
        'num_requests': row['prompts'],
      }
      for row in deepest
    },
    'measurement_conditions': _conditions(deepest),
    'validation': None if whole else _validation(mean, marginal),
  }
  return made | ({'vectors_unavailable_reason': _UNAVAILABLE} if whole else {})


def profiles(rows: list[dict]) -> dict[str, dict]:
  """Every drafter, rule and temperature whose rows count their steps, by name.

  Rows without a whole step say nothing and are left out. Of several batch sizes
  the smallest one is told: drafts are accepted alike in all of them.
  """
  least = min((row.get('batch', 1) for row in rows), default=1)
  columns = ('histogram', 'unit_tokens', 'unit_target_calls')
  counted = [
    row
    for row in rows
    if all(row.get(name) for name in columns)
    and any(row['histogram'])
    and row.get('batch', 1) == least
  ]
  by_method: dict[str, list[dict]] = {}
  for row in counted:
    name = f'{row["drafter"]}-{row["verifier"]}-{row["temperature"]:g}'
    by_method.setdefault(re.sub(r'[^\w.-]+', '-', name), []).append(row)
  return {name: profile(group) for name, group in by_method.items()}
