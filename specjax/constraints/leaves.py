"""Regexes of the strings and integers of JSON that have a rule."""

import functools
import re
import warnings
from collections.abc import Iterator

from specjax.constraints import bytewise

CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
INTEGER = '-?(?:0|[1-9][0-9]*)'
NUMBER = INTEGER + r'(?:\.[0-9]+)?(?:[eE][+-][0-9]+)?'

_YEAR = '[1-9][0-9]{3}'
_LEAP = (
  '(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])'
  '|(?:[2468][048]|[13579][26])00)'
)
_DATE = (
  f'(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])'
  '|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)'
  f'|{_LEAP}-02-29)'
)
_CLOCK = '(?:[01][0-9]|2[0-3]):[0-5][0-9]'
_TIME = rf'{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})'

# Of RFC 3339: years from 1000, no leap seconds, at most microseconds.
FORMATS = {
  'date': _DATE,
  'time': _TIME,
  'date-time': f'{_DATE}T{_TIME}',
  'uuid': '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}',
}


def integer(low: int | None, high: int | None) -> str | None:
  """Integers from low to high, both included; None where there is none."""
  if low is None and high is None:
    return INTEGER
  ways = []
  if high is None or high >= 0:
    ways += _natural(max(low or 0, 0), high)
  if low is None or low < 0:
    least = 1 if high is None else max(1, -high)
    below = _natural(least, None if low is None else -low)
    ways += [f'-{way}' for way in below]
  return f'(?:{"|".join(ways)})' if ways else None


def _natural(low: int, high: int | None) -> list[str]:
  """Integers from low >= 0 to high, without a sign, by their length."""
  ways = []
  longest = len(str(low if high is None else high))
  for length in range(len(str(low)), longest + 1):
    least = max(low, 10 ** (length - 1) if length > 1 else 0)
    most = 10**length - 1 if high is None else min(high, 10**length - 1)
    if least <= most:
      ways.append(_digits(str(least), str(most)))
  if high is None:
    ways.append(f'[1-9][0-9]{{{longest},}}')
  return ways


def _digits(low: str, high: str) -> str:
  """Numbers of one length from low to high."""
  if not low:
    return ''
  if low[0] == high[0]:
    return low[0] + _digits(low[1:], high[1:])
  rest = len(low) - 1
  zeros, nines, free = '0' * rest, '9' * rest, f'[0-9]{{{rest}}}'
  first, last, ways = int(low[0]), int(high[0]), []
  if low[1:] != zeros:
    ways.append(low[0] + _digits(low[1:], nines))
    first += 1
  if high[1:] != nines:
    ways.append(high[0] + _digits(zeros, high[1:]))
    last -= 1
  if first <= last:
    ways.append(f'[{first}-{last}]{free}')
  return f'(?:{"|".join(ways)})'


@functools.lru_cache
def pattern(path: str, text: str) -> str:
  """Regex of the strings that a `pattern` of a schema matches as a whole.

  Only what every dialect reads alike is taken, and only what needs no escapes
  between quotation marks.

  Raises:
    ValueError: it has other things.
  """
  what = f'JSON schema, {path}: {bytewise.shown(text)}'
  with warnings.catch_warnings():
    warnings.simplefilter('error', FutureWarning)
    try:
      re.compile(text)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
      raise ValueError(
        f'{what} is no regex that all dialects read alike ({error}): escape '
        'what stands for itself'
      ) from None
  written = '(?:' + ''.join(_rewritten(what, _unanchored(text))) + ')'
  table = bytewise.build(what, written)
  unsafe = [ord('"'), ord('\\'), *range(32)]
  if (table[:, unsafe] >= 0).any():
    raise ValueError(
      f'{what} matches quotation marks, backslashes or control characters, '
      'which JSON writes otherwise: list the characters, such as [A-Za-z0-9 ]'
    )
  return written


def _unanchored(text: str) -> str:
  """Without anchors around all of it: what is made matches as a whole."""
  text = text.removeprefix('^')
  bare = text.removesuffix('$')
  escaped = (len(bare) - len(bare.rstrip('\\'))) % 2
  return text if escaped else bare


def _rewritten(what: str, text: str) -> Iterator[str]:
  """Pieces of a pattern in the dialect of outlines-core."""
  before, negated = '', False
  for piece, inside in bytewise.pieces(text):
    wrong = ''
    if not inside and piece[0] == '(' and piece not in ('(', '(?:'):
      wrong = 'which not every dialect has: write it with plain groups'
    elif not inside and piece == '+' and before in ('*', '+', '?', '}'):
      wrong = 'twice a repeat: write one'
    elif piece in ('[', '[^'):
      negated = piece == '[^'
    elif piece in (r'\d', r'\w'):
      if inside and negated:
        wrong = 'in a class of what is left out: write out the characters'
      ranges = '0-9' if piece == r'\d' else 'A-Za-z0-9_'
      piece = ranges if inside else f'[{ranges}]'
    elif re.fullmatch(r'\\[A-Za-z0-9]', piece) and piece not in (r'\x', r'\u'):
      wrong = 'which dialects read differently: write out the characters'
    if wrong:
      raise ValueError(f'{what} has {piece!r}, {wrong}')
    before = piece
    yield '(?:' if piece == '(' and not inside else piece
