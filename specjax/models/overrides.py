"""Near readings of the weights of heads: what people get wrong about them."""

from typing import Any

from specjax.models.config import TransformerConfig
from specjax.models.rotary import Scaling

Readings = dict[str, dict[str, Any]]  # changed values, by what they say
# Bases of rotary positions that published models have.
_BASES = (10_000.0, 500_000.0, 1_000_000.0)


def other_taps(taps: tuple[int, ...], layers: int) -> Readings:
  """All layers one further, or one less far.

  Args:
    taps: layers that a head reads.
    layers: of the target.
  """
  found = {}
  for step in (-1, 1):
    moved = tuple(tap + step for tap in taps)
    if min(moved) >= 0 and max(moved) < layers:
      found[f'taps {moved}'] = {'taps': moved}
  return found


def other_positions(
  theta: float, scaling: Scaling | None, target: TransformerConfig
) -> Readings:
  """Other bases of rotary positions, and another scaling.

  Args:
    theta: base of a head.
    scaling: of it.
    target: that it drafts for.
  """
  bases = dict.fromkeys((*_BASES, target.rope_theta))
  found: Readings = {
    f'rope_theta {base:g}': {'rope_theta': base}
    for base in bases
    if base and base != theta
  }
  if scaling is not None:
    found['no scaling of rotary positions'] = {'rope_scaling': None}
  elif target.rope_scaling is not None:
    found["the target's scaling of rotary positions"] = {
      'rope_scaling': target.rope_scaling
    }
  return found
