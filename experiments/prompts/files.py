"""Records of files and of data sets of the hub."""

import gzip
import json
import pathlib
import zlib
from typing import Any, NamedTuple

from experiments.errors import UserError, need


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
  """'lines' or 'list' of JSON, or 'text'."""
  ending = pathlib.Path(path.removesuffix('.gz')).suffix
  return {'.jsonl': 'lines', '.json': 'list'}.get(ending, 'text')


def check(path: str) -> None:
  """Refuses what is no file: nothing ever comes out of a pipe.

  Raises:
    UserError: it is missing, a folder, or something else.
  """
  file = pathlib.Path(path)
  need(
    file.exists(),
    f'prompts.path: {path} does not exist; name a file of prompts',
  )
  need(
    file.is_file(),
    f'prompts.path: {path} is no regular file; name a file of prompts',
  )


def read_text(path: str) -> str:
  """The content of a file, decompressed where it ends in .gz.

  Raises:
    UserError: it is missing, damaged, no UTF-8 or empty.
  """
  check(path)
  try:
    content = pathlib.Path(path).read_bytes()
    if path.endswith('.gz'):
      content = gzip.decompress(content)
    text = content.decode('utf-8')
  except (OSError, EOFError, zlib.error) as error:
    raise UserError(
      f'prompts.path: {path} cannot be read ({error}); copy it again'
    ) from None
  except UnicodeDecodeError as error:
    raise UserError(
      f'prompts.path: {path} is no UTF-8 text ({error}); convert it first'
    ) from None
  if not text.strip():
    raise UserError(f'prompts.path: {path} is empty; name a file of prompts')
  return text


def _record(path: str, place: str, content: Any) -> Record:
  if isinstance(content, str):
    content = {'text': content}
  if not isinstance(content, dict):
    raise UserError(
      f'prompts.path: {place} of {path} holds a {type(content).__name__}; it '
      'must be an object or a string'
    )
  return Record(place, content)


def _parse(path: str, place: str, text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError as error:
    raise UserError(
      f'prompts.path: {place} of {path} is no valid JSON ({error}); mend or '
      'remove it'
    ) from None


def read_records(path: str) -> list[Record]:
  """Records of a file: JSON lines, a JSON list, or lines of text.

  A string in JSON is a record with the field `text`, a line of text one with
  the field `line`. Blank lines are passed over.

  Raises:
    UserError: names the file and, where it can, the line.
  """
  text, kind = read_text(path), kind_of(path)
  if kind == 'list':
    contents = _parse(path, 'the text', text)
    if not isinstance(contents, list) or not contents:
      raise UserError(
        f'prompts.path: {path} must hold a list of prompts; objects one a '
        'line belong into a .jsonl file'
      )
    return [
      _record(path, f'entry {i}', content)
      for i, content in enumerate(contents, 1)
    ]
  records = []
  # Not splitlines: JSON strings may hold separators that it would cut at.
  for number, line in enumerate(text.split('\n'), 1):
    place, line = f'line {number}', line.strip()
    if not line:
      continue
    content = _parse(path, place, line) if kind == 'lines' else {'line': line}
    records.append(_record(path, place, content))
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
      "prompts.dataset needs the extra 'datasets': pip install -e "
      "'.[datasets]', or give a file with prompts.path"
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
