"""OLMo 2 and 3 and EXAONE 4, normed behind attention and MLP, and OLMoE."""

import dataclasses

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.dense import epsilon_row
from specjax.checkpoints.families.llama import (
  LLAMA,
  SOURCES,
  attention_bias_row,
  experts_row,
  size_rows,
  tied_row,
)
from specjax.checkpoints.families.qwen import QWEN3_MOE
from specjax.checkpoints.families.table import KEEP, Row, Tensors

_LAYER = 'model.layers.{}.'
_SOURCES = SOURCES | {
  f'layer{{}}/{key}/scale': Tensors(
    KEEP, (_LAYER + f'post_{name}_layernorm.weight',)
  )
  for key, name in (('post1', 'attention'), ('post2', 'feedforward'))
}
_BEHIND = {'pre_norms': False, 'post_norms': True, 'qk_norm': True}
_REST = (values.SILU, epsilon_row(1e-5), tied_row(False))
WINDOWS = values.window_by_layer_row(
  4096,
  lambda layer, known: bool((layer + 1) % known['sliding_window_pattern']),
  sizes=(('sliding_window_pattern', 4),),
)

OLMO2 = dataclasses.replace(
  LLAMA,
  model_type='olmo2',
  architecture='Olmo2ForCausalLM',
  rows=(*size_rows(2048), rope.rope_row(), attention_bias_row(False), *_REST),
  fixed=_BEHIND | {'qk_norm_whole': True},
  only={},
  sources=_SOURCES,
)

OLMO3 = dataclasses.replace(
  OLMO2,
  model_type='olmo3',
  architecture='Olmo3ForCausalLM',
  rows=(
    *size_rows(2048),
    rope.two_bases_row(5e5, 5e5),
    WINDOWS,
    attention_bias_row(False),
    *_REST,
  ),
)


OLMOE = dataclasses.replace(
  QWEN3_MOE,
  model_type='olmoe',
  architecture='OlmoeForCausalLM',
  rows=(
    *size_rows(4096),
    rope.rope_row(),
    attention_bias_row(False),
    *_REST,
    experts_row('num_experts', 64, 8, normalize=False),
  ),
  fixed={'qk_norm': True, 'qk_norm_whole': True},
  only={'clip_qkv': None},
  harmless=frozenset(),
)


def _read_windows(rest, known):
  """Layers without a window have no positions, unless none has a window."""
  if rest.get('layer_types') is not None:  # Then no pattern is looked at.
    rest.pop('sliding_window_pattern', None)
  if rest.get('sliding_window', 4096) is not None:
    windows = WINDOWS.read(rest, known)['windows']
    return {'windows': windows, 'unturned': unturned(windows, known)}
  for name in ('sliding_window', 'sliding_window_pattern'):
    rest.pop(name, None)
  types = rest.pop('layer_types', None)
  if types not in (None, ['full_attention'] * known['num_layers']):
    raise ValueError(f'layer_types = {types!r}, but sliding_window is null')
  return {'windows': ()}


def unturned(windows: tuple, known: dict) -> tuple[int, ...]:
  """Returns the layers without a window, which have no positions."""
  layers = range(known['num_layers'])
  return tuple(i for i in layers if not windows or windows[i] is None)


def _write_windows(config):
  if not config.windows and not config.unturned:
    layers = ['full_attention'] * config.num_layers
    return {'sliding_window': None, 'layer_types': layers}
  return WINDOWS.write(config)


EXAONE4 = dataclasses.replace(
  OLMO2,
  model_type='exaone4',
  architecture='Exaone4ForCausalLM',
  rows=(
    *size_rows(2048, kv_heads=32),
    rope.rope_row(),
    Row(_read_windows, _write_windows),
    *_REST,
  ),
  fixed=_BEHIND,
)
