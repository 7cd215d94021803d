"""Fields that a row of `specjax run` must have, and their types."""

from typing import Any

from specjax.bench import batch_fields

_NUMBER, _NUMBERS = float | None, tuple[float | None, ...] | None
_OBJECT, _OBJECTS = dict[str, Any] | None, tuple[dict[str, Any], ...] | None
FIELDS: dict[str, Any] = {
  **{name: str for name in ('drafter', 'verifier')},
  **{name: int for name in ('gamma', 'batch', 'prompts')},
  **{name: str for name in ('domain', 'config')},
  'temperature': float,
  'lossless': bool,
  **{
    name: _NUMBER
    for name in (
      'alpha', 'tau', 'tokens_per_second', 'baseline_tokens_per_second',
      'speedup', 'predicted_speedup', 'c', 'v', 'repetition?',
      'tau_without_bonus?', 'tau_per_request?', 'tau_per_step?',
      'speedup_of_rates?', 'parameters?', 'bytes?', 'ended?',
    )
  },
  **{
    f'{name}_ci?': _NUMBERS
    for name in (
      'alpha', 'tau', 'tau_per_request', 'tau_per_step', 'speedup',
      'speedup_of_rates',
    )
  },
  **{
    f'{name}?': _NUMBERS if name.endswith('_ci') else _NUMBER
    for name in batch_fields.FIELDS
  },
  'acceptance_by_position': _NUMBERS,
  'acceptance_by_context?': _OBJECTS,
  'by_turn?': _OBJECTS,
  'texts?': int | None,
  'autocorrelation?': tuple[_NUMBERS, ...] | None,
  'identical_to_plain': int | None,
  'differences': _OBJECTS,
  'impossible?': tuple[str, ...] | None,
  **{
    f'{name}?': str | None
    for name in (
      'target', 'target_revision', 'draft', 'draft_revision', 'load', 'device',
      'pairing',
    )
  },
  **{
    f'{name}?': _OBJECT
    for name in ('options', 'training', 'versions', 'baseline', 'prompts_from',
                 'collectives', 'reading', 'constraint')
  },
  'drafted?': int | None,
  'xla_threads?': int | None,
  'histogram?': tuple[int, ...] | None,
  **{
    f'unit_{name}?': _NUMBERS
    for name in (
      'tokens', 'target_calls', 'accepted', 'steps', 'overlap',
      'overlap_of_rule', 'prefixes', 'seconds', 'baseline_seconds',
      'baseline_tokens',
    )
  },
  'unit_histogram?': tuple[tuple[int, ...], ...] | None,
}  # fmt: skip
