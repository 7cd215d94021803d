"""What a value of a request is, or a refusal that names its field."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.serving.refusals import of_field


def is_whole(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def whole(name: str, value: Any, low: int, high: float = math.inf) -> int:
  if not is_whole(value) or not low <= value <= high:
    most = '' if high == math.inf else f' to {int(high)}'
    raise of_field(name, f'must be a whole number from {low}{most}')
  return value


def number(name: str, value: Any) -> float:
  if not isinstance(value, int | float) or isinstance(value, bool):
    raise of_field(name, 'must be a number')
  if not -1e37 <= value <= 1e37:
    raise of_field(name, 'must be a number of ordinary size')
  return value


def flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise of_field(name, 'must be true or false')
  return value


def text(name: str, value: Any) -> str:
  if not isinstance(value, str):
    raise of_field(name, 'must be a text')
  try:
    value.encode()
  except UnicodeEncodeError:
    raise of_field(
      name, 'has half of a surrogate pair, which is no text'
    ) from None
  return value


def know(name: str, given: Mapping, known: Sequence[str]) -> None:
  """Refuses what an object inside a request has besides."""
  for key in given:
    if key not in known:
      where = f'{name}.{key[:60]}'
      raise of_field(where, f'is not known: there are {", ".join(known)}')
