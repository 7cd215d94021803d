"""Whether texts ask what an evaluation asks, however they are encoded.

A template, a system prompt or another tokenizer changes the tokens of a
question, and not its words: those are looked for.
"""

from collections.abc import Mapping

_SHORTEST, _BEGIN = 16, 40  # characters of a question


def _words(text: str) -> str:
  return ' '.join(text.split())


class Questions:
  """Questions by their words.

  Args:
    places: where each question stands, by its text. Those of few characters
      are left out: they are in many texts by chance.
  """

  def __init__(self, places: Mapping[str, str]):
    self._begins: dict[int, dict[str, list[tuple[str, str]]]] = {}
    for text, place in places.items():
      words = _words(text)
      if len(words) >= _SHORTEST:
        begin = words[:_BEGIN]
        found = self._begins.setdefault(len(begin), {})
        found.setdefault(begin, []).append((words, place))

  def find(self, text: str) -> str | None:
    """Where a question stands that a text has in it, or None."""
    words = _words(text)
    for length, begins in self._begins.items():
      for at in range(len(words) - length + 1):
        for question, place in begins.get(words[at : at + length], ()):
          if words.startswith(question, at):
            return place
    return None
