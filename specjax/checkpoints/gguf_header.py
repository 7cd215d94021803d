"""The header of a GGUF file: its keys, and where its tensors lie.

A header is read in one pass. The reader of the package gguf makes arrays of
every value, which takes seconds for a vocabulary, and it believes counts and
lengths that do not fit.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import pathlib
import struct
from typing import Any, NamedTuple

_MAGIC = b'GGUF'
_VERSIONS = 2, 3
# Types of values, by their numbers.
_FORMS = dict(zip((*range(8), 10, 11, 12), 'BbHhIif?Qqd', strict=True))
_TEXT, _ARRAY = 8, 9
_SIZE = struct.Struct('<Q')  # of a text
# Far more than a model has: each becomes an object of about 100 bytes.
_MOST_ENTRIES = 1 << 16
_MOST_VALUES = 1 << 21


class Place(NamedTuple):
  """A tensor's place in a file.

  Attributes:
    begin: its first byte.
    length: bytes.
    shape: rows first.
    kind: name of its type, 'Q4_K' for example.
  """

  begin: int
  length: int
  shape: list[int]
  kind: str


class Header(NamedTuple):
  """The keys of a file with their values, and the tensors by their names."""

  keys: dict[str, Any]
  tensors: dict[str, Place]


class _Cursor:
  """Reads values from the front of a file to its back."""

  def __init__(self, data: mmap.mmap):
    self.data, self.place, self.values = data, 0, 0
    self.end = len(data)

  def skip(self, size: int) -> int:
    """Goes on by so many bytes; returns where they begin."""
    begin = self.place
    self.place += size
    if self.place > self.end:
      raise ValueError('its header reaches behind its end')
    return begin

  def take(self, form: str) -> tuple[Any, ...]:
    """Reads numbers, written as `struct` has them."""
    form = f'<{form}'
    begin = self.skip(struct.calcsize(form))
    return struct.unpack_from(form, self.data, begin)

  def text(self) -> str:
    (size,) = _SIZE.unpack_from(self.data, self.skip(_SIZE.size))
    begin = self.skip(size)
    return self.data[begin : self.place].decode()

  def value(self) -> Any:
    """Reads a value behind its type."""
    (kind,), count = self.take('I'), None
    if kind == _ARRAY:
      kind, count = self.take('IQ')
    self.values += 1 if count is None else count
    if self.values > _MOST_VALUES:
      raise ValueError(f'arrays of {self.values} values')
    if kind == _TEXT:
      read = [self.text() for _ in range(1 if count is None else count)]
    elif kind in _FORMS:
      read = list(self.take(f'{1 if count is None else count}{_FORMS[kind]}'))
    else:
      raise ValueError(f'a value of type {kind}')
    return read if count is not None else read[0]

  def tensor(self) -> tuple[str, Place]:
    """Reads a tensor's name and place, counted from the first tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name, (axes,) = self.text(), self.take('I')
    *shape, number, begin = self.take(f'{axes}QIQ')
    kind = GGMLQuantizationType(number)
    values, size = GGML_QUANT_SIZES[kind]
    if shape and shape[0] % values:
      raise ValueError(f'{name} has rows of {shape[0]} values in {kind.name}')
    length = math.prod(shape) // values * size
    return name, Place(begin, length, shape[::-1], kind.name)


def _insert(made: dict[str, Any], name: str, value: Any) -> None:
  if name in made:
    raise ValueError(f'{name} is there twice')
  made[name] = value


def read_header(path: pathlib.Path) -> Header:
  """Reads the header of a file, whose counts and lengths need not be true.

  Raises:
    ValueError: it is damaged, or the file is shorter than it says.
  """
  with path.open('rb') as file:
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  keys: dict[str, Any] = {}
  tensors: dict[str, Place] = {}
  with data:
    cursor = _Cursor(data)
    magic, version = cursor.take('4sI')
    if magic != _MAGIC or version not in _VERSIONS:
      raise ValueError(f'it begins with {magic!r}, version {version}')
    count, entries = cursor.take('QQ')
    if count + entries > _MOST_ENTRIES:
      raise ValueError(f'{entries} keys and {count} tensors')
    for _ in range(entries):
      _insert(keys, cursor.text(), cursor.value())
    for _ in range(count):
      _insert(tensors, *cursor.tensor())
    unit = keys.get('general.alignment', 32)
    if type(unit) is not int or unit < 1 or unit & (unit - 1):
      raise ValueError(f'general.alignment is {unit!r}')
    first = -(-cursor.place // unit) * unit
    for name, place in tensors.items():
      begin = first + place.begin
      if begin + place.length > len(data):
        raise ValueError(f'{name} ends behind it')
      tensors[name] = place._replace(begin=begin)
  return Header(keys, tensors)
