"""Tables and numbers as markdown."""

import dataclasses


def markdown(head: list[str], lines: list[list[str]]) -> str:
  """A table whose columns line up as text, too."""
  table = [head, *lines]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  table.insert(1, ['-' * width for width in widths])
  return '\n'.join(
    '| '
    + ' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))
    + ' |'
    for line in table
  )


def with_interval(
  value: float | None,
  interval: list[float] | None,
  digits: int = 2,
  scale: float = 1.0,
) -> str:
  """A number with its interval, or alone where it has none.

  Args:
    value: '-' where there is none.
    interval: its ends.
    digits: behind the point.
    scale: what everything is multiplied with.
  """
  if value is None:
    return '-'
  text = f'{scale * value:.{digits}f}'
  if interval is None:
    return text
  low, high = (scale * end for end in interval)
  return f'{text} [{low:.{digits}f}, {high:.{digits}f}]'


@dataclasses.dataclass
class Table:
  """One table of a summary or a report: words, no numbers."""

  title: str
  note: str
  head: list[str]
  lines: list[list[str]]

  def markdown(self) -> str:
    note = f'{self.note}\n\n' if self.note else ''
    return f'### {self.title}\n\n{note}{markdown(self.head, self.lines)}\n'
