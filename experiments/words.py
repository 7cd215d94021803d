"""Numbers and rows in words, for sentences that are made from them."""

import textwrap
from collections.abc import Iterable


def span(values: Iterable[float], digits: int = 2) -> str:
  """'1.27 to 1.66', or one number where they print alike."""
  values = sorted(values)
  low, high = (f'{x:.{digits}f}' for x in (values[0], values[-1]))
  return low if low == high else f'{low} to {high}'


def percent(values: Iterable[float]) -> str:
  values = sorted(values)
  low, high = (f'{x:.0%}' for x in (values[0], values[-1]))
  return low if low == high else f'{low} to {high}'


def many(rows: list[dict], name: str) -> str:
  """The values that a field takes, in words."""
  found = [str(v) for v in dict.fromkeys(r[name] for r in rows)]
  return ' and '.join(found)


def bullets(items: list[str]) -> str:
  return '\n'.join(
    textwrap.fill(item, 78, initial_indent='- ', subsequent_indent='  ')
    for item in items
  )


def paragraph(text: str) -> str:
  return textwrap.fill(text, 80)


def conditions(rows: list[dict]) -> str:
  """Where and how rows were measured, as a clause."""
  versions = rows[0]['versions']
  parts = [f'On {many(rows, "device")}: batch {many(rows, "batch")}']
  parts += [f'{many(rows, "prompts")} prompts of each domain']
  if 'new_tokens' in rows[0]:
    parts += [f'{many(rows, "new_tokens")} new tokens each']
  parts += [f'jax {versions["jax"]}', f'Python {versions["python"]}']
  return ', '.join(parts)
