"""Heads that are read otherwise than their files say.

The same weights mean something else where other layers are tapped, another norm
is left out or positions turn at another pace. `specjax probe` compares such
readings; who knows that files are wrong names the right one.
"""

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax

from specjax.models.config import TransformerConfig
from specjax.models.rotary import Scaling

T = TypeVar('T')
AS_STORED: Mapping[str, Any] = types.MappingProxyType({})
Readings = dict[str, dict[str, Any]]  # changed values, by what they say
# Bases of rotary positions that published models have.
_BASES = (10_000.0, 500_000.0, 1_000_000.0)


@functools.cache
def shapes_of(head: Any) -> Any:
  """Returns the shapes of a head's weights; it is traced once."""
  return jax.eval_shape(head.init, jax.random.key(0))


def check(read_as: Mapping[str, Any], known: Iterable[str]) -> None:
  """Refuses values that no head has.

  Args:
    read_as: values by name.
    known: names that there are.

  Raises:
    ValueError: one is unknown.
  """
  names = list(known)
  for name in read_as:
    if name not in names:
      raise ValueError(
        f'read_as: {name!r} is none of a head; it has {", ".join(names)}'
      )


def pick(kind: type[T], config: Mapping[str, Any]) -> T:
  """Returns a class of the fields that a configuration has; lists are tuples.

  Args:
    kind: a NamedTuple or a dataclass, whose other fields have defaults.
    config: as of a head's config.json.
  """
  known = {n: config[n] for n in kind.__annotations__ if n in config}
  tuples = {n: tuple(x) for n, x in known.items() if isinstance(x, list)}
  return kind(**known | tuples)


def options(
  found: Mapping[str, Mapping[str, Any]], read_as: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
  """Options of `load` for other readings than the one that is asked for.

  Args:
    found: values of each of them that differ, by what they say.
    read_as: those that the reading asked for has.
  """
  return {name: {'read_as': {**read_as, **own}} for name, own in found.items()}


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


def other_norm(field: str, normed: bool) -> Readings:
  """Features on the other side of the target's last norm.

  Args:
    field: of a head, whether it reads features behind that norm.
    normed: its value.
  """
  side = 'before' if normed else 'behind'
  return {f"features {side} the target's last norm": {field: not normed}}


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
