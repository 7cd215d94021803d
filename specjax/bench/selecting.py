"""Rows of a folder, by the values of their fields."""

from typing import Any


def pick(rows: list[dict], **cell: Any) -> list[dict]:
  """The rows whose fields have these values; a tuple means any of its own."""

  def fits(row, name, value):
    one = row.get(name)
    return one in value if isinstance(value, tuple) else one == value

  return [r for r in rows if all(fits(r, k, v) for k, v in cell.items())]


def group(rows: list[dict], *names: str) -> dict[tuple, list[dict]]:
  """Rows by the values that some fields take together, in their order."""
  groups: dict[tuple, list[dict]] = {}
  for row in rows:
    groups.setdefault(tuple(row[name] for name in names), []).append(row)
  return groups


def by_place(rows: list[dict]) -> dict[tuple[str, float], list[dict]]:
  """Rows of each domain and temperature."""
  return group(rows, 'domain', 'temperature')
