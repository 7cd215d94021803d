"""Regex -> table of states over bytes.

outlines-core compiles the regex, in a process of its own: a short regex such as
`(((a{30}){30}){30}){30}` takes all memory there is, and `(a|b)*a(a|b){25}`
hours. It prefers what comes first (`a|ab` would be `a` alone), so each regex is
followed by a character that stands for the end of the text.
"""

import atexit
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from specjax.constraints import states
from specjax.errors import install

MEMORY, SECONDS = 2 << 30, 60.0

_END = '\U0010ffff'  # No character, and not to be.

_PROGRAM = """
import array, json, sys
job = json.load(sys.stdin)
sys.path[:] = job['path']
try:
  import resource
  hard = resource.getrlimit(resource.RLIMIT_AS)[1]
  resource.setrlimit(resource.RLIMIT_AS, (job['memory'], hard))
except (ImportError, OSError, ValueError):
  pass
from outlines_core import Index, Vocabulary
vocabulary = Vocabulary(256, {bytes([b]): [b] for b in range(256)})
try:
  index = Index(job['regex'], vocabulary)
except ValueError as error:
  print(json.dumps({'error': str(error)}))
  sys.exit()
moves, final = index.get_transitions(), index.get_final_states()
first = index.get_initial_state()
order = [first, *((set(moves) | set(final)) - {first})]
place = {state: n for n, state in enumerate(order)}
table = array.array('i', [-1]) * (256 * len(order))
for state, row in moves.items():
  start = 256 * place[state]
  for byte, to in row.items():
    if byte < 256:
      table[start + byte] = place[to]
print(json.dumps({'final': [place[state] for state in final]}), flush=True)
sys.stdout.buffer.write(table.tobytes())
"""

_GROUP = re.compile(r'\(\?(<?[=!]|P=|P?<|[A-Za-z-]*[:)]?)')


def shown(text: str) -> str:
  """A regex or a schema, as messages quote it."""
  return repr(text if len(text) <= 60 else f'{text[:57]}...')


def pieces(pattern: str) -> Iterator[tuple[str, int]]:
  """Characters, escapes and beginnings of groups, with depth in classes."""
  at = inside = first = 0
  while at < len(pattern):
    piece = pattern[at : at + 2] if pattern[at] == '\\' else pattern[at]
    if not inside and (found := _GROUP.match(pattern, at)):
      piece = found[0]
    elif piece == '[':
      if pattern[at + 1 : at + 2] == '^':
        piece = '[^'
      inside += 1
      first = at + len(piece)
    elif piece == ']' and inside and at != first:
      yield piece, inside
      inside -= 1
      at += 1
      continue
    yield piece, inside
    at += len(piece)


def _refuse_syntax(what: str, pattern: str) -> None:
  """Raises if a regex has what a regex over whole texts cannot have.

  Raises:
    ValueError: it has such a thing.
  """
  depth = 0
  for piece, inside in pieces(pattern):
    wrong = None
    if inside:
      continue
    if piece in ('^', '$', r'\A', r'\z', r'\Z', r'\G'):
      wrong = 'an anchor: leave it out, the whole text must match'
    elif piece in (r'\b', r'\B', r'\<', r'\>'):
      wrong = 'a word boundary: write out what comes before and after'
    elif piece in ('(?=', '(?!', '(?<=', '(?<!'):
      wrong = 'look-around: write out what may come'
    elif re.fullmatch(r'\\[1-9k]|\(\?P=', piece):
      wrong = 'a back reference: write out the alternatives'
    elif re.match(r'\(\?[A-Za-z]*x', piece):
      wrong = 'the flag x: write it without spaces and comments'
    elif piece[0] == '(' and not re.fullmatch(r'\(\?[A-Za-z-]*\)', piece):
      depth += 1
    elif piece == ')':
      depth -= 1
    if depth < 0:
      wrong = "a ')' without its '(': escape it or remove it"
    if wrong:
      raise ValueError(f'{what} has {piece!r}, {wrong}')
  if depth:
    raise ValueError(f"{what} has a '(' without its ')': escape it or close it")


def _said(what: str, error: str) -> str:
  """Says in a sentence why outlines-core refuses a regex."""
  if 'no transitions' in error:
    return f'nothing matches {what}: correct it'
  if 'too big' in error or 'exceeded' in error or 'limit' in error:
    return (
      f'{what} takes too many states: bound its repeats lower, or use fewer '
      'alternatives'
    )
  return (
    f'{what} is no regex as outlines-core reads it (the syntax of the Rust '
    'crate regex): escape brackets and braces that stand for themselves, write '
    '{0,n} for {,n}, and use no look-around or back references'
  )


def _run(job: dict, seconds: float) -> subprocess.CompletedProcess:
  """Runs `_PROGRAM` on a job, in a process that ends with this one.

  Raises:
    subprocess.TimeoutExpired: it takes longer.
  """
  command = [sys.executable, '-P', '-c', _PROGRAM]
  pipe = subprocess.PIPE
  with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
    # A thread that waits here may be left alone at the end of the program.
    atexit.register(child.kill)
    try:
      told = child.communicate(json.dumps(job).encode(), seconds)
    finally:
      atexit.unregister(child.kill)
      child.kill()  # Where it has ended, nothing happens.
  return subprocess.CompletedProcess(command, child.returncode, *told)


def build(
  what: str, pattern: str, memory: int = MEMORY, seconds: float = SECONDS
) -> np.ndarray:
  """The table [Q, 257] of a regex, trimmed; see `states`.

  Args:
    what: the regex, as messages call it.
    pattern: the whole text must match it.
    memory: bytes that compiling may take, where the system can limit them.
    seconds: that it may take.

  Raises:
    ValueError: outlines-core is not installed, the regex is none or needs more
      than that, or nothing matches it.
  """
  if importlib.util.find_spec('outlines_core') is None:
    raise ValueError(
      'constraints need outlines-core, which is not installed: '
      f'{install("constraints")}'
    )
  _refuse_syntax(what, pattern)
  # Behind a literal alone repeats of a class take exponential time.
  regex = f'{_END}(?:{pattern}){_END}'
  job = {'path': sys.path, 'memory': memory, 'regex': regex}
  remedy = 'bound its repeats lower, or use fewer alternatives'
  try:
    done = _run(job, seconds)
  except subprocess.TimeoutExpired:
    raise ValueError(
      f'{what} takes more than {seconds:g} s to compile: {remedy}'
    ) from None
  head, _, body = done.stdout.partition(b'\n')
  if done.returncode:
    last = done.stderr.decode(errors='replace').strip().split('\n')[-1]
    if 'emory' in last or not last or done.returncode < 0:
      raise ValueError(
        f'{what} takes more than {memory / 2**30:g} GiB to compile: {remedy}'
      )
    raise ValueError(f'outlines-core failed on {what}: {last}')
  answer = json.loads(head)
  if 'error' in answer:
    raise ValueError(_said(what, answer['error']))
  moves = np.frombuffer(body, np.int32).reshape(-1, 256)
  final = np.zeros(len(moves) + 1, bool)
  final[answer['final']] = True
  after = np.arange(len(moves))
  moves_or_none = np.concatenate([moves, np.full((1, 256), -1, np.int32)])
  for byte in _END.encode():
    after = moves_or_none[after, byte]
  table = np.full((len(moves) + 1, 257), -1, np.int32)
  table[:-1, :256] = moves
  table[:-1, 256] = np.where(final[after], len(moves), -1)
  table[-1, 256] = len(moves)
  # What the regex is behind its first mark becomes state 0.
  swapped = np.arange(len(table) + 1)
  swapped[[0, after[0]]] = swapped[[after[0], 0]]
  swapped[-1] = -1
  kept = states.trim(swapped[table[swapped[:-1]]])
  if kept is None:
    raise ValueError(f'nothing matches {what}: correct it')
  return kept
