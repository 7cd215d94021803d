"""Reads records of files and of data sets of the hub."""

import gzip
import json
import pathlib
import zlib
from typing import Any, NamedTuple

from specjax.errors import UserError, first_line, install, need

PATH = 'prompts.path'  # the field that names a file, unless another does


class Record(NamedTuple):
  """One object of a file: where it stands, for messages, and its fields."""

  place: str
  fields: dict[str, Any]


def stem_of(path: str) -> str:
  """Returns the name of a file without its endings."""
  return pathlib.Path(path.removesuffix('.gz')).stem


def kind_of(path: str) -> str:
  """Returns 'lines' or 'list' (of JSON), 'parquet', or 'text'."""
  ending = pathlib.Path(path.removesuffix('.gz')).suffix
  kinds = {'.jsonl': 'lines', '.json': 'list', '.parquet': 'parquet'}
  return kinds.get(ending, 'text')


def check(path: str, field: str = PATH) -> None:
  """Raises a UserError unless a path names a file: no pipe ever ends."""
  file = pathlib.Path(path)
  problem = 'is no regular file' if file.exists() else 'does not exist'
  need(file.is_file(), f'{field}: {path} {problem}; {_other(field)}')


def _other(field: str) -> str:
  return f'name a file of {field.split(".")[0]}'


def read_text(path: str, field: str = PATH) -> str:
  """Returns the content of a file, decompressed where it ends in .gz.

  Raises:
    UserError: it is missing, damaged, no UTF-8 or empty.
  """
  check(path, field)
  try:
    content = pathlib.Path(path).read_bytes()
    if path.endswith('.gz'):
      content = gzip.decompress(content)
    text = content.decode('utf-8')
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    damaged = not isinstance(error, UnicodeDecodeError)
    remedy = 'copy it again' if damaged else 'convert it to UTF-8'
    raise UserError(
      f'{field}: {path} cannot be read ({error}); {remedy}'
    ) from None
  need(text.strip(), f'{field}: {path} is empty; {_other(field)}')
  return text


def _parse(field: str, path: str, place: str, text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError as error:
    raise UserError(
      f'{field}: {place} of {path} is no valid JSON ({error}); mend or remove '
      'it'
    ) from None


def _parquet(path: str, field: str) -> list[dict]:
  """Returns the rows of a file of Parquet."""
  try:
    import pyarrow.parquet
  except ImportError as error:
    raise UserError(
      f'{field}: {path} needs pyarrow: {install("datasets")}, or make a .jsonl '
      'file of it'
    ) from error
  check(path, field)
  try:
    return pyarrow.parquet.read_table(path).to_pylist()
  except (OSError, ValueError) as error:  # All of pyarrow's are these.
    reason = first_line(error)
    raise UserError(
      f'{field}: {path} cannot be read ({reason}); copy it again'
    ) from error


def read_records(path: str, field: str = PATH) -> list[Record]:
  """Returns the records of JSON lines, a JSON list, Parquet, or lines of text.

  Args:
    path: of the file.
    field: that named it, for messages.

  Raises:
    UserError: names the field, the file and the line.
  """
  kind = kind_of(path)
  found: list[tuple[str, Any]]
  if kind == 'parquet':
    found = [(f'row {i}', row) for i, row in enumerate(_parquet(path, field))]
  elif kind == 'list':
    contents = _parse(field, path, 'the text', read_text(path, field))
    need(
      isinstance(contents, list),
      f'{field}: {path} must hold a list of prompts; objects one a line belong '
      'into a .jsonl file',
    )
    found = [(f'entry {i}', one) for i, one in enumerate(contents, 1)]
  else:
    # Not splitlines: JSON strings may hold separators that it would cut at.
    lines = enumerate(read_text(path, field).split('\n'), 1)
    found = [(f'line {i}', line.strip()) for i, line in lines if line.strip()]
    if kind == 'lines':
      found = [(i, _parse(field, path, i, line)) for i, line in found]
    else:
      found = [(i, {'line': line}) for i, line in found]
  need(found, f'{field}: {path} is empty; {_other(field)}')
  records = []
  for place, content in found:
    fields = {'text': content} if isinstance(content, str) else content
    need(
      isinstance(fields, dict),
      f'{field}: {place} of {path} holds a {type(content).__name__}; it must '
      'be an object or a string',
    )
    records.append(Record(place, fields))
  return records


def load_dataset(name: str, split: str) -> list[Record]:
  """Returns the records of a data set of the hub.

  Args:
    name: `name` or `name:configuration`; behind the name may stand @revision.
    split: of the data set.

  Raises:
    UserError: the extra is not installed, or there is no such data set.
  """
  try:
    import datasets
  except ImportError as error:
    raise UserError(
      f'prompts.dataset needs datasets: {install("datasets")}, or give a file '
      'with prompts.path'
    ) from error
  path, _, configuration = name.partition(':')
  path, _, revision = path.partition('@')
  pinned = {'revision': revision} if revision else {}
  try:
    rows = datasets.load_dataset(
      path, configuration or None, split=split, **pinned
    )
  except Exception as error:  # Whatever the network and the hub come up with.
    reason = first_line(error)
    raise UserError(
      f'prompts.dataset: split {split!r} of {name!r} cannot be loaded '
      f'({reason}); check prompts.dataset and prompts.split'
    ) from error
  records = [Record(f'row {i}', dict(row)) for i, row in enumerate(rows)]
  if not records:
    raise UserError(f'prompts.dataset: split {split!r} of {name!r} is empty')
  return records
