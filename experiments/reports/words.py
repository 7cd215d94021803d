"""Numbers and rows in words, for sentences that are made from them."""

import textwrap
from collections.abc import Iterable

_VERSIONS = (('jax', 'jax'), ('python', 'Python'))


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
  """The values that a field takes, in words; '' where rows do not have it."""
  found = dict.fromkeys(r.get(name) for r in rows)
  return ' and '.join(str(v) for v in found if v is not None)


def bullets(items: list[str]) -> str:
  return '\n'.join(
    textwrap.fill(item, 78, initial_indent='- ', subsequent_indent='  ')
    for item in items
  )


def paragraph(text: str) -> str:
  return textwrap.fill(text, 80)


def baseline(rows: list[dict]) -> str:
  """What plain decoding was; '' where one way alone was tried."""
  found = [row['baseline'] for row in rows if row.get('baseline')]
  layouts = many(found, 'layout')
  if not layouts:
    return ''
  tried = max(len(one.get('seconds_per_step') or ()) for one in found)
  said = f'plain decoding with {layouts} weights'
  if tried < 2:
    return said
  best = 'the faster of two' if tried == 2 else f'the fastest of {tried}'
  return f'{said}, {best} layouts'


def conditions(rows: list[dict]) -> str:
  """Where and how rows were measured, as a clause."""
  versions = rows[0].get('versions') or {}
  parts = [f'On {many(rows, "device") or "an unknown device"}']
  parts[0] += f': batch {many(rows, "batch")}'
  parts += [f'{many(rows, "prompts")} prompts of each domain']
  if many(rows, 'new_tokens'):
    parts += [f'{many(rows, "new_tokens")} new tokens each']
  if many(rows, 'dtype'):
    parts += [many(rows, 'dtype')]
  parts += [
    f'{word} {versions[key]}' for key, word in _VERSIONS if key in versions
  ]
  text = ', '.join(parts)
  how = baseline(rows)
  return f'{text}; {how}' if how else text
