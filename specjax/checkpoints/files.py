"""Files of a checkpoint: where they are, and what is in them."""

import dataclasses
import json
import pathlib
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from specjax.errors import UserError, first_line, install

CONFIG = 'config.json'
GENERATION = 'generation_config.json'
TEMPLATE = 'chat_template.jinja'
WEIGHTS = 'model.safetensors'
# Of weights in eight bits: what config.json calls them, and what the name of a
# tensor's scales ends with.
QUANTIZED = 'specjax-int8'
SCALE = '_scale'
INDEX = 'model.safetensors.index.json'
GGUF = 'model.gguf'  # a link to a file, see `gguf_files`
# The same as torch.save pickles them; read of heads alone.
PICKLED = 'pytorch_model.bin'
PICKLED_INDEX = 'pytorch_model.bin.index.json'
# Floats of eight bits, as headers of safetensors files call them.
EIGHT = {
  'F8_E4M3': ml_dtypes.float8_e4m3fn,
  'F8_E5M2': ml_dtypes.float8_e5m2,
  'F8_E8M0': ml_dtypes.float8_e8m0fnu,
}
# What these headers call other types of arrays and of torch.
CODES = {
  'float64': 'F64',
  'float32': 'F32',
  'float16': 'F16',
  'bfloat16': 'BF16',
  'uint8': 'U8',
  'int8': 'I8',
  'int32': 'I32',
  'int64': 'I64',
  'bool': 'BOOL',
}


class CheckpointError(UserError):
  """A checkpoint cannot be used; the message names the file and a remedy."""


class Tensor(NamedTuple):
  """A tensor that has not been read yet."""

  file: Any  # an open `safetensors.safe_open` or `Pickled`; None: not here
  path: pathlib.Path
  name: str  # in the file
  shape: tuple[int, ...]
  dtype: str

  def read(self, index: tuple[slice, ...]) -> np.ndarray:
    """A part of it; no other is read."""
    return self.file.get_slice(self.name)[index]


def read_json(file: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(file.read_text('utf-8'))
  except OSError:
    raise CheckpointError(
      f'{file} is missing or unreadable; the directory must be a complete '
      'checkpoint'
    ) from None
  except ValueError as error:
    raise CheckpointError(
      f'{file} is no valid JSON ({error}); copy it again'
    ) from None
  if not isinstance(content, dict):
    raise CheckpointError(f'{file} must hold a JSON object; copy it again')
  return content


def _list_files(
  directory: pathlib.Path, of_head: bool
) -> dict[pathlib.Path, set[str]]:
  """Files of the weights, and the names that an index puts into each."""
  if (directory / GGUF).is_symlink():
    return {directory / GGUF: set()}
  pairs = [(WEIGHTS, INDEX)]
  if of_head:
    pairs += [(PICKLED, PICKLED_INDEX)]
    for form in ('*.safetensors', '*.pt'):
      alone = list(directory.glob(form))
      pairs += [(path.name, '') for path in alone if len(alone) == 1]
  for single, index in pairs:
    if (directory / single).is_file():
      return {directory / single: set()}
    if index and (directory / index).is_file():
      return _complete_shards(directory / index)
  _refuse_others(directory, of_head)
  return {}


def _complete_shards(index: pathlib.Path) -> dict[pathlib.Path, set[str]]:
  shards = list_shards(index)
  missing = sorted(path.name for path in shards if not path.is_file())
  if missing:
    raise CheckpointError(
      f'{index.parent}: {shorten(missing)} of {index.name} missing; copy the '
      'checkpoint again'
    )
  return shards


def list_shards(index: pathlib.Path) -> dict[pathlib.Path, set[str]]:
  """Files that an index lists, and the names that it puts into each.

  Raises:
    CheckpointError: it is damaged.
  """
  places = read_json(index).get('weight_map')
  if not isinstance(places, dict) or not places:
    raise CheckpointError(f'{index} has no weight_map; copy it again')
  shards: dict[pathlib.Path, set[str]] = {}
  for name, shard in places.items():
    inside = isinstance(shard, str) and pathlib.PurePath(shard).name == shard
    if not inside or not shard:
      raise CheckpointError(
        f'{index}: weight_map puts {name} into {shard!r}, which is no file '
        'beside it; copy it again'
      )
    shards.setdefault(index.parent / shard, set()).add(name)
  return shards


def _refuse_others(directory, of_head):
  others = [*directory.glob('*.bin'), *directory.glob('*.pt*')]
  if others and not of_head:
    raise CheckpointError(
      f'{directory / WEIGHTS} is missing; {min(others).name} is pickled, and '
      'unpickling can run any code: where you trust it, load it with '
      'transformers (from_pretrained) and write safetensors with '
      'save_pretrained'
    )
  raise CheckpointError(
    f'{directory / WEIGHTS} is missing, and so is {INDEX}; other formats must '
    'be converted to safetensors first'
  )


def open_tensors(
  directory: pathlib.Path, of_head: bool = False
) -> dict[str, Tensor]:
  """Reads the headers of all files, which stay open while a tensor is there.

  Args:
    directory: of the weights.
    of_head: whether they are those of a head: then they may be pickled, and the
      one file of its form there may have any name, safetensors before others.

  Raises:
    CheckpointError: a file is missing or damaged, or lacks a tensor that the
      index puts there.
  """
  tensors: dict[str, Tensor] = {}
  for path, expected in sorted(_list_files(directory, of_head).items()):
    file, eight = _open(path), None
    names = set(file.keys())
    if expected - names:
      raise CheckpointError(
        f'{path} lacks tensors that the index puts there: '
        f'{shorten(list(expected - names))}; copy both again'
      )
    for name in names:
      part = file.get_slice(name)
      dtype, source = part.get_dtype(), file
      if dtype in EIGHT:
        source = eight = eight or _Mapped(path)
      shape = tuple(part.get_shape())
      tensors[name] = Tensor(source, path, name, shape, dtype)
  return tensors


def _open(path: pathlib.Path) -> Any:
  try:
    if path.name == GGUF:
      from specjax.checkpoints import gguf_files  # Which imports this module.

      return gguf_files.Gguf(path)
    if path.suffix != '.safetensors':
      return Pickled(path)
    return safetensors.safe_open(path, 'numpy')
  except OSError as error:
    raise CheckpointError(
      f'{path} is missing or unreadable ({error}); copy it again'
    ) from None
  except safetensors.SafetensorError as error:
    raise CheckpointError(
      f'{path} is truncated or damaged ({error}); copy it again'
    ) from None


class _Mapped:
  """Floats of eight bits in a safetensors file, which numpy has no name for."""

  def __init__(self, path: pathlib.Path):
    with path.open('rb') as file:
      size = int.from_bytes(file.read(8), 'little')
      self._header = json.loads(file.read(size))
    self._path, self._begin = path, 8 + size

  def get_slice(self, name: str) -> np.ndarray:
    entry = self._header[name]
    return np.memmap(
      self._path,
      EIGHT[entry['dtype']],
      'r',
      self._begin + entry['data_offsets'][0],
      tuple(entry['shape']),
    )


class Pickled:
  """An open file of torch.save, used as an open safetensors file is.

  torch reads it, which restores tensors and plain containers and refuses any
  other code (`weights_only`). Numbers are mapped, and copied where a tensor is
  indexed.

  Args:
    path: of the file.

  Raises:
    CheckpointError: torch is not installed or does not read the file, or it
      holds anything but tensors by name.
  """

  def __init__(self, path: pathlib.Path):
    try:
      import torch
    except ImportError:
      raise CheckpointError(
        f'{path} was written by torch.save, and torch, which reads it, is not '
        f'installed: {install("parity")}, or write safetensors'
      ) from None
    try:
      content = torch.load(
        path, map_location='cpu', weights_only=True, mmap=True
      )
    except OSError:
      raise
    except Exception as error:  # Damaged files raise whatever they mean.
      raise CheckpointError(
        f'torch does not read {path} ({first_line(error)}): copy it again, or, '
        'where you trust it, load it with torch and write safetensors'
      ) from None
    self._tensors = content if isinstance(content, dict) else {}
    if not self._tensors or not all(
      isinstance(x, torch.Tensor)
      and x.layout is torch.strided
      and _type_of(x) in CODES
      for x in self._tensors.values()
    ):
      raise CheckpointError(
        f'{path} holds more than tensors by name: write those alone with '
        'torch.save, or as safetensors'
      )

  def keys(self) -> list[str]:
    return list(self._tensors)

  def get_slice(self, name: str) -> '_PickledTensor':
    return _PickledTensor(self._tensors[name].detach())


def _type_of(tensor: Any) -> str:
  """Returns the name of the type of a tensor of torch."""
  return str(tensor.dtype).removeprefix('torch.')


@dataclasses.dataclass(frozen=True)
class _PickledTensor:
  """A tensor of torch that has not been read yet."""

  tensor: Any

  def get_shape(self) -> list[int]:
    return list(self.tensor.shape)

  def get_dtype(self) -> str:
    return CODES[_type_of(self.tensor)]

  def __getitem__(self, index) -> np.ndarray:
    part = self.tensor[index]
    if self.get_dtype() != 'BF16':
      return np.array(part.numpy())
    # numpy has no such type of its own; its bits are those of float32.
    return part.float().numpy().astype(ml_dtypes.bfloat16)


def shorten(names: list[str], most: int = 8) -> str:
  """Lists some of the names."""
  more = [f'and {len(names) - most} more'] if len(names) > most else []
  return ', '.join(sorted(names)[:most] + more) or 'none'
