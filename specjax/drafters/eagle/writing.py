"""Writes EAGLE-3 heads in the form of the speculators library.

vLLM and SGLang serve that form. Of the options of a head it has those that
published ones have: attention that reads token and feature side by side, and
logits of its own. Any other head is refused.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
import safetensors.numpy

from specjax.arguments import check_number
from specjax.checkpoints.families import rope
from specjax.drafters.eagle import tensors as eagle_tensors
from specjax.drafters.eagle.sizes import PAIR, Sizes
from specjax.drafters.heads.published.formats import Made
from specjax.models.config import TransformerConfig

_LAYER = 'layers.0.'
_SWITCHES = {
  'norm_before_residual': 'residual',
  'norm_before_fc': 'fused',
  'fc_norm': 'taps',
  'norm_output': 'carried',
}


def _refuse(sizes: Sizes, target: TransformerConfig) -> None:
  """Refuses what the form cannot say.

  Raises:
    ValueError: names the option, and what to train instead.
  """
  wrong = {
    'version': sizes.version != 3,
    'join': sizes.join != PAIR,
    'norms': not {'token', 'feature', 'last'} <= {*sizes.norms},
    'own_unembedding': not sizes.own_unembedding,
    'qkv_bias': sizes.qkv_bias != sizes.out_bias,
    'mlp_bias': sizes.mlp_bias and sizes.qk_norm,
    'width': not sizes.own_embedding and sizes.width != target.width,
  }
  for name, refused in wrong.items():
    if refused:
      raise ValueError(
        f'{name} of the head is {getattr(sizes, name)!r}, which the form of '
        f"speculators does not have: train one with join = '{PAIR}', version 3 "
        f'and the width of its target, {target.width}'
      )


def _layer(sizes: Sizes, target: TransformerConfig) -> dict[str, Any]:
  """What config.json says of the layer."""
  rotary = rope.write_scaling(sizes.rope_scaling)
  return {
    'model_type': 'qwen3' if sizes.qk_norm else 'llama',
    'vocab_size': target.vocab_size,
    'hidden_size': sizes.width,
    'intermediate_size': sizes.mlp_width,
    'num_hidden_layers': 1,
    'num_attention_heads': sizes.num_heads,
    'num_key_value_heads': sizes.num_kv_heads,
    'head_dim': sizes.head_dim,
    'hidden_act': sizes.activation,
    'rms_norm_eps': sizes.norm_eps,
    'attention_bias': sizes.qkv_bias,
    'mlp_bias': sizes.mlp_bias,
    'max_position_embeddings': target.max_positions,
    'tie_word_embeddings': False,
    'rope_theta': sizes.rope_theta,
    'rope_scaling': None if sizes.rope_scaling is None else rotary,
    'rope_parameters': {'rope_theta': sizes.rope_theta} | rotary,
  }


def attributes(
  sizes: Sizes,
  target: TransformerConfig,
  verifier: str,
  architectures: tuple[str, ...] = (),
  tokens: int = 4,
  dtype: str = 'float16',
) -> dict[str, Any]:
  """The config.json of a head.

  Args:
    sizes: of the head.
    target: of its target.
    verifier: the name or the path by which an engine knows the target.
    architectures: of the target's config.json.
    tokens: that an engine drafts, unless it is told another number.
    dtype: of the weights.

  Raises:
    ValueError: the form does not have an option of the head, or `tokens` is no
      number of tokens.
  """
  check_number('tokens', tokens, 1)
  _refuse(sizes, target)
  method = {'proposal_type': 'greedy', 'speculative_tokens': tokens}
  return {
    'architectures': ['Eagle3Speculator'],
    'speculators_model_type': 'eagle3',
    'speculators_config': {
      'algorithm': 'eagle3',
      'default_proposal_method': 'greedy',
      'proposal_methods': [
        method | {'verifier_accept_k': 1, 'accept_tolerance': 0.0}
      ],
      'verifier': {
        'name_or_path': verifier,
        'architectures': list(architectures),
      },
    },
    'transformer_layer_config': _layer(sizes, target),
    'draft_vocab_size': sizes.draft_vocab or target.vocab_size,
    'target_hidden_size': target.width,
    # Of what a layer reads; ours are of what it returns.
    'eagle_aux_hidden_state_layer_ids': [tap + 1 for tap in sizes.taps],
    **{switch: name in sizes.norms for switch, name in _SWITCHES.items()},
    'tie_word_embeddings': False,
    'torch_dtype': dtype,
  }


def tensors(
  sizes: Sizes, vocab: int, params: Any, dtype: str = 'float16'
) -> dict[str, np.ndarray]:
  """The tensors of a head by their names.

  Args:
    sizes: of the head.
    vocab: tokens of its target.
    params: whole weights.
    dtype: of floats.
  """
  flat: Mapping[str, Any] = flax.traverse_util.flatten_dict(params, sep='/')
  names = [f'{eagle_tensors.FC_NORM}{i}.weight' for i in range(len(sizes.taps))]
  names = [*(names if 'taps' in sizes.norms else ()), 'd2t', 't2d']
  sources = eagle_tensors.sources(sizes, vocab, names, _LAYER)
  found: dict[str, np.ndarray] = {}
  for key, source in sources.items():
    value = np.asarray(flat[key])
    if isinstance(source, Made):
      found |= _vocabulary(value, sizes.draft_vocab)
      continue
    split, own = source
    parts = split.cut(value.astype(dtype), len(own))
    for name, part in zip(own, parts, strict=True):
      found[name] = np.ascontiguousarray(part)
  return found


def _vocabulary(places: np.ndarray, count: int) -> dict[str, np.ndarray]:
  """Which tokens of the target have a logit."""
  here = places < count
  ids = np.empty(count, np.int64)
  ids[places[here]] = np.flatnonzero(here)
  return {'d2t': ids - np.arange(count), 't2d': here}


def write_speculators(
  path: str | pathlib.Path,
  sizes: Sizes,
  params: Any,
  target: TransformerConfig,
  verifier: str,
  architectures: tuple[str, ...] = (),
  tokens: int = 4,
  dtype: str = 'float16',
) -> None:
  """Writes a head into a new directory, as vLLM and SGLang read it.

  Args:
    path: the directory; it must not exist.
    sizes: see `attributes`, likewise the others.
    params: whole weights.
    target: see there.
    verifier: see there.
    architectures: see there.
    tokens: see there.
    dtype: see there.

  Raises:
    ValueError: the form does not have an option of the head, or the place is
      taken.
  """
  config = attributes(sizes, target, verifier, architectures, tokens, dtype)
  folder = pathlib.Path(path)
  if folder.exists():
    raise ValueError(f'{folder} exists; remove it or write elsewhere')
  arrays = tensors(sizes, target.vocab_size, params, dtype)
  folder.mkdir(parents=True)
  (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
  safetensors.numpy.save_file(
    arrays, folder / 'model.safetensors', {'format': 'pt'}
  )
