"""OLMo 2 and 3 and EXAONE 4, normed behind attention and MLP, and OLMoE."""

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import (
  BIAS,
  DECODER,
  SOURCES,
  experts_row,
  like,
  usual_rows,
)
from specjax.checkpoints.families.qwen import QWEN3_MOE
from specjax.checkpoints.families.table import scale

_LAYER = 'model.layers.{}.'
_SOURCES = (
  SOURCES
  | scale(_LAYER + 'post_attention_layernorm', 'layer{}/post1')
  | scale(_LAYER + 'post_feedforward_layernorm', 'layer{}/post2')
)
_BEHIND = {'pre_norms': False, 'post_norms': True, 'qk_norm': True}
WINDOWS = values.window_by_layer_row(
  4096,
  lambda layer, known: bool((layer + 1) % known['sliding_window_pattern']),
  sizes=(('sliding_window_pattern', 4),),
)

OLMO2 = like(
  DECODER,
  'olmo2',
  'Olmo2ForCausalLM',
  rows=usual_rows(2048, BIAS, epsilon=1e-5),
  fixed=_BEHIND | {'qk_norm_whole': True},
  sources=_SOURCES,
)

OLMO3 = like(
  OLMO2,
  'olmo3',
  'Olmo3ForCausalLM',
  rows=usual_rows(
    2048,
    BIAS,
    rotary=rope.two_bases_row(5e5, 5e5),
    layers=(WINDOWS,),
    epsilon=1e-5,
  ),
)

OLMOE = like(
  QWEN3_MOE,
  'olmoe',
  'OlmoeForCausalLM',
  rows=usual_rows(
    4096,
    BIAS,
    experts_row('num_experts', 64, 8, normalize=False),
    epsilon=1e-5,
  ),
  fixed={'qk_norm': True, 'qk_norm_whole': True},
  only={'clip_qkv': None},
  harmless='',
)


def _read_windows(rest, known):
  """Layers without a window have no positions, unless none has a window."""
  if rest.get('layer_types') is not None:  # Then no pattern is looked at.
    rest.pop('sliding_window_pattern', None)
  if rest.get('sliding_window', 4096) is not None:
    windows = WINDOWS(rest, known)['windows']
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


EXAONE4 = like(
  OLMO2,
  'exaone4',
  'Exaone4ForCausalLM',
  rows=usual_rows(
    2048,
    layers=(_read_windows,),
    epsilon=1e-5,
    kv_heads=32,
  ),
  fixed=_BEHIND,
)

FAMILIES = (OLMO2, OLMO3, EXAONE4, OLMOE)
