"""Sizes and options of DFlash heads; what they mean is in `models.dflash`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.models import overrides
from specjax.models.config import TransformerConfig
from specjax.models.rotary import Scaling


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Of a head; its width is the target's.

  Attributes:
    taps: layers of the target that it reads.
    block: tokens of a block in training: the last committed one and masks.
    layers: of its own.
    num_heads: of attention, likewise the next two.
    mlp_width: of each layer.
    mask_token: token of the target whose embedding is the mask's; None: the
      mask has an embedding of its own.
    rope_theta: base of the rotary positions, and
    rope_scaling: how they are scaled; neither is the target's.
    norm_eps: of all norms.
    qk_norm: whether queries and keys are normed, as in Qwen3.
    bias: whether attention has biases.
    causal: whether a mask sees no later ones while it drafts.
    own_embedding: whether tokens have embeddings of its own.
    own_unembedding: or logits.
    draft_vocab: tokens that have a logit of its own; 0: all, see `small_head`.
  """

  taps: tuple[int, ...]
  block: int = 8
  layers: int = 2
  num_heads: int = 8
  num_kv_heads: int = 4
  head_dim: int = 32
  mlp_width: int = 512
  mask_token: int | None = None
  rope_theta: float = 10000.0
  rope_scaling: Scaling | None = None
  norm_eps: float = 1e-5
  qk_norm: bool = True
  bias: bool = False
  causal: bool = False
  own_embedding: bool = False
  own_unembedding: bool = False
  draft_vocab: int = 0

  def __post_init__(self):
    if self.block < 2:
      raise ValueError(
        f'block is {self.block}: it holds the last token and at least one mask'
      )
    if self.layers < 1:
      raise ValueError(f'layers must be at least 1, got {self.layers}')
    if self.draft_vocab and not self.own_unembedding:
      raise ValueError('draft_vocab is of a head with logits of its own')


def sizes_of(config: Mapping[str, Any]) -> Sizes:
  """The sizes that a head's config.json names; options have defaults."""
  names = [field.name for field in dataclasses.fields(Sizes)]
  known = {name: config[name] for name in names if name in config}
  return Sizes(**known | {'taps': tuple(config['taps'])})


def near(sizes: Sizes, target: TransformerConfig) -> dict[str, dict[str, Any]]:
  """Other readings of a head's weights, one mistake away; see `readings`."""
  name = 'masks see later ones' if sizes.causal else 'masks see no later ones'
  return {
    **overrides.other_taps(sizes.taps, target.num_layers),
    **overrides.other_positions(sizes.rope_theta, sizes.rope_scaling, target),
    name: {'causal': not sizes.causal},
  }
