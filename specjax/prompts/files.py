"""Records of files and of data sets of the hub."""

import gzip
import json
import pathlib
import zlib
from typing import Any, NamedTuple

from specjax.errors import UserError, install, need

PATH = 'prompts.path'  # the field that names a file, unless another does


class Record(NamedTuple):
  """One object of a file.

  place: where it stands, for messages.
  fields: its content by name.
  """

  place: str
  fields: dict[str, Any]


def stem_of(path: str) -> str:
  """The name of a file without its endings."""
  file = pathlib.Path(path.removesuffix('.gz'))
  return file.stem


def kind_of(path: str) -> str:
  """'lines' or 'list' of JSON, 'parquet', or 'text'."""
  ending = pathlib.Path(path.removesuffix('.gz')).suffix
  kinds = {'.jsonl': 'lines', '.json': 'list', '.parquet': 'parquet'}
  return kinds.get(ending, 'text')


def check(path: str, field: str = PATH) -> None:
  """Refuses what is no file: nothing ever comes out of a pipe.

  Raises:
    UserError: it is missing, a folder, or something else.
  """
  file = pathlib.Path(path)
  need(
    file.exists(),
    f'{field}: {path} does not exist; name a file of {field.split(".")[0]}',
  )
  need(
    file.is_file(),
    f'{field}: {path} is no regular file; name a file of {field.split(".")[0]}',
  )


def read_text(path: str, field: str = PATH) -> str:
  """The content of a file, decompressed where it ends in .gz.

  Raises:
    UserError: it is missing, damaged, no UTF-8 or empty.
  """
  check(path, field)
  try:
    content = pathlib.Path(path).read_bytes()
    if path.endswith('.gz'):
      content = gzip.decompress(content)
    text = content.decode('utf-8')
  except (OSError, EOFError, zlib.error) as error:
    raise UserError(
      f'{field}: {path} cannot be read ({error}); copy it again'
    ) from None
  except UnicodeDecodeError as error:
    raise UserError(
      f'{field}: {path} is no UTF-8 text ({error}); convert it first'
    ) from None
  if not text.strip():
    raise UserError(
      f'{field}: {path} is empty; name a file of {field.split(".")[0]}'
    )
  return text


def _record(field: str, path: str, place: str, content: Any) -> Record:
  if isinstance(content, str):
    content = {'text': content}
  if not isinstance(content, dict):
    raise UserError(
      f'{field}: {place} of {path} holds a {type(content).__name__}; it '
      'must be an object or a string'
    )
  return Record(place, content)


def _parse(field: str, path: str, place: str, text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError as error:
    raise UserError(
      f'{field}: {place} of {path} is no valid JSON ({error}); mend or '
      'remove it'
    ) from None


def _parquet(path: str, field: str) -> list[dict]:
  """Rows of a file of Parquet.

  Raises:
    UserError: it cannot be read, or the package that reads it is not there.
  """
  try:
    import pyarrow.parquet
  except ImportError as error:
    raise UserError(
      f'{field}: {path} needs pyarrow: {install("datasets")}, or make a .jsonl '
      'file of it'
    ) from error
  check(path, field)
  try:
    rows = pyarrow.parquet.read_table(path).to_pylist()
  except (OSError, ValueError) as error:  # All of pyarrow's are these.
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    raise UserError(
      f'{field}: {path} cannot be read ({reason}); copy it again'
    ) from error
  need(rows, f'{field}: {path} is empty; name a file of {field.split(".")[0]}')
  return rows


def read_records(path: str, field: str = PATH) -> list[Record]:
  """Records of a file: JSON lines, a JSON list, Parquet, or lines of text.

  A string in JSON is a record with the field `text`, a line of text one with
  the field `line`. Blank lines are passed over.

  Args:
    path: of the file.
    field: of the config that names it.

  Raises:
    UserError: names the file and, where it can, the line.
  """
  kind = kind_of(path)
  if kind == 'parquet':
    return [
      Record(f'row {i}', row) for i, row in enumerate(_parquet(path, field))
    ]
  text = read_text(path, field)
  if kind == 'list':
    contents = _parse(field, path, 'the text', text)
    if not isinstance(contents, list) or not contents:
      raise UserError(
        f'{field}: {path} must hold a list of prompts; objects one a '
        'line belong into a .jsonl file'
      )
    return [
      _record(field, path, f'entry {i}', content)
      for i, content in enumerate(contents, 1)
    ]
  records = []
  # Not splitlines: JSON strings may hold separators that it would cut at.
  for number, line in enumerate(text.split('\n'), 1):
    place, line = f'line {number}', line.strip()
    if not line:
      continue
    content = (
      _parse(field, path, place, line) if kind == 'lines' else {'line': line}
    )
    records.append(_record(field, path, place, content))
  return records


def load_dataset(name: str, split: str) -> list[Record]:
  """Records of a data set of the hub.

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
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    raise UserError(
      f'prompts.dataset: split {split!r} of {name!r} cannot be loaded '
      f'({reason}); check prompts.dataset and prompts.split'
    ) from error
  records = [Record(f'row {i}', dict(row)) for i, row in enumerate(rows)]
  if not records:
    raise UserError(f'prompts.dataset: split {split!r} of {name!r} is empty')
  return records
