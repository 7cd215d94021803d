"""Readings of a head's weights, one mistake away, that all heads have.

Fields of its sizes with other values, by what they say.
"""

from typing import Any

from specjax.models.config import TransformerConfig

# Bases of rotary positions that published models have.
_BASES = (10_000.0, 500_000.0, 1_000_000.0)


def taps(
  read: tuple[int, ...], target: TransformerConfig
) -> dict[str, dict[str, Any]]:
  """All layers one further, or one less far."""
  found = {}
  for step in (-1, 1):
    others = tuple(tap + step for tap in read)
    if min(others) >= 0 and max(others) < target.num_layers:
      found[f'taps {others}'] = {'taps': others}
  return found


def positions(
  sizes: Any, target: TransformerConfig
) -> dict[str, dict[str, Any]]:
  """Other bases of the rotary positions, and another scaling."""
  found: dict[str, dict[str, Any]] = {}
  for base in dict.fromkeys((*_BASES, target.rope_theta)):
    if base and base != sizes.rope_theta:
      found[f'rope_theta {base:g}'] = {'rope_theta': base}
  if sizes.rope_scaling is not None:
    found['no scaling of rotary positions'] = {'rope_scaling': None}
  elif target.rope_scaling is not None:
    found["the target's scaling of rotary positions"] = {
      'rope_scaling': target.rope_scaling
    }
  return found
