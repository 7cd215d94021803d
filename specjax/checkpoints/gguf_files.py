"""GGUF files as checkpoints: llama.cpp's form of a model in a single file.

A file becomes a folder in the user's cache, as a model of the Hub does: its
metadata as `config.json`, its tokenizer as transformers saves one, and a link
to the file itself, whose tensors are read from there. So whatever takes a
directory takes the folder.

Tensors get the names that they have in files of transformers, and what
llama.cpp's converter changed is changed back: rotary pairs of Llama's queries
and keys lie side by side there, and norms of Gemma are stored with 1 added.
Blocks of a few bits are read as the floats that they stand for.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import contextlib
import hashlib
import json
import mmap
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specjax import user_cache
from specjax.checkpoints import gguf_header
from specjax.checkpoints.files import (
  CONFIG,
  GENERATION,
  GGUF,
  TEMPLATE,
  CheckpointError,
)
from specjax.checkpoints.gguf_blocks import TYPES, Blocks, take_apart
from specjax.checkpoints.gguf_header import Header, Place, read_header
from specjax.errors import first_line, install
from specjax.models.rotary import Llama3

_TABLE = 'tensors.json'
_CODE = __file__, gguf_header.__file__
# Keys that change no logits.
_HARMLESS = ('rope.scaling.finetuned',)
_FLOATS = {'F32': np.float32, 'F16': np.float16}
_PART = re.compile(r'(.*)-\d{5}-of-(\d{5})\.gguf')
_LAYER = re.compile(r'blk\.(\d+)\.(.*)')
# Names of tensors, by those in the file.
_TOP = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
}
_ATTENTION = {
  'attn_norm': 'input_layernorm',
  'attn_q': 'self_attn.q_proj',
  'attn_k': 'self_attn.k_proj',
  'attn_v': 'self_attn.v_proj',
  'attn_qkv': 'self_attn.qkv_proj',
  'attn_output': 'self_attn.o_proj',
  'attn_q_norm': 'self_attn.q_norm',
  'attn_k_norm': 'self_attn.k_norm',
  'ffn_gate': 'mlp.gate_proj',
  'ffn_up': 'mlp.up_proj',
  'ffn_down': 'mlp.down_proj',
}
_NORMS = {'ffn_norm': 'post_attention_layernorm'}
_FOUR_NORMS = {
  'post_attention_norm': 'post_attention_layernorm',
  'ffn_norm': 'pre_feedforward_layernorm',
  'post_ffw_norm': 'post_feedforward_layernorm',
}


class _Architecture(NamedTuple):
  """The differences of an architecture's files.

  attributes(metadata) -> attributes of `config.json` of it alone.
  """

  attributes: Callable[['_Metadata'], dict[str, Any]] = lambda _: {}
  layer: dict[str, str] = _ATTENTION | _NORMS
  pairs: bool = False  # Rotary pairs of queries and keys lie side by side.
  plus_one: bool = False  # Norms are stored with 1 added.


class _Metadata(NamedTuple):
  """The keys of a file, read by name."""

  path: pathlib.Path
  keys: dict[str, Any]
  architecture: str
  asked: set[str]  # full names of the keys that were looked at

  def get(self, key: str, default: Any = None) -> Any:
    """Returns a value; `{}` in the key is the architecture."""
    name = key.format(self.architecture)
    self.asked.add(name)
    value = self.keys.get(name, default)
    # 1e-05 in 32 bits is no 1e-05 in 64: the shortest number that it can be.
    return float(str(np.float32(value))) if isinstance(value, float) else value

  def need(self, key: str) -> Any:
    value = self.get(key)
    if value is None:
      raise CheckpointError(
        f'{self.path} has no {key.format(self.architecture)}, or it is no '
        'number; convert the model again'
      )
    return value


def _windows(m: _Metadata) -> dict[str, Any]:
  window = m.get('{}.attention.sliding_window')
  return {} if window is None else {'sliding_window': window}


def _gemma(m: _Metadata, layers_of_27b: int) -> dict[str, Any]:
  """Attributes of Gemma 2 and 3, of which files lack the scale of queries."""
  width = head_dim = m.need('{}.attention.key_length')
  if m.need('{}.block_count') == layers_of_27b:
    width = m.need('{}.embedding_length') // m.need('{}.attention.head_count')
  return _windows(m) | {
    'head_dim': head_dim,
    'query_pre_attn_scalar': width,
    'hidden_activation': 'gelu_pytorch_tanh',
  }


def _gemma2(m: _Metadata) -> dict[str, Any]:
  return _gemma(m, 46) | {
    'attn_logit_softcapping': m.get('{}.attn_logit_softcapping', 50.0),
    'final_logit_softcapping': m.get('{}.final_logit_softcapping', 30.0),
  }


def _gemma3(m: _Metadata) -> dict[str, Any]:
  made = _gemma(m, 62) | {
    'sliding_window_pattern': 6,
    'rope_local_base_freq': 10_000.0,
  }
  factor = m.get('{}.rope.scaling.factor')
  if factor is not None:
    made['rope_scaling'] = {'rope_type': 'linear', 'factor': factor}
  return made


ARCHITECTURES = {
  'llama': _Architecture(pairs=True),
  'qwen2': _Architecture(),
  'qwen3': _Architecture(),
  'gemma2': _Architecture(_gemma2, _ATTENTION | _FOUR_NORMS, plus_one=True),
  'gemma3': _Architecture(_gemma3, _ATTENTION | _FOUR_NORMS, plus_one=True),
  'phi3': _Architecture(
    _windows, _ATTENTION | _NORMS | {'ffn_up': 'mlp.gate_up_proj'}
  ),
}
_MODEL_TYPES = {'gemma3': 'gemma3_text'}


def _package(path: pathlib.Path) -> Any:
  """Imports the package that reads a file.

  Raises:
    CheckpointError: it is not installed.
  """
  try:
    import gguf
  except ImportError:
    raise CheckpointError(
      f'{path} is read by the package gguf, which is not installed: '
      f'{install("gguf")}'
    ) from None
  return gguf


def _read_header(path: pathlib.Path) -> Header:
  _package(path)
  part = _PART.fullmatch(path.name)
  if part and int(part[2]) > 1:
    raise CheckpointError(
      f'{path} is one of {int(part[2])} parts: join them first, by llama.cpp '
      '(llama-gguf-split --merge)'
    )
  try:
    return read_header(path)
  except (OSError, ValueError) as error:
    raise CheckpointError(
      f'{path} is truncated or damaged ({error}); copy it again'
    ) from None


def _metadata(path: pathlib.Path, header: Header) -> _Metadata:
  name = header.keys.get('general.architecture')
  if name not in ARCHITECTURES:
    raise CheckpointError(
      f'{path}: the architecture {name!r} is not read from GGUF files; those '
      f'that are: {", ".join(ARCHITECTURES)}'
    )
  return _Metadata(path, header.keys, name, set())


def _scaling(m: _Metadata) -> dict[str, Any]:
  """Attributes of rotary scaling, as far as they are in keys."""
  kind = m.get('{}.rope.scaling.type', 'none')
  factor = m.get('{}.rope.scaling.factor')
  original = m.get('{}.rope.scaling.original_context_length')
  if factor is None or kind == 'none' or m.architecture == 'gemma3':
    return {}
  if kind not in ('linear', 'yarn'):
    raise CheckpointError(
      f'{m.path}: rope.scaling.type {kind!r} is not read; use the checkpoint '
      'that the file was made from'
    )
  made = {'rope_type': kind, 'factor': factor}
  if kind == 'yarn' and original is not None:
    made['original_max_position_embeddings'] = original
  return {'rope_scaling': made}


def _llama3(m: _Metadata, found: Place | None) -> dict[str, Any]:
  """Attributes of Llama 3's scaling, of which files keep the divisors alone.

  Raises:
    CheckpointError: the divisors are those of no published model.
  """
  if found is None:
    return {}
  (half,), kind = found.shape, _FLOATS[found.kind]
  divisors = np.fromfile(m.path, kind, half, offset=found.begin)
  theta = m.get('{}.rope.freq_base', 10_000.0)
  plain = theta ** (-np.arange(half) / half)
  for factor in (8.0, 32.0):
    scaling = Llama3(factor, 1.0, 4.0, 8192)
    frequencies, _ = scaling(theta, 2 * half, 0)
    if np.allclose(plain / np.asarray(frequencies), divisors, rtol=1e-3):
      return {
        'rope_scaling': {
          'rope_type': 'llama3',
          'factor': factor,
          'low_freq_factor': 1.0,
          'high_freq_factor': 4.0,
          'original_max_position_embeddings': 8192,
        }
      }
  raise CheckpointError(
    f'{m.path}: rope_freqs.weight is the scaling of no Llama 3 that was '
    'published; use the checkpoint that the file was made from'
  )


def _describe(m: _Metadata, tensors: dict[str, Place]) -> dict[str, Any]:
  """Returns `config.json` of a file."""
  path, names = m.path, set(tensors)
  for name in ('rope_factors_long.weight', 'rope_factors_short.weight'):
    if name in names:
      raise CheckpointError(
        f'{path}: {name} (LongRoPE) is not read; use the checkpoint that the '
        'file was made from'
      )
  layers = m.need('{}.block_count')
  if layers > len(names):
    raise CheckpointError(
      f'{path}: {m.architecture}.block_count is {layers}, but the file has '
      f'{len(names)} tensors; copy it again'
    )
  heads = m.need('{}.attention.head_count')
  width = m.need('{}.embedding_length')
  made = {
    'model_type': _MODEL_TYPES.get(m.architecture, m.architecture),
    'vocab_size': m.get('{}.vocab_size')
    or len(m.get('tokenizer.ggml.tokens', ())),
    'hidden_size': width,
    'num_hidden_layers': layers,
    'num_attention_heads': heads,
    'num_key_value_heads': m.get('{}.attention.head_count_kv', heads),
    'intermediate_size': m.need('{}.feed_forward_length'),
    'max_position_embeddings': m.need('{}.context_length'),
    'rms_norm_eps': m.need('{}.attention.layer_norm_rms_epsilon'),
    'rope_theta': m.get('{}.rope.freq_base', 10_000.0),
    'tie_word_embeddings': 'output.weight' not in names,
  }
  head_dim = m.get('{}.attention.key_length')
  if head_dim is not None and m.architecture != 'phi3':
    made['head_dim'] = head_dim
  if m.architecture == 'llama':
    made |= {'attention_bias': 'blk.0.attn_q.bias' in names, 'mlp_bias': False}
  if m.architecture == 'qwen3':
    made['attention_bias'] = False
  made |= _scaling(m) | _llama3(m, tensors.get('rope_freqs.weight'))
  made |= ARCHITECTURES[m.architecture].attributes(m)
  _refuse_unknown(m, head_dim or width // heads)
  ends = [m.get(f'tokenizer.ggml.{x}_token_id') for x in ('eos', 'eot')]
  ends = sorted({x for x in ends if x is not None})
  return made | ({'eos_token_id': ends} if ends else {})


def _refuse_unknown(m: _Metadata, head_dim: int) -> None:
  """Refuses keys of the architecture that nobody looked at.

  Raises:
    CheckpointError: there is one, or not all of a head is turned or read.
  """
  for key in ('{}.rope.dimension_count', '{}.attention.value_length'):
    found = m.get(key, head_dim)
    if found != head_dim:
      raise CheckpointError(
        f'{m.path}: {key.format(m.architecture)} is {found}, and heads have '
        f'{head_dim} entries; use the checkpoint that the file was made from'
      )
  own = {key for key in m.keys if key.startswith(f'{m.architecture}.')}
  harmless = {f'{m.architecture}.{key}' for key in _HARMLESS}
  if unknown := sorted(own - m.asked - harmless):
    raise CheckpointError(
      f'{m.path}: keys that are not read: {", ".join(unknown[:8])}; use the '
      'checkpoint that the file was made from'
    )


def _code() -> str:
  """Returns the code that reads files: what other code makes may differ."""
  return ''.join(pathlib.Path(x).read_text() for x in _CODE)


def _save_tokenizer(m: _Metadata, folder: pathlib.Path) -> None:
  """Saves the tokenizer of a file as transformers does.

  Models of a family have the same one, but for the template of a chat. To make
  it takes a second, so that it is made once and copied.
  """
  if m.get('tokenizer.ggml.model') is None:
    return
  # Takes seconds to import, and files without a tokenizer do not need it.
  from transformers import PreTrainedTokenizerFast, __version__
  from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

  names = mapping.GGUF_TOKENIZER_MAPPING['tokenizer']
  told = {name: m.get(f'tokenizer.{key}') for key, name in names.items()}
  told = {name: value for name, value in told.items() if value is not None}
  special = {}
  for name, key in (
    *(('bos_token', 'bos'), ('eos_token', 'eos')),
    *(('unk_token', 'unknown'), ('pad_token', 'padding')),
  ):
    place = m.get(f'tokenizer.ggml.{key}_token_id')
    if place is not None:
      special[name] = told['tokens'][place]
  pieces = told['tokenizer_type'] == 'llama'  # SentencePiece
  adds = m.get('tokenizer.ggml.add_bos_token', pieces)
  if template := m.get('tokenizer.chat_template'):
    (folder / TEMPLATE).write_text(template, 'utf-8')
  facts = _code(), __version__, m.architecture, told, special, adds
  digest = hashlib.sha256(repr(facts).encode()).hexdigest()
  mark = folder / f'tokenizer.{digest[:16]}'
  for other in user_cache.folder('gguf').glob(f'*/*/{mark.name}'):
    with contextlib.suppress(OSError):  # Another process may delete it.
      for name in (mark.name, *other.read_text().split()):
        shutil.copyfile(other.with_name(name), folder / name)
      return
  backend, _ = mapping.convert_gguf_tokenizer(m.architecture, told)
  if adds and 'bos_token' in special:
    _begin_with(backend, special['bos_token'])
  made = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
  mark.write_text(
    '\n'.join(map(os.path.basename, made.save_pretrained(folder)))
  )


def _begin_with(tokenizer: Any, token: str) -> None:
  from tokenizers.processors import TemplateProcessing

  tokenizer.post_processor = TemplateProcessing(
    single=f'{token} $A',
    pair=f'{token} $A {token} $B',
    special_tokens=[(token, tokenizer.token_to_id(token))],
  )


def folder_of(path: pathlib.Path) -> pathlib.Path:
  """Returns the folder that stands for a file, and makes it at first.

  Raises:
    CheckpointError: the file is damaged, or of a model that is not read.
  """
  path = path.absolute()
  state = path.stat()
  facts = f'{path} {state.st_size} {state.st_mtime_ns} {_code()}'
  key = hashlib.sha256(facts.encode()).hexdigest()[:16]
  folder = user_cache.folder('gguf') / key / path.stem
  if folder.is_dir():
    return folder
  header = _read_header(path)
  try:
    m = _metadata(path, header)
    config = _describe(m, header.tensors)
    table = _table(m, header.tensors)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
      made = pathlib.Path(scratch, folder.name)
      made.mkdir()
      _save_tokenizer(m, made)
      (made / CONFIG).write_text(json.dumps(config, indent=2) + '\n')
      (made / _TABLE).write_text(json.dumps(table))
      ends = {k: v for k, v in config.items() if k == 'eos_token_id'}
      (made / GENERATION).write_text(json.dumps(ends) + '\n')
      (made / GGUF).symlink_to(path)
      try:
        made.rename(folder)
      except OSError:
        if not folder.is_dir():  # Another process may have been faster.
          raise
    _forget_others(folder, path)
  except CheckpointError:
    raise
  except Exception as error:  # Of a damaged file, nearly anything.
    reason = first_line(error)
    raise CheckpointError(
      f'{path} cannot be read as a model ({type(error).__name__}: {reason}); '
      'copy it again, or convert it anew'
    ) from error
  return folder


def _forget_others(folder: pathlib.Path, path: pathlib.Path) -> None:
  """Deletes older folders of a file, and folders of files that are gone."""
  for other in folder.parents[1].glob('*/*'):
    link = other / GGUF
    stale = link.is_symlink() and (link.readlink() == path or not link.exists())
    if stale and other != folder:
      shutil.rmtree(other.parent, ignore_errors=True)


def _table(m: _Metadata, tensors: dict[str, Place]) -> dict[str, Any]:
  """Returns where the tensors of a file are, by their names in transformers.

  Kept in the folder, so that the header need not be read again.
  """
  kind = ARCHITECTURES[m.architecture]
  made: dict[str, Any] = {}
  unknown = []
  for stored, place in tensors.items():
    name = _name(stored, kind)
    if name is None:
      unknown.append(stored)
      continue
    pairs = re.search(r'attn_([qk])\.', stored) if kind.pairs else None
    heads = m.need('{}.attention.head_count')
    if pairs and pairs[1] == 'k':
      heads = m.get('{}.attention.head_count_kv', heads)
    made[name] = place._asdict() | {
      'pairs': heads if pairs else 0,
      'plus': float(kind.plus_one and stored.endswith('norm.weight')),
    }
  if unknown:
    raise CheckpointError(
      f'{m.path}: tensors that are not read: {", ".join(unknown[:8])}; use the '
      'checkpoint that the file was made from'
    )
  return made


class _Slice:
  """A tensor of an open file, dequantised where it is indexed."""

  def __init__(self, memory: np.ndarray, place: dict[str, Any]):
    self._memory, self._place = memory, place

  def get_shape(self) -> list[int]:
    return self._place['shape']

  def get_dtype(self) -> str:
    # What is stored in fewer bits is read into sixteen on an accelerator.
    kind = self._place['kind']
    return kind if kind in _FLOATS else 'BF16'

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    from gguf import GGMLQuantizationType, quants

    data = self._rows(index[0])
    if self._place['kind'] not in _FLOATS:
      data = quants.dequantize(data, GGMLQuantizationType[self._place['kind']])
    if len(self._place['shape']) > 1:
      data = data[(slice(None), *index[1:])]
    return data - np.asarray(1, data.dtype) if self._place['plus'] else data

  def _rows(self, rows: Any) -> np.ndarray:
    """Returns rows as they are stored, in the order of transformers."""
    from gguf import GGMLQuantizationType, quants

    kind, shape = self._place['kind'], self._place['shape']
    begin = self._place['begin']
    data = self._memory[begin : begin + self._place['length']]
    if kind in _FLOATS:
      data = data.view(_FLOATS[kind]).reshape(shape)
    else:
      data = data.reshape(
        quants.quant_shape_to_byte_shape(shape, GGMLQuantizationType[kind])
      )
    if heads := self._place['pairs']:
      order = np.arange(shape[0]).reshape(heads, -1, 2)
      rows = order.swapaxes(1, 2).ravel()[rows]
    return data[rows]

  def take_apart(self, rows: slice) -> Blocks:
    """Returns the integers and scales of rows of a matrix of few bits."""
    return take_apart(self._rows(rows), self._place['kind'])


class Gguf:
  """An open file, used as an open safetensors file is.

  Args:
    link: to the file, in its folder.

  Raises:
    CheckpointError: the file is not there any more, or the package gguf is not
      installed.
  """

  def __init__(self, link: pathlib.Path):
    _package(link.readlink())
    self._places = json.loads(link.with_name(_TABLE).read_text())
    try:
      with link.open('rb') as file:
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = os.fstat(file.fileno())
    except FileNotFoundError:
      raise CheckpointError(
        f'{link.readlink()} is not there any more; name the file where it is'
      ) from None
    # Of what is mapped, whatever takes its place in the folder later.
    times = found.st_mtime_ns, found.st_ctime_ns
    self.identity = str(link.resolve()), found.st_ino, found.st_size, *times

  def keys(self) -> list[str]:
    return [*self._places]

  def get_slice(self, name: str) -> _Slice:
    return _Slice(np.frombuffer(self._map, np.uint8), self._places[name])

  def sample(self, name: str) -> Blocks | None:
    """Returns the parts of one block of a matrix, read as zeros.

    They show bits and groups. None: it is no matrix of few bits.
    """
    place = self._places[name]
    if place['kind'] not in TYPES or len(place['shape']) != 2:
      return None
    size, _ = TYPES[place['kind']]
    return take_apart(np.zeros((1, size), np.uint8), place['kind'])

  def take_apart(self, name: str, rows: slice) -> Blocks:
    """Returns the integers and scales of rows of a matrix with a `sample`."""
    return self.get_slice(name).take_apart(rows)

  def let_go(self, name: str) -> None:
    """Unmaps the pages of a tensor, which is not read again."""
    begin, length = (self._places[name][key] for key in ('begin', 'length'))
    page = begin % mmap.PAGESIZE
    self._map.madvise(mmap.MADV_DONTNEED, begin - page, length + page)


def _name(name: str, kind: _Architecture) -> str | None:
  """Returns the name of a tensor in files of transformers; None: none."""
  if name == 'rope_freqs.weight':
    return 'model.rotary_emb.inv_freq'  # Which follows from the configuration.
  layer = _LAYER.fullmatch(name)
  if layer is None:
    return _TOP.get(name)
  part, _, ending = layer[2].rpartition('.')
  known = kind.layer.get(part)
  if known is None or ending not in ('weight', 'bias'):
    return None
  return f'model.layers.{layer[1]}.{known}.{ending}'
