"""EAGLE heads as others publish them, with random weights, and what they say.

`say` restates the published modules in numpy, over whole texts and without a
cache: SafeAILab/EAGLE (cnets1.py for version 1, cnets.py for version 3), the
speculators library, and SpecForge.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from specjax.models import transformer
from tests.support import directories
from tests.support.heads_in_numpy import below, layer, rms_norm

V, E, LAYERS = 23, 8, 9
HEADS, KV, D, MLP = 2, 1, 4, 12
TARGET = transformer.build(
  transformer.TransformerConfig(
    vocab_size=V, width=E, num_layers=LAYERS, num_heads=2, num_kv_heads=1,
    head_dim=4, mlp_width=16, max_positions=512,
  ),
)  # fmt: skip
LAYER = {
  'model_type': 'llama', 'hidden_size': E, 'intermediate_size': MLP,
  'num_attention_heads': HEADS, 'num_key_value_heads': KV,
  'num_hidden_layers': 1, 'vocab_size': V, 'rms_norm_eps': 1e-5,
  'max_position_embeddings': 2048,
}  # fmt: skip
IDS = 'eagle_aux_hidden_state_layer_ids'


@dataclasses.dataclass(frozen=True)
class Layout:
  """A published layout."""

  version: int  # of EAGLE
  prefix: str = 'midlayer.'  # of the layer's tensors
  # Of config.json, beside those of the layer.
  attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
  # Of the layer, beside or instead of `LAYER`.
  layer: dict[str, Any] = dataclasses.field(default_factory=dict)
  nested: bool = False  # whether those are an object of their own
  draft_vocab: int = 0  # tokens with a logit; 0: all
  width: int = E  # of the head
  parts: tuple[str, ...] = ()  # optional tensors that it has
  taps: tuple[int, ...] = (1, 3, 5)  # 2, L / 2 and L - 3, each less one.
  layers: int = 1  # of its own
  mask: int | None = None  # token of P-EAGLE; None: drafts token after token

  def config(self) -> dict[str, Any]:
    layer = LAYER | {'hidden_size': self.width} | self.layer
    layer |= {'num_hidden_layers': self.layers}
    if self.nested:
      return {'transformer_layer_config': layer, **self.attributes}
    return layer | self.attributes

  def prefix_of(self, layer: int) -> str:
    return f'layers.{layer}.' if layer else self.prefix

  def flag(self, name: str) -> bool:
    return bool(self.attributes.get(name))


SPECULATORS = {
  'speculators_model_type': 'eagle3',
  'architectures': ['Eagle3Speculator'],
  'speculators_config': {'verifier': {'name_or_path': 'owner/target'}},
}
_SPECULATORS = {'prefix': 'layers.0.', 'nested': True}
LAYOUTS = {
  'EAGLE-1': Layout(
    1, 'layers.0.', {'bias': True}, parts=('bias', 'embed_tokens'), taps=(8,),
  ),
  'EAGLE-1 without bias': Layout(
    1, 'layers.0.', {'bias': False}, {'rope_theta': 5e5}, taps=(8,)
  ),
  'EAGLE-1 of speculators': Layout(
    1, 'transformer.', {'speculators_model_type': 'eagle'}, nested=True,
    parts=('bias',), taps=(8,),
  ),
  'EAGLE-3': Layout(
    3, attributes={'draft_vocab_size': 7}, draft_vocab=7
  ),
  'EAGLE-3, all tokens': Layout(
    3, attributes={'draft_vocab_size': V}, parts=('embed_tokens',)
  ),
  'SpecForge': Layout(
    3,
    attributes={
      'architectures': ['LlamaForCausalLMEagle3'],
      'eagle_config': {IDS: [0, 4, 7]},
    },
    layer={'rope_theta': 1e6, 'head_dim': 6},
    draft_vocab=9,
    taps=(0, 4, 7),
  ),
  'SpecForge, scaled': Layout(
    3,
    layer={'rope_scaling': {'rope_type': 'linear', 'factor': 4.0}},
    draft_vocab=9,
    taps=(1, 3, 5),
  ),
  'speculators': Layout(
    3, attributes=SPECULATORS | {IDS: None, 'norm_before_residual': True},
    draft_vocab=7, **_SPECULATORS,
  ),
  'speculators, Qwen3': Layout(
    3, attributes=SPECULATORS | {IDS: [1, 5, 9]}, draft_vocab=7,
    layer={'model_type': 'qwen3', 'head_dim': D}, taps=(0, 4, 8),
    parts=('qk_norm', 'qkv_bias', 'embed_tokens'), **_SPECULATORS,
  ),
  'speculators, 3.1': Layout(
    3, attributes=SPECULATORS | {'fc_norm': True, 'norm_output': True},
    draft_vocab=7, parts=('fc_norm',), **_SPECULATORS,
  ),
  'speculators, normed before fc': Layout(
    3, attributes=SPECULATORS | {'norm_before_fc': True},
    parts=('input_norm',), **_SPECULATORS,
  ),
  'wider than its target': Layout(
    3, attributes=SPECULATORS | {'target_hidden_size': E}, width=12,
    parts=('embed_tokens',), **_SPECULATORS,
  ),
  'P-EAGLE': Layout(
    3, attributes=SPECULATORS | {
      'speculators_model_type': 'peagle', 'architectures': ['PEagleSpeculator'],
      'mask_token_id': 5, 'norm_before_fc': True,
    },
    draft_vocab=7, layers=2, mask=5, parts=('embed_tokens', 'input_norm'),
    **_SPECULATORS,
  ),
  'P-EAGLE of vLLM': Layout(
    3, attributes={'parallel_drafting': True, 'ptd_token_id': 22}, mask=22,
  ),
}  # fmt: skip


def tensors(layout: Layout, seed: int = 0) -> dict[str, np.ndarray]:
  """Random weights by their published names."""
  random = np.random.default_rng(seed)
  width, head_dim = layout.width, layout.layer.get('head_dim', D)
  if 'head_dim' not in layout.layer:
    head_dim = width // HEADS
  third = layout.version == 3
  reads = 2 * width if third else width
  rows = {'q': HEADS * head_dim, 'k': KV * head_dim, 'v': KV * head_dim}
  shapes: dict[str, tuple[int, ...]] = {}
  for i in range(layout.layers):
    x = layout.prefix_of(i)
    shapes |= {
      f'{x}self_attn.o_proj.weight': (width, rows['q']),
      f'{x}mlp.gate_proj.weight': (MLP, width),
      f'{x}mlp.up_proj.weight': (MLP, width),
      f'{x}mlp.down_proj.weight': (width, MLP),
      f'{x}post_attention_layernorm.weight': (width,),
    }
    if i:
      shapes[f'{x}input_layernorm.weight'] = (width,)
    for name, count in rows.items():
      shape = count, width if i else reads
      shapes[f'{x}self_attn.{name}_proj.weight'] = shape
      if 'qkv_bias' in layout.parts:
        shapes[f'{x}self_attn.{name}_proj.bias'] = (count,)
    if 'qk_norm' in layout.parts:
      for name in 'qk':
        shapes[f'{x}self_attn.{name}_norm.weight'] = (head_dim,)
  x = layout.prefix
  if layout.mask is not None:
    shapes['mask_hidden'] = 1, 1, len(layout.taps) * E
  fc = 'fusion_fc' if x == 'transformer.' else 'fc'
  shapes[f'{fc}.weight'] = width, (len(layout.taps) * E if third else 2 * E)
  if 'bias' in layout.parts:
    shapes[f'{fc}.bias'] = (width,)
  if 'embed_tokens' in layout.parts:
    shapes['embed_tokens.weight'] = V, width
  if 'input_norm' in layout.parts:
    shapes['input_norm.weight'] = (len(layout.taps) * E,)
  if 'fc_norm' in layout.parts:
    shapes |= {f'fc_norm.{i}.weight': (E,) for i in range(len(layout.taps))}
  if third:
    shapes |= {
      f'{x}hidden_norm.weight': (width,),
      f'{x}input_layernorm.weight': (
        width if 'embed_tokens' in layout.parts else E,
      ),
      'norm.weight': (width,),
      'lm_head.weight': (layout.draft_vocab or V, width),
    }
  made = {
    name: (
      1 + 0.3 * random.normal(size=shape)
      if 'norm' in name
      else random.normal(size=shape) * (0.7 if third else 0.35)
    ).astype(np.float32)
    for name, shape in shapes.items()
  }
  if layout.draft_vocab:
    ids = np.sort(random.permutation(V)[: layout.draft_vocab])
    made['d2t'] = ids - np.arange(len(ids))
    made['t2d'] = np.isin(np.arange(V), ids)
  return made


def write(
  folder: pathlib.Path,
  layout: Layout,
  weights: dict[str, np.ndarray] | None = None,
  **changes: Any,
) -> pathlib.Path:
  """Writes a directory as it would be published; returns it."""
  weights = tensors(layout) if weights is None else weights
  return directories.write(folder, layout.config() | changes, weights)


class Restated:
  """A published head on whole texts, in float64."""

  def __init__(self, layout: Layout, weights, target):
    self.layout = layout
    self.w = {name: np.asarray(x, np.float64) for name, x in weights.items()}
    self.target = {
      'embedding': np.asarray(target['embedding'], np.float64),
      'unembedding': np.asarray(target['unembedding'], np.float64),
      'norm': np.asarray(target['norm']['scale'], np.float64),
    }

  def features(self, hidden):
    """What the pairs of a text read of the target's layers [T, taps, E]."""
    hidden = np.asarray(hidden, np.float64)
    if self.layout.version == 1:
      return rms_norm(hidden[:, 0], self.target['norm'])
    if 'fc_norm' in self.layout.parts:
      hidden = np.stack(
        [
          rms_norm(hidden[:, i], self.w[f'fc_norm.{i}.weight'])
          for i in range(hidden.shape[1])
        ],
        1,
      )
    hidden = hidden.reshape(len(hidden), -1)
    if 'input_norm' in self.layout.parts:
      hidden = rms_norm(hidden, self.w['input_norm.weight'])
    return hidden @ self.w['fc.weight'].T

  def through(self, features, tokens):
    """Features after all pairs of a feature and the token after it."""
    x, w = self.layout.prefix, self.w
    table = w.get('embed_tokens.weight', self.target['embedding'])
    embedded = table[tokens]
    if self.layout.version == 1:
      fc = 'fusion_fc' if x == 'transformer.' else 'fc'
      residual = np.concatenate([embedded, features], -1) @ w[fc + '.weight'].T
      residual = residual + w.get(fc + '.bias', 0)
      reads = residual
    else:
      normed = rms_norm(features, w[f'{x}hidden_norm.weight'])
      first = rms_norm(embedded, w[f'{x}input_layernorm.weight'])
      reads = np.concatenate([first, normed], -1)
      early = self.layout.flag('norm_before_residual')
      residual = normed if early else features
    h = self.layer(x, residual, reads)
    for i in range(1, self.layout.layers):
      x = self.layout.prefix_of(i)
      h = self.layer(x, h, rms_norm(h, w[f'{x}input_layernorm.weight']))
    if self.layout.flag('norm_output'):
      h = rms_norm(h, w['norm.weight'])
    return h

  def layer(self, prefix, residual, reads):
    """The stream after the layer with a prefix."""
    own, config = below(self.w, prefix), self.layout.layer
    theta = config.get('rope_theta', 1e4)
    factor = (config.get('rope_scaling') or {}).get('factor', 1)
    return layer(own, residual, reads, HEADS, theta, factor=factor)

  def logits(self, features):
    """Logits [V] after a feature; minus infinity where there are none."""
    if self.layout.version == 1:
      return features @ self.target['unembedding']
    if not self.layout.flag('norm_output'):
      features = rms_norm(features, self.w['norm.weight'])
    small = features @ self.w['lm_head.weight'].T
    if not self.layout.draft_vocab:
      return small
    logits = np.full(V, -np.inf)
    logits[(np.arange(len(small)) + self.w['d2t']).astype(int)] = small
    return logits

  def draft(self, tokens, hidden, drafted):
    """Logits [len(drafted) + 1, V] before and after each drafted token.

    Args:
      tokens: [T] of the text.
      hidden: [T, taps, E] of the target, of all tokens but the last.
      drafted: the tokens, one after the other.
    """
    features = self.features(hidden[: len(tokens) - 1])
    after, said = list(tokens[1:]), []
    if self.layout.mask is not None:
      return self.draft_at_once(features, after, len(drafted))
    for token in (*drafted, None):
      made = self.through(features, np.array(after))
      said.append(self.logits(made[-1]))
      features = np.concatenate([features, made[-1:]])
      after.append(token)
    return np.stack(said)

  def draft_at_once(self, features, after, masks):
    """Logits [masks + 1, V] after the last pair and after each mask."""
    hidden = self.w['mask_hidden'].reshape(1, len(self.layout.taps), E)
    features = [features, *[self.features(hidden)] * masks]
    tokens = np.array([*after, *[self.layout.mask] * masks])
    made = self.through(np.concatenate(features), tokens)
    return np.stack([self.logits(x) for x in made[-masks - 1 :]])
