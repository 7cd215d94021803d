"""The exchanges between devices at a step, read from the compiled program.

The loop is one `while`; what its body and its condition hold is run at every
step. Loops inside, such as that over drafted tokens, end when the data say so:
where the program does not know how often they turn, what they exchange is
counted for one turn, apart from the rest.
"""

import math
import re

KINDS = (
  'all-reduce', 'all-gather', 'all-to-all', 'collective-permute',
  'reduce-scatter',
)  # fmt: skip
_FIELDS = 'count', 'bytes', 'turn_count', 'turn_bytes'
_BITS = re.compile(r'\d+')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$')
_KIND = re.compile(rf' ({"|".join(KINDS)})(-start)?\(')
_CALLED = re.compile(
  r'(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)'
  r'|branch_computations=\{([^}]*)\}'
)
_LOOP = re.compile(r' while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)')
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r'\b(pred|token|[a-z]+\d+\w*)\[([\d,]*)\]')


def _split(text: str) -> tuple[dict[str, list[str]], str]:
  """Lines of each computation, and the name of the first to run."""
  computations: dict[str, list[str]] = {}
  entry = name = ''
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      name = head[2]
      computations[name] = []
      entry = name if head[1] else entry
    elif name:
      computations[name].append(line)
  return computations, entry


def _bytes(line: str, start: bool) -> int:
  """Bytes of the result of an instruction, on one device."""
  result = line.partition(' = ')[2]
  result = result[: _KIND.search(result).start()]
  sizes = []
  for kind, shape in _ARRAY.findall(result):
    bits = 8 if kind == 'pred' else int(_BITS.findall(kind)[0])
    sizes.append(math.prod(int(n) for n in shape.split(',') if n) * bits // 8)
  # The start of one that is waited for later holds its operands before.
  return sum(sizes[len(sizes) // 2 :] if start else sizes)


def _called(line: str) -> list[str]:
  """Computations that an instruction runs once."""
  return [
    name.strip(' %')
    for match in _CALLED.finditer(line)
    for name in (match[1] or match[2]).split(',')
  ]


def _add(total: dict, more: dict, times: int = 1, inside: bool = False):
  for kind, entry in more.items():
    into = total.setdefault(kind, dict.fromkeys(_FIELDS, 0))
    for name in ('count', 'bytes'):
      into[f'turn_{name}' if inside else name] += times * entry[name]
      into[f'turn_{name}'] += times * entry[f'turn_{name}']


def _walk(computations, name: str) -> dict:
  """Counts what one run of a computation exchanges."""
  total: dict = {}
  for line in computations.get(name, ()):
    kind, loop = _KIND.search(line), _LOOP.search(line)
    if kind:
      size = _bytes(line, kind[2] is not None)
      _add(total, {kind[1]: dict(zip(_FIELDS, (1, size, 0, 0), strict=True))})
    elif loop:
      turns = _TURNS.search(line)
      for part in loop.groups():
        more = _walk(computations, part)
        _add(total, more, int(turns[1]) if turns else 1, turns is None)
    else:
      for part in _called(line):
        _add(total, _walk(computations, part))
  return total


def _loops(computations, name: str) -> list[tuple[str, str]]:
  """(condition, body) of the loops that a computation runs, outermost only."""
  loops = []
  for line in computations.get(name, ()):
    loop = _LOOP.search(line)
    if loop:
      loops.append((loop[1], loop[2]))
    else:
      for part in _called(line):
        loops += _loops(computations, part)
  return loops


def count(text: str) -> dict[str, dict[str, int]]:
  """Counts the collective operations of one turn of a program's outer loop.

  Args:
    text: of the compiled program, as `compiled.as_text()` gives it.

  Returns:
    For each kind there is: `count` and `bytes` of what every step runs, and
    `turn_count` and `turn_bytes` of one turn of the loops inside. Bytes are
    those of the results on one device.

  Raises:
    ValueError: the program has no loop.
  """
  computations, entry = _split(text)
  loops = _loops(computations, entry)
  if not loops:
    raise ValueError('the program has no loop: give it that of generate')
  totals = []
  for loop in loops:
    total: dict = {}
    for part in loop:
      _add(total, _walk(computations, part))
    totals.append(total)
  return max(totals, key=lambda t: sum(e['count'] for e in t.values()))
