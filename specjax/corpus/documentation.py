"""Writes the documentation that the library carries inside itself.

Docstrings and the topics behind `help('...')` are prose about programs: longer
sentences than code, more names than a novel. Each module becomes one document,
with every docstring under the signature it explains, because a model that
drafts documentation sees the two together.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator

from specjax.corpus import library, names

# Compiled modules, whose docstrings no source file holds. None repeats a
# held-out module, as `_heapq` does, and `sys` is not among them because
# programs put their own hooks into it.
_COMPILED = (
  'array', 'atexit', 'binascii', 'builtins', 'cmath', 'errno', 'faulthandler',
  'gc', 'itertools', 'marshal', 'math', 'mmap', 'posix', 'pwd', 'pyexpat',
  'resource', 'select', 'syslog', 'time', 'unicodedata', 'zlib', '_asyncio',
  '_collections', '_io', '_random', '_socket', '_sqlite3', '_ssl', '_struct',
  '_thread', '_weakref',
)  # fmt: skip
# A module with less than this says nothing beyond its title.
_SHORTEST = 200


def plan_documents(held_out: bool) -> Iterator[tuple[str, Callable[[], str]]]:
  """Lists the documents that are held out, or all others, without writing them.

  Yields:
    The name of a document and a function that returns its text, in the order
    of the names. The text is empty where there is nothing worth keeping.
  """
  if not held_out:
    for name in sorted(_COMPILED):
      yield f'compiled/{name}', functools.partial(_document_compiled, name)
  for module in library.find_modules():
    if not module.is_test and module.is_held_out == held_out:
      write = functools.partial(document_module, module)
      yield f'modules/{module.name}', write
  topics = _load_topics()
  for topic in sorted(topics):
    if (topic in names.HELD_OUT_TOPICS) == held_out:
      yield f'topics/{topic}', functools.partial(topics.__getitem__, topic)


def document_module(module: library.Module) -> str:
  sections = []
  for record in library.describe_module(module):
    if not record.docstring:
      continue
    name = f'{module.name}.{record.name}'.rstrip('.')
    # A class without bases is written without parentheses, as in its source.
    arguments = ', '.join(record.arguments)
    if record.kind == 'module':
      heading = f'module {name}'
    elif record.kind == 'class' and not arguments:
      heading = f'class {name}'
    else:
      kind = 'class' if record.kind == 'class' else 'def'
      heading = f'{kind} {name}({arguments})'
    sections.append((heading, record.docstring))
  return _join_sections(sections)


def _document_compiled(name: str) -> str:
  try:
    module = importlib.import_module(name)
  except ImportError:
    return ''
  sections = [(f'module {name}', inspect.getdoc(module) or '')]
  for key, value in sorted(vars(module).items()):
    # What is neither was put there at startup, such as `exit`.
    public = inspect.isbuiltin(value) or inspect.isclass(value)
    if not public or key.startswith('_'):
      continue
    sections.append(_describe_object(f'{name}.{key}', value))
    if inspect.isclass(value):
      sections.extend(
        _describe_object(f'{name}.{key}.{part}', member)
        for part, member in sorted(vars(value).items())
        if not part.startswith('_') and callable(member)
      )
  return _join_sections(sections)


def _describe_object(name: str, value: object) -> tuple[str, str]:
  if inspect.isclass(value):
    return f'class {name}', inspect.cleandoc(value.__doc__ or '')
  doc = inspect.cleandoc(getattr(value, '__doc__', None) or '')
  return f'def {name}{library.write_signature(value)}', doc


def _join_sections(sections: list[tuple[str, str]]) -> str:
  text = '\n\n'.join(
    f'{heading}\n\n{doc.strip()}' for heading, doc in sections if doc
  )
  return text + '\n' if len(text) >= _SHORTEST else ''


def _load_topics() -> dict[str, str]:
  try:
    from pydoc_data import topics
  except ImportError:  # Some distributions put them into another package.
    return {}
  return {name: text.strip() + '\n' for name, text in topics.topics.items()}
