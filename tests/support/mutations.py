"""Small changes of Python source, each as a mutation tester makes them."""

import ast
import copy
import re

_PAIRS = re.findall(
  r'\w+',
  """Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div,
  FloorDiv Mod, BitAnd BitOr, And Or, Break Continue, min max, any all,
  floor ceil, minimum maximum, argmin argmax, zeros ones, append extend""",
)
_PAIRS = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
SWAPPED = _PAIRS | {b: a for a, b in _PAIRS.items()}


def changes(node):
  """Yields what may stand in place of a node, as source text."""

  def changed(**fields):
    new = copy.copy(node)
    vars(new).update(fields)
    return ast.unparse(new) if 'keywords' in fields else f'({ast.unparse(new)})'

  def other(op):
    name = SWAPPED.get(type(op).__name__)
    return [getattr(ast, name)()] if name else []

  match node:
    case ast.Compare(ops=[op]):
      yield from (changed(ops=[x]) for x in other(op))
    case ast.BoolOp(op=op, values=[first, *_]):
      yield from (changed(op=other(op)[0]), f'({ast.unparse(first)})')
    case ast.BinOp(op=op):
      yield from (changed(op=x) for x in other(op))
    case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
      yield f'({ast.unparse(inner)})'
    case ast.Constant(value=bool(value)):
      yield str(not value)
    case ast.Constant(value=int(value)):
      yield str(value + 1)
    case ast.Constant(value=float(value)):
      yield str(2 * value or 1.0)
    case ast.If(test=test) | ast.While(test=test):  # In place of the test.
      yield f'not ({ast.unparse(test)})'
    case ast.IfExp(test=test):
      yield changed(test=ast.UnaryOp(ast.Not(), test))
    case ast.Name(id=name) if name in SWAPPED:
      yield SWAPPED[name]
    case ast.Attribute(attr=name) if name in SWAPPED:
      yield changed(attr=SWAPPED[name])
    case ast.Call(keywords=given):
      for one in filter(lambda x: x.arg, given):
        yield changed(keywords=[x for x in given if x is not one])
    case ast.Slice(lower=lower, upper=upper):
      yield from [changed(lower=None)[1:-1]] if lower else []
      yield from [changed(upper=None)[1:-1]] if upper else []
    case ast.Break() | ast.Continue():
      yield ast.unparse(other(node))
    case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
      yield 'pass'


def nodes(node):
  """Yields a node and those in it, but for types and the words of errors."""
  yield node
  for name, field in ast.iter_fields(node):
    if name not in ('annotation', 'returns', 'exc', 'cause', 'decorator_list'):
      for child in field if isinstance(field, list) else [field]:
        if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
          yield from nodes(child)


def of_file(path):
  """Yields (line, old lines, new lines, whole text) of a file's mutants."""
  raw, begins = path.read_bytes(), [0]
  for line in raw.splitlines(keepends=True):
    begins.append(begins[-1] + len(line))
  for node in nodes(ast.parse(raw)):
    at = node.test if isinstance(node, ast.If | ast.While) else node
    for new in changes(node):
      first, last = begins[at.lineno - 1], begins[at.end_lineno - 1]
      end = begins[at.end_lineno]
      text = raw[: first + at.col_offset] + new.encode()
      text += raw[last + at.end_col_offset :]
      lines = raw[first:end], text[first : len(text) - len(raw) + end]
      old, now = (' '.join(x.decode().split()) for x in lines)
      yield at.lineno, old, now, text
