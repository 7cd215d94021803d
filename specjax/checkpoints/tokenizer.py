"""The tokenizer of a checkpoint, and the tokens that end its texts."""

import filecmp
import os
import pathlib
from typing import Any

from specjax.checkpoints import own
from specjax.checkpoints.files import (
  CONFIG,
  GENERATION,
  GGUF,
  TEMPLATE,
  CheckpointError,
  read_json,
)
from specjax.checkpoints.hub import locate
from specjax.errors import first_line

# Any one of these is enough for a tokenizer.
_TOKENIZER = ('tokenizer.json', 'tokenizer.model', 'vocab.json', 'vocab.txt')
# These besides say what tokens there are.
_MORE = (
  'merges.txt',
  'added_tokens.json',
  'special_tokens_map.json',
  'tokenizer_config.json',
)


@own.or_of(lambda target: target.tokenizer is not None)
def has_tokenizer(path: str | os.PathLike) -> bool:
  """Returns true if a checkpoint holds the files of a tokenizer.

  Raises:
    CheckpointError: there is no such checkpoint.
  """
  directory = locate(path)
  return any((directory / name).is_file() for name in _TOKENIZER)


@own.or_of(own.tokenizer_of)
def load_tokenizer(path: str | os.PathLike, known: Any = None) -> Any:
  """Loads the tokenizer of a checkpoint.

  Args:
    path: of the checkpoint.
    known: a tokenizer that was loaded. It is returned where the files of both
      have the same tokens, whatever their chat templates are: a large one takes
      more than a second to load.

  Raises:
    CheckpointError: there is none, or it cannot be read.
  """
  directory = locate(path)
  # Without its files transformers makes up an empty tokenizer.
  if not has_tokenizer(directory):
    raise CheckpointError(
      f'{directory} has no tokenizer; add one of {", ".join(_TOKENIZER)}'
    )
  place = getattr(known, 'name_or_path', '')
  if place and _same_files(directory, pathlib.Path(place)):
    return known
  # Takes seconds to import, and nothing else here needs it.
  import transformers

  try:
    if (directory / GGUF).is_symlink():
      return _saved(directory)
    return transformers.AutoTokenizer.from_pretrained(
      directory, local_files_only=True
    )
  except Exception as error:  # It raises nearly anything on a damaged file.
    reason = first_line(error)
    raise CheckpointError(
      f'{directory}: the tokenizer cannot be read ({reason}); copy its files '
      'again'
    ) from error


def _saved(directory: pathlib.Path) -> Any:
  """Loads the tokenizer of a GGUF file, which was saved by us.

  `from_pretrained` would read all tokens in Python, too: twice the time.
  """
  import transformers

  options = read_json(directory / _MORE[-1])
  template = directory / TEMPLATE
  if template.is_file():
    options['chat_template'] = template.read_text('utf-8')
  return transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(directory / _TOKENIZER[0]),
    name_or_path=str(directory),
    **options,
  )


def _same_files(one: pathlib.Path, other: pathlib.Path) -> bool:
  """Returns true if the tokens of two directories are in equal files."""
  for name in _TOKENIZER + _MORE:
    mine, theirs = one / name, other / name
    if mine.is_file() != theirs.is_file():
      return False
    if mine.is_file() and not filecmp.cmp(mine, theirs, shallow=False):
      return False
  return True


@own.or_of(lambda target: target.eos)
def eos_ids(path: str | os.PathLike) -> tuple[int, ...]:
  """Returns the token ids that end a text; empty where none are given.

  `generation_config.json` comes before `config.json`, as for `generate`.

  Raises:
    CheckpointError: the directory or `config.json` is missing or damaged.
  """
  directory = locate(path)
  files = [directory / CONFIG]
  if (directory / GENERATION).is_file():
    files.insert(0, directory / GENERATION)
  for file in files:
    content = read_json(file)
    value = content.get('eos_token_id')
    if value is None:  # Where the language model is a part of a model.
      value = (content.get('text_config') or {}).get('eos_token_id')
    if value is None:
      continue
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
      raise CheckpointError(
        f'{file}: eos_token_id = {value!r} must be a token id or a list of them'
      )
    return tuple(ids)
  return ()
