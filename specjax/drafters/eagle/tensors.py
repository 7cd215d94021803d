"""The tensors of published EAGLE heads, and the parameters made of them."""

from collections.abc import Collection
from typing import Any

from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Tensors,
)
from specjax.drafters.eagle.sizes import Sizes
from specjax.drafters.heads.published import vocabulary
from specjax.drafters.heads.published.formats import Made

FC_NORM = 'fc_norm.'  # before the numbers of norms of the target's layers


def sources(
  sizes: Sizes,
  vocab: int,
  names: Collection[str],
  layer: str,
  fused: str = 'fc',
) -> dict[str, Tensors | Made]:
  """Of every parameter that a head has.

  Args:
    sizes: of the head.
    vocab: tokens of the target.
    names: of all tensors.
    layer: before the names of the layer's.
    fused: before that of the map of the joined or fused features.
  """
  attention = f'{layer}self_attn.'
  qkv = [f'{attention}{x}_proj.' for x in 'qkv']
  up = [f'{layer}mlp.{x}_proj.' for x in ('gate', 'up')]
  found: dict[str, tuple[Any, tuple[str, ...]]] = {
    'layer/qkv/w': (GROUPS, tuple(x + 'weight' for x in qkv)),
    'layer/out/w': (LINEAR, (f'{attention}o_proj.weight',)),
    'layer/norm2/scale': (KEEP, (f'{layer}post_attention_layernorm.weight',)),
    'layer/up/w': (WAYS, tuple(x + 'weight' for x in up)),
    'layer/down/w': (LINEAR, (f'{layer}mlp.down_proj.weight',)),
  }
  third = sizes.version == 3
  found[f'{"fuse" if third else "join"}/w'] = LINEAR, (f'{fused}.weight',)
  options = {
    'join/b': (sizes.join_bias, KEEP, f'{fused}.bias'),
    'layer/q_norm/scale': (sizes.qk_norm, KEEP, f'{attention}q_norm.weight'),
    'layer/k_norm/scale': (sizes.qk_norm, KEEP, f'{attention}k_norm.weight'),
    'layer/out/b': (sizes.out_bias, KEEP, f'{attention}o_proj.bias'),
    'layer/down/b': (sizes.mlp_bias, KEEP, f'{layer}mlp.down_proj.bias'),
  }
  norms = {
    'token': ('norm_token', f'{layer}input_layernorm'),
    'feature': ('norm_feature', f'{layer}hidden_norm'),
    'fused': ('norm_fused', 'input_norm'),
    'last': ('norm', 'norm'),
  }
  for name, (key, tensor) in norms.items():
    here = name in sizes.norms
    options[f'{key}/scale'] = here, KEEP, f'{tensor}.weight'
  for i in range(sum(FC_NORM in name for name in names)):
    options[f'norm_taps_{i}/scale'] = True, KEEP, f'{FC_NORM}{i}.weight'
  for key, (here, split, name) in options.items():
    if here:
      found[key] = split, (name,)
  if sizes.qkv_bias:
    found['layer/qkv/b'] = GROUPS, tuple(x + 'bias' for x in qkv)
  if sizes.mlp_bias:
    found['layer/up/b'] = WAYS, tuple(x + 'bias' for x in up)
  made: dict[str, Tensors | Made] = {k: Tensors(*v) for k, v in found.items()}
  return made | vocabulary.sources(names, sizes, vocab)
