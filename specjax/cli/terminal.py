"""Colours of a terminal."""

from specjax.loop.token_records import ORIGINS

COLOURS = dict(zip(ORIGINS, ('32', '31', '33'), strict=True))


def paint(text: str, kind: str, colour: bool) -> str:
  """Returns a text in the colour of its origin.

  Args:
    text: of a token.
    kind: its origin.
    colour: false where there is no terminal, and the text stays as it is.
  """
  return f'\x1b[{COLOURS[kind]}m{text}\x1b[0m' if colour and text else text


def legend() -> str:
  """Returns the names of the origins, each in its colour."""
  return ' '.join(paint(kind, kind, True) for kind in COLOURS)
