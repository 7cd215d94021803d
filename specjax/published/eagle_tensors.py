"""The tensors of published EAGLE heads, and the parameters made of them."""

from typing import Any

import numpy as np

from specjax.checkpoints.files import CheckpointError
from specjax.families.table import GROUPS, KEEP, LINEAR, WAYS, Tensors
from specjax.models import eagle_sizes, small_head
from specjax.published.formats import Files, Made

FC_NORM = 'fc_norm.'  # before the numbers of norms of the target's layers


def vocabulary(files: Files, vocab: int) -> dict[str, Any]:
  """What of the vocabulary the head's logits are about, as options."""
  tensors = files.tensors
  if 'lm_head.weight' not in tensors:
    return {'own_unembedding': False}
  count = tensors['lm_head.weight'].shape[0]
  if count == vocab:
    return {'own_unembedding': True}
  if 'd2t' not in tensors:
    raise CheckpointError(
      f'{files.directory}: lm_head has {count} of {vocab} tokens, and d2t, '
      'which says of which, is missing'
    )
  for name, size in (('d2t', count), ('t2d', vocab)):
    if name in tensors and tensors[name].shape != (size,):
      raise CheckpointError(
        f'{files.directory}: {name} has shape {tensors[name].shape}, and '
        f'lm_head {count} of {vocab} tokens: they are of different heads'
      )
  return {'own_unembedding': True, 'draft_vocab': count}


def _places(d2t: np.ndarray, t2d: np.ndarray | None, vocab: int) -> np.ndarray:
  """Places of the target's tokens, from offsets of the head's."""
  ids = np.arange(len(d2t)) + d2t.astype(np.int64)
  where = small_head.places(ids, vocab)
  if t2d is not None and not np.array_equal(where < len(d2t), t2d.astype(bool)):
    raise ValueError(
      'd2t and t2d disagree: they name different tokens of the target, so that '
      'one of them is damaged or of another head'
    )
  return where


def sources(files: Files, layer: str, fused: str, config) -> dict[str, Any]:
  """Of every parameter that a configuration has."""
  sizes, tensors = eagle_sizes.sizes_of(config), files.tensors
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
    'embedding': (sizes.own_embedding, KEEP, 'embed_tokens.weight'),
    'unembedding': (bool(sizes.own_unembedding), LINEAR, 'lm_head.weight'),
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
  for i in range(len([name for name in tensors if FC_NORM in name])):
    options[f'norm_taps_{i}/scale'] = True, KEEP, f'{FC_NORM}{i}.weight'
  for key, (here, split, name) in options.items():
    if here:
      found[key] = split, (name,)
  if sizes.qkv_bias:
    found['layer/qkv/b'] = GROUPS, tuple(x + 'bias' for x in qkv)
  if sizes.mlp_bias:
    found['layer/up/b'] = WAYS, tuple(x + 'bias' for x in up)
  made: dict[str, Any] = {k: Tensors(*v) for k, v in found.items()}
  if sizes.draft_vocab:
    vocab = config['vocab_size']
    names = tuple(name for name in ('d2t', 't2d') if name in tensors)
    made['places'] = Made(lambda d2t, t2d=None: _places(d2t, t2d, vocab), names)
  return made
