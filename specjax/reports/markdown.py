"""How tables, numbers, intervals and sentences are written, in markdown."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from specjax.stats.estimates import Estimate


def markdown(head: list[str], lines: list[list[str]]) -> str:
  """Writes a table whose columns line up as text, too."""
  table = [head, *lines]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  table.insert(1, ['-' * width for width in widths])
  return '\n'.join(
    '| '
    + ' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))
    + ' |'
    for line in table
  )


# What a column is called, and what it shows of a row.
Columns = tuple[tuple[str, Callable[[dict], str]], ...]


@dataclasses.dataclass
class Table:
  """One table of a summary or a report: words, no numbers."""

  title: str
  note: str
  head: list[str]
  lines: list[list[str]]

  @classmethod
  def of(
    cls, title: str, note: str, columns: Columns, rows: Iterable[dict]
  ) -> 'Table':
    """Makes a table with a line for each row."""
    lines = [[show(row) for _, show in columns] for row in rows]
    return cls(title, note, [name for name, _ in columns], lines)

  def markdown(self) -> str:
    note = f'{self.note}\n\n' if self.note else ''
    return f'### {self.title}\n\n{note}{markdown(self.head, self.lines)}\n'


def number(value: float | None, form: str = '.2f') -> str:
  """Writes a number in a format; '-' for None."""
  return '-' if value is None else f'{value:{form}}'


def counted(count: int, noun: str) -> str:
  """Writes a count of something: 1 tie, 2 ties, 1,200 ties."""
  return f'{count:,} {noun}' + ('' if count == 1 else 's')


def with_interval(
  value: float | None,
  interval: Sequence[float | None] | None,
  form: str = '.2f',
  unit: str = '',
  scale: float = 1.0,
) -> str:
  """Writes a number with its interval, if it has one.

  Args:
    value: '-' where there is none, or it is not finite.
    interval: its ends; None, or ends that are None, where there is none.
    form: of the number and of both ends, such as '+.3f'.
    unit: behind the number.
    scale: what everything is multiplied with.
  """
  if value is None or not math.isfinite(value):
    return '-'
  text = f'{scale * value:{form}}{unit}'
  ends = [scale * end for end in interval or () if end is not None]
  if len(ends) < 2:
    return text
  low, high = ends
  return f'{text} [{low:{form}}, {high:{form}}]'


def estimated(
  estimate: Estimate | None, form: str = '.2f', unit: str = '', scale=1.0
) -> str:
  """Writes an estimate as `with_interval` does; '-' for None."""
  if estimate is None:
    return '-'
  return with_interval(estimate.value, estimate.interval, form, unit, scale)


def span(values: Iterable[float], form: str = '.2f') -> str:
  """'1.27 to 1.66', or one number where they print alike."""
  values = sorted(values)
  low, high = (f'{x:{form}}' for x in (values[0], values[-1]))
  return low if low == high else f'{low} to {high}'


def paragraph(text: str) -> str:
  return textwrap.fill(text, 80)


def bullets(items: Iterable[str]) -> str:
  return '\n'.join(
    textwrap.fill(item, 78, initial_indent='- ', subsequent_indent='  ')
    for item in items
  )


def blocks(*parts: str) -> str:
  """Parts of a page with an empty line between each two; '' are left out."""
  return '\n\n'.join(part.strip('\n') for part in parts if part) + '\n'
