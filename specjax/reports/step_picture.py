"""A picture of steps: what each pass of the target made of a draft.

One line for a pass: drafted tokens that were accepted, what was rejected, and
the token that the target drew itself.
"""

import io

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

FILE = 'steps.svg'
# As on the page of a run; see `figure_style` for the colours.
_LOOKS = {
  'accepted': ('#0072B2', 0.3, 'drafted and accepted'),
  'rejected': ('#888888', 0.15, 'drafted and rejected'),
  'corrected': ('#D55E00', 0.25, 'drawn by the target instead'),
  'bonus': ('#009E73', 0.25, 'drawn by the target behind a whole draft'),
}
_SOFT = '#50555e'
_SIZE = 9  # points, of letters
_LETTER = 0.602 * _SIZE / 72  # inches; letters of the font are equally wide
_LINE = 0.25  # inches
_WIDTH = 7.2  # inches
_BEGIN = 0.75  # inches, where tokens begin
_LONGEST = 24  # letters of a token that are shown


def passes(text: dict) -> list[list[tuple[str, str]]]:
  """Returns (origin, text) of the tokens of each pass of the target.

  Args:
    text: of `samples.jsonl`. A rejected token stands before its correction.
  """
  found: list[list[tuple[str, str]]] = [[]]
  for token in text['tokens']:
    for other in token['others']:
      if other['fate'] == 'rejected':
        found[-1].append(('rejected', other['text']))
    found[-1].append((token['origin'], token['text']))
    if token['origin'] != 'accepted':
      found.append([])
  return [one for one in found if one]


def _write(axes, x: float, y: float, words: str, **more) -> None:
  axes.text(x, y, words, va='center_baseline', parse_math=False, **more)


def _box(axes, x: float, y: float, origin: str, words: str) -> float:
  """Draws a token; returns where the next one begins."""
  words = words.replace('\n', '↵').replace('\t', ' ')
  if len(words) > _LONGEST:
    words = words[: _LONGEST - 1] + '…'
  colour, depth, _ = _LOOKS[origin]
  wide = len(words) * _LETTER + 0.05
  axes.add_patch(
    Rectangle((x, y - 0.09), wide, 0.19, color=colour, alpha=depth, linewidth=0)
  )
  letters = words.lstrip(' ')  # A browser drops blanks at the beginning.
  begin = x + 0.025 + (len(words) - len(letters)) * _LETTER
  _write(axes, begin, y, letters)
  if origin == 'rejected':
    axes.plot([x, x + wide], [y, y], color=colour, linewidth=1)
  return x + wide + 0.03


def steps(text: dict, most: int = 10) -> Figure:
  """Draws the first passes of the target over a text.

  Args:
    text: of `samples.jsonl`.
    most: passes that are shown.
  """
  shown = passes(text)[:most]
  height = (len(shown) + 3.4) * _LINE
  with matplotlib.rc_context({'font.size': _SIZE, 'font.family': 'monospace'}):
    figure = Figure(figsize=(_WIDTH, height), facecolor='white')
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for place, (origin, (_, _, meaning)) in enumerate(_LOOKS.items()):
      x, y = 0.1 + 3.1 * (place % 2), _LINE * (0.7 + place // 2)
      _write(axes, _box(axes, x, y, origin, origin) + 0.02, y, meaning)
    for number, tokens in enumerate(shown, 1):
      x, y = _BEGIN, _LINE * (number + 1.9)
      _write(axes, 0.1, y, f'pass {number}', color=_SOFT)
      for origin, words in tokens:
        x = _box(axes, x, y, origin, words)
      kept = sum(origin != 'rejected' for origin, _ in tokens)
      many = f'{kept} token{"s" if kept > 1 else ""}'
      _write(axes, _WIDTH - 0.1, y, many, ha='right', color=_SOFT)
    place = f'{text["domain"]}, temperature {text["temperature"]:g}'
    _write(
      axes,
      0.1,
      height - 0.15,
      f'{text["drafter"]}, gamma {text["gamma"]}, {place}. The whole text: '
      f'{len(text["tokens"])} tokens in {text["target_calls"]} passes.',
      color=_SOFT,
    )
  return figure


def svg(text: dict) -> str:
  """Returns the picture of a text: the same text, the same picture."""
  file = io.StringIO()
  plain = {'svg.hashsalt': FILE, 'svg.fonttype': 'none'}
  with matplotlib.rc_context(plain):
    steps(text).savefig(file, format='svg', metadata={'Date': None})
  return file.getvalue()
