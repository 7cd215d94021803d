"""Sizes and options of EAGLE heads; what they mean is in `models.eagle`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from specjax.models import overrides
from specjax.models.config import TransformerConfig
from specjax.models.rotary import Scaling

LINEAR, PAIR = 'linear', 'pair'
ACTIVATIONS = {
  'silu': nn.silu,
  'relu': nn.relu,
  'gelu_pytorch_tanh': nn.gelu,
}
USUAL = ('usual',)
# What may be normed, see `Sizes`, and which joins have it.
NORMS = {
  'token': (LINEAR, PAIR),
  'feature': (LINEAR, PAIR),
  'residual': (PAIR,),
  'layer': (LINEAR,),
  'taps': (LINEAR, PAIR),
  'fused': (LINEAR, PAIR),
  'last': (LINEAR, PAIR),
  'carried': (LINEAR, PAIR),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Of a head, and its options.

  Attributes:
    version: 1 or 3.
    taps: layers of the target that it reads; version 1 reads the last.
    width: of its layer.
    num_heads: of attention, likewise the next three.
    join: how token and feature come together. `linear` maps both to one input
      of the layer; with `pair` attention reads both side by side, and the layer
      adds its output to the feature alone, as published heads of version 3 do.
    join_bias: of that map.
    feature_first: whether the feature comes before the token there.
    norms: what is normed: `token` and `feature` that are joined; with `linear`
      what the `layer` reads; with `pair` the `residual`, so that the layer adds
      its output to the normed feature; the target's `taps`, each by itself, or
      all of them, to be `fused`; the `last` feature, before the unembedding,
      and what is `carried` to the next step, which is then that. By default
      token, feature, layer (of `linear`) and last (of version 3).
    final_norm: whether version 1 reads features behind the target's last norm.
    projects: whether version 1 maps what its layer says to a feature; else it
      is one.
    own_embedding: whether tokens have embeddings of its own.
    own_unembedding: or logits; by default those of version 3.
    draft_vocab: tokens that have a logit of its own; 0: all, see `small_head`.
    rope_theta: base of its rotary positions, and
    rope_scaling: how they are scaled; neither is the target's.
    norm_eps: of its norms.
    qk_norm: as `TransformerConfig` has it, likewise the biases.
    activation: of its MLP, one of `ACTIVATIONS`.
  """

  version: int
  taps: tuple[int, ...]
  width: int = 256
  num_heads: int = 8
  num_kv_heads: int = 4
  head_dim: int = 32
  mlp_width: int = 512
  join: str = LINEAR
  join_bias: bool = False
  feature_first: bool = False
  norms: tuple[str, ...] = USUAL
  final_norm: bool = True
  projects: bool = True
  own_embedding: bool = False
  own_unembedding: bool | None = None
  draft_vocab: int = 0
  rope_theta: float = 10000.0
  rope_scaling: Scaling | None = None
  norm_eps: float = 1e-5
  qk_norm: bool = False
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  activation: str = 'silu'

  def __post_init__(self):
    if self.version not in (1, 3):
      raise ValueError(f'version must be 1 or 3, got {self.version}')
    if self.version == 1 and len(self.taps) != 1:
      raise ValueError(
        f'taps {self.taps}: version 1 reads one layer, the last; use version 3'
      )
    if self.join not in (LINEAR, PAIR):
      raise ValueError(f'join must be {LINEAR} or {PAIR}, got {self.join!r}')
    if self.activation not in ACTIVATIONS:
      raise ValueError(
        f'activation must be one of {", ".join(ACTIVATIONS)}, got '
        f'{self.activation!r}'
      )
    last = self.version == 3
    if self.norms == USUAL:
      given = {'layer': self.join == LINEAR, 'last': last}
      usual = ('token', 'feature', 'layer', 'last')
      norms = tuple(name for name in usual if given.get(name, True))
      object.__setattr__(self, 'norms', norms)
    if self.own_unembedding is None:
      object.__setattr__(self, 'own_unembedding', last)
    self._check_norms()
    if self.draft_vocab and not self.own_unembedding:
      raise ValueError('draft_vocab is of a head with logits of its own')

  def _check_norms(self):
    for name in self.norms:
      if self.join not in NORMS.get(name, ()):
        raise ValueError(
          f'norms has {name!r}, which the join {self.join!r} has not'
        )
    alone = {'taps', 'fused'}
    if alone <= {*self.norms}:
      raise ValueError('norms has taps and fused: choose one of them')
    if self.version == 1 and alone & {*self.norms}:
      raise ValueError('norms has taps or fused, which version 1 has not')
    if 'carried' in self.norms and 'last' not in self.norms:
      raise ValueError('norms has carried, but not last, which it would carry')


def sizes_of(config: Mapping[str, Any]) -> Sizes:
  """The sizes that a head's config.json names; options have defaults."""
  names = [field.name for field in dataclasses.fields(Sizes)]
  known = {name: config[name] for name in names if name in config}
  for name in ('taps', 'norms'):
    if name in known:
      known[name] = tuple(known[name])
  return Sizes(**known)


# Norms that a wrong reading may add, since they have no weights of their own.
_FREE = ('residual', 'carried')


def _other_norms(sizes: Sizes, there: Sizes) -> dict[str, dict[str, Any]]:
  """One norm less, or one more that has weights or needs none."""
  found: dict[str, dict[str, Any]] = {}
  for name in sizes.norms:
    rest = tuple(n for n in sizes.norms if n != name)
    if name == 'last':  # What is carried is this one.
      rest = tuple(n for n in rest if n != 'carried')
    found[f'without the norm {name!r}'] = {'norms': rest}
  for name in dict.fromkeys((*there.norms, *_FREE)):
    possible = sizes.join in NORMS[name]
    if name == 'carried':
      possible = 'last' in sizes.norms
    if possible and name not in sizes.norms:
      more = tuple(n for n in NORMS if n in (*sizes.norms, name))
      found[f'with the norm {name!r}'] = {'norms': more}
  return found


def near(
  sizes: Sizes, there: Sizes, target: TransformerConfig
) -> dict[str, dict[str, Any]]:
  """Other readings of a head's weights, one mistake away.

  Args:
    sizes: as it is read.
    there: that its files name, whose weights it has.
    target: that it drafts for.

  Returns:
    Fields with other values, by what they say. No reading needs weights that
    the head has not.
  """
  found = overrides.other_taps(sizes.taps, target.num_layers)
  found |= _other_norms(sizes, there)
  order = 'token' if sizes.feature_first else 'feature'
  found[f'{order} first'] = {'feature_first': not sizes.feature_first}
  if sizes.version == 1:
    name = 'behind' if not sizes.final_norm else 'before'
    found[f"features {name} the target's last norm"] = {
      'final_norm': not sizes.final_norm
    }
  return found | overrides.other_positions(
    sizes.rope_theta, sizes.rope_scaling, target
  )
