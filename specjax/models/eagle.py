"""The module of EAGLE heads: one decoder layer over features and tokens.

At place i it reads the target's feature of token i and token i + 1, and says
what the feature of token i + 1 will be, hence what token i + 2 is.

  version 1  predicts the target's last feature, and the target's head reads
             it (Li et al., arXiv:2401.15077)
  version 3  fuses features of several layers and predicts tokens alone,
             through a head of its own (arXiv:2503.01840)

Tokens and features are normed before they are joined, as in version 3.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax import cache as caches
from specjax.models.config import TransformerConfig
from specjax.models.layers import Layer, Norm
from specjax.models.linear import Linear, declare_weight, multiply
from specjax.models.transformer import Model
from specjax.types import KV


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Of a head.

  Attributes:
    version: 1 or 3.
    taps: layers of the target that it reads; version 1 reads the last.
    width: of its layer.
    num_heads: of attention, likewise the next three.
  """

  version: int
  taps: tuple[int, ...]
  width: int = 256
  num_heads: int = 8
  num_kv_heads: int = 4
  head_dim: int = 32
  mlp_width: int = 512

  def __post_init__(self):
    if self.version not in (1, 3):
      raise ValueError(f'version must be 1 or 3, got {self.version}')
    if self.version == 1 and len(self.taps) != 1:
      raise ValueError(
        f'taps {self.taps}: version 1 reads one layer, the last; use version 3'
      )


def sizes_of(config: Mapping[str, Any]) -> Sizes:
  """The sizes that a head's config.json names."""
  names = [field.name for field in dataclasses.fields(Sizes)]
  known = {name: config[name] for name in names}
  return Sizes(**known | {'taps': tuple(config['taps'])})


class Eagle(nn.Module):
  """The head's own weights; see `Sizes`."""

  sizes: Sizes
  target: TransformerConfig
  config: TransformerConfig  # of its one layer

  def setup(self):
    c, e = self.config, self.target.width
    first = self.sizes.version == 1
    carried = e if first else c.width
    self.join = self._linear(e + carried, c.width)
    self.norm_token = Norm(c, e)
    self.norm_feature = Norm(c, carried)
    self.layer = Layer(c, 0)
    if first:
      self.out = self._linear(c.width, e)
    else:
      self.fuse = self._linear(len(self.sizes.taps) * e, c.width)
      self.norm = Norm(c)
      self.unembedding = declare_weight(
        self,
        'unembedding',
        c.columns,
        c.width,
        (c.vocab_size,),
        (None, None),
        c.width**-0.5,
      )

  def _linear(self, inputs, outputs):
    columns = self.config.columns
    return Linear(
      columns, inputs, (outputs,), (None, None), False, inputs**-0.5
    )

  def read(self, hidden):
    """Features [..., F] of those of the target [..., len(taps), E]."""
    if self.sizes.version == 1:
      return hidden[..., 0, :]
    return self.fuse(hidden.reshape(*hidden.shape[:-2], -1))

  def __call__(self, tokens, features, *attention):
    """Features [B, T, F] after embedded tokens [B, T, E], and the flight.

    Args:
      tokens: their embeddings.
      features: [B, T, F] of the tokens before them.
      *attention: as of `models.layers.Layer`, from the positions on.
    """
    x = [self.norm_token(tokens), self.norm_feature(features)]
    x, flight = self.layer(self.join(jnp.concatenate(x, -1)), *attention)
    return self.out(x) if self.sizes.version == 1 else x, flight

  def head(self, features):
    return multiply(self.norm(features), self.unembedding)

  def everything(self, tokens, hidden, *attention):
    """Touches all parameters."""
    features = self(tokens, self.read(hidden), *attention)[0]
    return features if self.sizes.version == 1 else self.head(features)


@dataclasses.dataclass(frozen=True)
class Head:
  """A head for a target, as pure functions of `Params`."""

  target: Model
  sizes: Sizes

  @functools.cached_property
  def config(self) -> TransformerConfig:
    s, t = self.sizes, self.target.config
    return TransformerConfig(
      vocab_size=t.vocab_size,
      width=s.width,
      num_layers=1,
      num_heads=s.num_heads,
      num_kv_heads=s.num_kv_heads,
      head_dim=s.head_dim,
      mlp_width=s.mlp_width,
      max_positions=t.max_positions,
      columns=t.columns,
      attention=t.attention,
    )

  @functools.cached_property
  def module(self) -> Eagle:
    return Eagle(self.sizes, self.target.config, self.config)

  def init(self, key):
    """Fresh weights."""
    e = self.target.config.width
    none = jnp.zeros(1, jnp.int32)
    made = self.module.init(
      key,
      jnp.zeros((1, 1, e)),
      jnp.zeros((1, 1, len(self.sizes.taps), e)),
      none[None],
      None,
      none,
      jnp.ones((1, 1, 1), bool),
      None,
      0,
      method=Eagle.everything,
    )
    return nn.meta.unbox(made['params'])

  def embed(self, params, tokens):
    return params.target['embedding'][tokens]

  def read(self, params, hidden):
    """Features [..., F] from those of the target's layers."""
    if self.sizes.version == 1:
      return self.target.norm(params.target, hidden[..., 0, :])
    own = {'params': params.drafter}
    return self.module.apply(own, hidden, method=Eagle.read)

  def forward(self, params, tokens, features, *attention):
    """Features [B, T, F] one place further, and the flight."""
    own = {'params': params.drafter}
    tokens = self.embed(params, tokens)
    return self.module.apply(own, tokens, features, *attention)

  def logits(self, params, features):
    if self.sizes.version == 1:
      return self.target.head(params.target, features)
    own = {'params': params.drafter}
    return self.module.apply(own, features, method=Eagle.head)

  def unroll(self, params, tokens, hidden, steps: int) -> list[jax.Array]:
    """Features [B, T-1, F] of each step of the training-time test.

    In step j pair i reads what step j - 1 made of pair i - 1. Of the text it
    sees the pairs up to i - j with the target's features, and from there on its
    own, one of each step: as when drafting began j tokens before. Pairs i < j
    are not to be used.

    Args:
      params: `Params`.
      tokens: [B, T].
      hidden: [B, T, len(taps), E] of the target.
      steps: 5 in version 3.
    """
    features = self.read(params, hidden[:, :-1])
    tokens = tokens[:, 1:]
    batch, count = tokens.shape
    row, column = jnp.arange(count)[:, None], jnp.arange(count)
    at = jnp.broadcast_to(column, (batch, count))
    flight = caches.empty(self.config, batch, 0, features.dtype)[0]
    rest, more = ((0, 0), (0, 0)), (0, count)
    made = []
    for j in range(steps):
      own = [column == row - j + k for k in range(1, j + 1)]
      sees = jnp.concatenate([column <= row - j, *own], 1)
      sees = jnp.broadcast_to(sees, (batch, *sees.shape))
      flight = KV(
        jnp.pad(flight.k, (*rest, (0, 0), more)),
        jnp.pad(flight.v, (*rest, more, (0, 0))),
      )
      features, flight = self.forward(
        params, tokens, features, at, None, None, sees, flight, j * count
      )
      made.append(features)
      features = jnp.roll(features, 1, 1)
    return made

  def shapes(self, columns: int):
    """Shapes of the weights, in blocks of so many columns, or whole for 0."""
    config = dataclasses.replace(self.target.config, columns=columns)
    alike = Head(self.target._replace(config=config), self.sizes)
    return jax.eval_shape(alike.init, jax.random.key(0))
