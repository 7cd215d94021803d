"""Counts what a compiled program consists of, from its texts.

One text is the optimised HLO module of XLA. Another one is the sequence of
thunks, which the host of a GPU works through. Counts are summed by phase of the
step and by module of the model, without the number of the layer. So the counts
of two depths give those of any depth.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

WALK = 'attention/walk'  # module of a walk over the cache in use
PHASES = 'propose', 'score', 'judge', 'commit', 'tell'
COLLECTIVES = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
_FREE = {
  *('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast'),
  *('after-all', 'copy-done', 'slice-done', 'async-done', 'partition-id'),
}
# Operations that return an operand, in another place or another layout.
_SAME = {
  *('copy', 'copy-start', 'copy-done', 'bitcast', 'reshape', 'transpose'),
  *('slice-start', 'slice-done', 'optimization-barrier', 'custom-call'),
}
# Arguments of the loop and of prefill that are weights.
_WEIGHTS, _OF_DRAFT = ('params.', 'weights['), 'params.drafter'
_FETCHES = 'slice-start', 'copy-start'
_LARGE = 1 << 20  # bytes of an array whose copy is counted
_BITS = {'pred': 8, 's4': 4, 'u4': 4, 's8': 8, 'u8': 8, 'bf16': 16, 'f16': 16}
_BITS |= {'s16': 16, 'u16': 16, 's64': 64, 'u64': 64, 'f64': 64, 'token': 0}
_BITS |= {'s32': 32, 'u32': 32, 'f32': 32, 'c64': 64, 'c128': 128, 'opaque': 0}
_KNOWN = r'known_trip_count":\{"n":"(\d+)"'  # turns of a loop
_SAID = r'/each(\d+)/while$'  # turns, see `models.uniform`
_NO_ESTIMATE = 1 << 40  # cycles; so many mean that XLA does not know

# (what is counted, phase, module) -> how much of it a step has.
Counts = collections.Counter


class Op(NamedTuple):
  """An operation of a compiled program.

  Attributes:
    kind: such as fusion.
    result: its shapes and layouts, as they are written.
    operands: names.
    calls: names of computations.
    path: of the code that it comes from.
    line: the whole text.
  """

  name: str
  kind: str
  result: str
  operands: tuple[str, ...]
  calls: tuple[str, ...]
  path: str
  line: str

  @property
  def bytes(self) -> int:
    return sum(sizes_of(self.result))

  def called(self, role: str) -> str:
    """Returns the name of the computation that has a role."""
    found = re.search(rf'\b{role}=%?([\w.\-]+)', self.line)
    return found[1] if found else ''

  @property
  def copies(self) -> bool:
    """Returns true if this lays an array out anew."""
    alone = self.kind == 'fusion' and re.match(
      '(wrapped_|loop_|input_)?(copy|transpose)', self.name
    )
    return bool(alone) or self.kind in ('copy', 'transpose')


def sizes_of(text: str) -> list[int]:
  """Returns the bytes of each array of a type, such as f32[2,3]."""
  made = []
  for kind, sizes in re.findall(r'([a-z]\w*)\[([\d,]*)\]', text):
    shape = [int(size) for size in sizes.split(',') if size]
    each = 8 if kind.startswith('f8') else _BITS.get(kind)
    if each is None:
      raise ValueError(f'{kind} has an unknown size; give its bits to _BITS')
    made.append(math.prod(shape) * each // 8)
  return made


class Module:
  """A program: its computations, by name, and operations, by name.

  Attributes:
    computations: operations of each, in their order.
    entry: name of the computation that the program begins with.
    ops: every operation.
    home: computation of each operation.
  """

  def __init__(self, text: str):
    self.computations: dict[str, list[Op]] = {}
    self.entry, name = '', ''
    for line in text.splitlines():
      if head := re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\{$', line):
        name = head[2]
        self.computations[name] = []
        self.entry = name if head[1] else self.entry
      elif name and (op := _read(line)):
        self.computations[name].append(op)
    homes = [
      (op, name) for name, ops in self.computations.items() for op in ops
    ]
    self.ops = {op.name: op for op, _ in homes}
    self.home = {op.name: name for op, name in homes}
    loops = [op for op in self.ops.values() if op.kind == 'while']
    self._callers = {op.called('body'): op for op in loops}

  def main_loop(self) -> Op | None:
    """Returns the loop over steps: the largest one that the entry runs."""
    loops = [op for op, _ in self.run(self.entry) if op.kind == 'while']

    def size(op: Op) -> int:
      return len(self.computations[op.called('body')])

    return max(loops, key=size, default=None)

  def run(
    self,
    name: str,
    turns: Mapping[str, float] | None = None,
    times: float = 1.0,
  ) -> Iterator[tuple[Op, float]]:
    """Yields what a computation runs, and how often.

    Args:
      name: of the computation.
      turns: of each loop; None: what is inside of loops is left out.
      times: that it runs.
    """
    for op in self.computations.get(name, ()):
      if op.kind not in ('call', 'async-start'):
        yield op, times
      if op.kind in ('call', 'async-start', 'conditional'):
        for called in op.calls:
          yield from self.run(called, turns, times)
      if op.kind == 'while' and turns is not None:
        count = turns[op.name] * times
        yield from self.run(op.called('body'), turns, count)
        yield from self.run(op.called('condition'), turns, count + times)

  def origin(self, name: str) -> str:
    """Returns the program's argument that an array is, as the code has it.

    It is followed through copies, tuples and loops. '' where it is computed.
    """
    for _ in range(100):  # Chains are short; a loop's own value has none.
      op = self.ops.get(name)
      if op is None:
        return ''
      if op.kind == 'parameter':
        return op.path if self.home[name] == self.entry else ''
      if op.kind == 'get-tuple-element':
        name = self._element(op)
      elif op.operands and (op.kind in _SAME or op.copies):
        name = op.operands[0]
      else:
        return ''
    return ''

  def _element(self, op: Op) -> str:
    """Returns the name of the array that is an element of a tuple."""
    found = re.search(r'index=(\d+)', op.line)
    index, source = int(found[1]) if found else 0, self.ops[op.operands[0]]
    if source.kind == 'parameter':
      caller = self._callers.get(self.home[source.name])
      source = caller or source
    while source.kind == 'while':
      source = self.ops[source.operands[0]]
    if source.kind == 'tuple':
      return source.operands[index]
    return source.operands[0] if source.kind in _SAME else ''


def _read(line: str) -> Op | None:
  """Returns the operation of a line; None if it has none."""
  made = re.match(r'\s+(?:ROOT )?%?([\w.\-]+) = (.*)', line)
  op = made and re.search(r'(?<=[\])}] )([a-z][\w\-]*)\(', made[2])
  if not made or not op:
    return None
  inside = made[2][op.end() :].split(')', 1)[0]
  calls = re.findall(r'\b(?:to_apply|calls|body|condition)=%?([\w.\-]+)', line)
  for group in re.findall(
    r'(?:branch_computations|called_computations)=\{([^}]*)\}', line
  ):
    calls += re.findall(r'%?([\w.\-]+)', group)
  path = re.search(r'op_name="([^"]*)"', line)
  return Op(
    made[1],
    op[1],
    made[2][: op.start()],
    tuple(re.findall(r'%([\w.\-]+)', inside)),
    tuple(calls),
    path[1] if path else '',
    line,
  )


def place_of(path: str) -> tuple[str, str]:
  """Returns the phase of a step and the module of an operation's path.

  .../body/score/Transformer/layer3/attention/layer3._attention/qkv/dot_general
  -> score, attention/qkv/product
  """
  words = path.split('/')
  phase = next((word for word in words if word in PHASES), '')
  begin = phase or 'body'
  words = words[words.index(begin) + 1 :] if begin in words else []
  walks = 'attention' in words and 'while' in words[words.index('attention') :]
  last = ['product'] if words and words[-1] == 'dot_general' else []
  kept = [
    re.sub(r'\d+$', '', word)
    for word in words[:-1]
    if re.fullmatch(r'[a-z]+\d*', word) and not re.match(r'layer\d', word)
  ]
  kept = [w for w in kept if w not in ('while', 'body', 'cond')]
  return phase, '/'.join(kept + ['walk'] * walks + last)


def turns_of(
  module: Module, span: Callable[[str, int], int], gamma: int, widest: int = 1
) -> dict[str, float]:
  """Returns how often each loop turns, which only a device knows.

  A walk over the slots in use has a loop over blocks of 512, and one over the
  rest in blocks of 128. A chain is drafted to its end. A rule for trees judges
  all first children at once, then all second ones, and so on.

  Args:
    module: the program.
    span: (phase, layer) -> slots that the layer walks over.
    gamma: drafted tokens.
    widest: most children of a node.
  """
  turns: dict[str, float] = {}
  for ops in module.computations.values():
    seen: Counts[str] = Counts()
    for op in ops:
      if op.kind != 'while':
        continue
      known = re.search(_KNOWN, op.line) or re.search(_SAID, op.path)
      inside = op.path.removesuffix('/while').split('/')
      layer = re.search(r'layer(\d+)/attention/', op.path)
      if known:
        turns[op.name] = int(known[1])
      elif layer:
        slots = span(place_of(op.path)[0], int(layer[1]))
        if re.search(r'/each\d+/', op.path):  # Of `models.uniform`.
          turns[op.name] = -(-slots // 512)
          continue
        large = seen[op.path] % 2 == 0
        turns[op.name] = slots // 512 if large else -(-(slots % 512) // 128)
        seen[op.path] += 1
      elif inside[-1] == 'propose':
        turns[op.name] = gamma - 1
      else:
        turns[op.name] = widest if 'judge' in inside else 1
  return turns


def count(
  module: Module, turns: Mapping[str, float], bytes_per_cycle: float = 0.0
) -> tuple[Counts, Counts]:
  """Counts a step, and what a call does before and behind its steps.

  kernels      operations that run
  cycles       as the compiler estimates them (TPU)
  prefetched   bytes that are fetched beside, which cycles do not contain
  read         bytes of weights that operations read where these lie
  weights,     bytes of weights, and of other arrays of a megabyte and more,
  caches       that are laid out anew
  exchanged    bytes of collectives; and each kind of them, how many

  Args:
    module: the program.
    turns: of each loop, see `turns_of`.
    bytes_per_cycle: of the device's memory.

  Returns:
    Counts of a step, and of a call.
  """
  main = module.main_loop()
  made = []
  for name, inner in (
    (main.called('body') if main else module.entry, turns),
    (module.entry if main else '', None),
  ):
    counts: Counts = Counts()
    phase = ''
    for op, times in module.run(name, inner):
      place = place_of(op.path)
      if op.kind in _FETCHES and op.operands:  # They have no path.
        source = module.origin(op.operands[0])
        whose = 'propose' if source.startswith(_OF_DRAFT) else 'score'
        place = (whose if source.startswith(_WEIGHTS) else phase), 'fetch'
      else:
        # XLA's own copies have none either: they belong to what is beside.
        phase = place[0] or phase
        place = phase, place[1]
      for what, number in _costs(module, op, bytes_per_cycle).items():
        counts[what, *place] += number * times
    made.append(+counts)
  return made[0], made[1]


def _costs(module: Module, op: Op, bytes_per_cycle: float) -> dict[str, float]:
  """Returns what one run of an operation costs."""
  if op.kind in _FREE or op.kind == 'while' or op.kind.endswith('-done'):
    return {}
  if op.kind in _FETCHES:
    near = re.findall(r'\w+\[[\d,]*\](?=\{[^}]*S\(1\))', op.result)
    fetched = sum(sizes_of(' '.join(near)))
    from_weight = module.origin(op.operands[0]).startswith(_WEIGHTS)
    return {'prefetched': fetched, 'read': fetched * from_weight}
  made: dict[str, float] = {'kernels': 1}
  found = re.search(r'estimated_cycles":"(\d+)"', op.line)
  cycles = int(found[1]) if found else 0
  if cycles < _NO_ESTIMATE:
    made['cycles'] = cycles
    weights = sum(
      module.ops[name].bytes
      for name in op.operands
      if name in module.ops
      and 'S(1)' not in module.ops[name].result
      and module.origin(name).startswith(_WEIGHTS)
    )
    # Of a table only rows are read: no more than there is time for.
    made['read'] = min(weights, cycles * bytes_per_cycle)
  for kind in COLLECTIVES:
    if op.kind.startswith(kind):
      made |= {kind: 1, 'exchanged': op.bytes}
  if op.copies:
    if module.origin(op.operands[0]).startswith(_WEIGHTS):
      made['weights'] = op.bytes
    elif op.bytes >= _LARGE:
      made['caches'] = op.bytes
  return made


def loop_collectives(text: str) -> dict[str, dict[str, int]]:
  """Counts the collective operations of one turn of a program's outer loop.

  Loops inside, such as that over drafted tokens, end when the data say so:
  where the program does not know how often they turn, what they exchange is
  counted for one turn, apart from the rest.

  Args:
    text: of the compiled program, as `compiled.as_text()` gives it.

  Returns:
    For each kind there is: `count` and `bytes` of what every step runs, and
    `turn_count` and `turn_bytes` of one turn of the loops inside. Bytes are
    those of the results on one device.

  Raises:
    ValueError: the program has no loop.
  """
  module = Module(text)

  def add(total: dict, name: str, times: int, inside: str) -> None:
    for op, _ in module.run(name):
      kind = op.kind.removesuffix('-start')
      if op.kind == 'while':
        known = re.search(_KNOWN, op.line)
        turns = times * (int(known[1]) if known else 1)
        for role in ('condition', 'body'):
          add(total, op.called(role), turns, inside if known else 'turn_')
      elif kind in COLLECTIVES:
        # The start of one that is waited for holds its operands before.
        sizes = sizes_of(op.result)
        own = sizes[len(sizes) // 2 :] if kind != op.kind else sizes
        names = ('count', 'bytes', 'turn_count', 'turn_bytes')
        entry = total.setdefault(kind, dict.fromkeys(names, 0))
        entry[f'{inside}count'] += times
        entry[f'{inside}bytes'] += times * sum(own)

  totals: list[dict] = []
  for op, _ in module.run(module.entry):
    if op.kind == 'while':
      totals.append({})
      for role in ('condition', 'body'):
        add(totals[-1], op.called(role), 1, '')
  if not totals:
    raise ValueError('the program has no loop: give it that of generate')
  return max(totals, key=lambda t: sum(e['count'] for e in t.values()))


def count_thunks(
  module: Module, sequence: str, names: str, turns: Mapping[str, float]
) -> Counts:
  """Counts what the host of a GPU does in a step.

  nodes      kernels and copies inside of a graph
  launches   of single kernels and copies
  graphs     launches of a graph
  waits      of the host for the device, before each turn of a loop whose length
             it does not know

  Args:
    module: the program.
    sequence: the thunks, as XLA dumps them.
    names: the operation that each thunk belongs to, as XLA dumps them.
    turns: of each loop.
  """
  ids = re.findall(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)', names)
  by_id = {int(number): name for name, number in ids}
  main = module.main_loop()
  counts: Counts = Counts()
  # Of each container around a line: indent, times, whether in a graph.
  stack: list[tuple[int, float, bool]] = [(-1, float(main is None), False)]
  tests, tested = 0.0, False  # of the loop that was opened last
  phase = ''
  for line in sequence.splitlines():
    if line.strip() in ('condition:', 'body:'):
      tested = line.strip() == 'condition:'
      continue
    found = re.match(r'( *)(\d+): k(\w+)', line)
    if not found:
      continue
    indent, kind = len(found[1]), found[3]
    op = module.ops.get(by_id.get(int(found[2]), ''))
    while indent <= stack[-1][0]:
      stack.pop()
    _, times, graph = stack[-1]
    times = tests if tested else times
    place = place_of(op.path if op else '')
    phase = place[0] or phase
    place = phase, place[1]
    if kind == 'While' and op is not None:
      inner = 1.0 if op is main else times * turns[op.name]
      tests = inner + (0.0 if op is main else times)
      if not graph and re.search(_KNOWN, op.line):
        tests = 0.0  # The host counts the turns itself.
      elif not graph:
        counts['waits', *place] += tests
      stack.append((indent, inner, graph))
    elif kind == 'CommandBuffer':
      counts['graphs', *place] += times
      stack.append((indent, times, True))
    elif kind in ('Sequential', 'Conditional'):
      counts['waits', *place] += times * (kind == 'Conditional' and not graph)
      stack.append((indent, times, graph))
    else:
      counts['nodes' if graph else 'launches', *place] += times
  return +counts
