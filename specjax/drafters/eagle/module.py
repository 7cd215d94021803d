"""The module of EAGLE heads: decoder layers over features and tokens.

At place i it reads the target's feature of token i and token i + 1, and says
what the feature of token i + 1 will be, hence what token i + 2 is.

  version 1  predicts the target's last feature, and the target's head reads
             it (Li et al., arXiv:2401.15077)
  version 3  fuses features of several layers and predicts tokens alone,
             through a head of its own (arXiv:2503.01840)

Behind the last pair a head of P-EAGLE reads masks, a token and a feature that
stand for those to come, and says all places in one pass (arXiv:2602.01469).

Where published heads differ from each other and from those that are trained
here, it is an option of `Sizes`; the defaults are of the latter.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import logsumexp

from specjax.drafters.heads import files, modules, overrides
from specjax.drafters.heads.formats import Kind
from specjax.models import cache as caches
from specjax.models import prefill
from specjax.models.config import Narrowed, TransformerConfig
from specjax.models.layers import Layer, Norm
from specjax.models.linear import Linear, declare, embed, multiply
from specjax.models.reduced_vocab_head import declare_places, ids, spread
from specjax.models.rotary import Scaling
from specjax.models.transformer import Model, Output

LINEAR, PAIR = 'linear', 'pair'
ACTIVATIONS = {'silu': nn.silu, 'relu': nn.relu, 'gelu_pytorch_tanh': nn.gelu}
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
  """The sizes of a head, and its options.

  Attributes:
    version: 1 or 3.
    taps: layers of the target that it reads; version 1 reads the last.
    width: of its layers.
    num_heads: of attention, likewise the next three.
    layers: of its own; one, but for some of P-EAGLE.
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
    draft_vocab: tokens that have a logit of its own; 0: all, see
      `reduced_vocab_head`.
    mask_token: of version 3, token that masks have, see above; None: the head
      drafts token after token.
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
  layers: int = 1
  join: str = LINEAR
  join_bias: bool = False
  feature_first: bool = False
  norms: tuple[str, ...] = USUAL
  final_norm: bool = True
  projects: bool = True
  own_embedding: bool = False
  own_unembedding: bool | None = None
  draft_vocab: int = 0
  mask_token: int | None = None
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
    if self.layers < 1:
      raise ValueError(f'layers must be at least 1, got {self.layers}')
    if self.mask_token is not None and self.version == 1:
      raise ValueError('mask_token is of version 3: leave it out')

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


# The sizes that a head's config.json names; options have defaults.
sizes_of = functools.partial(overrides.pick, Sizes)
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


def near(sizes: Sizes, there: Sizes, layers: int) -> dict[str, dict[str, Any]]:
  """Other readings of a head's weights, one mistake away.

  Args:
    sizes: as it is read.
    there: that its files name, whose weights it has.
    layers: of its target.

  Returns:
    Fields with other values, by what they say; rotary positions are not among
    them. No reading needs weights that the head has not.
  """
  found = overrides.other_taps(sizes.taps, layers)
  found |= _other_norms(sizes, there)
  order = 'token' if sizes.feature_first else 'feature'
  found[f'{order} first'] = {'feature_first': not sizes.feature_first}
  if sizes.version == 1:
    found |= overrides.other_norm('final_norm', sizes.final_norm)
  return found


class Eagle(nn.Module):
  """The head's own weights; see `Sizes`."""

  sizes: Sizes
  target: TransformerConfig
  config: TransformerConfig  # of its layers

  def setup(self):
    s, c, e = self.sizes, self.config, self.target.width
    first = s.version == 1
    token = c.width if s.own_embedding else e
    carried = e if first else c.width
    linear = functools.partial(Linear, rows=c.device.rows)
    self.layers = [
      Layer(c, i, name=f'layer{i or ""}') for i in range(c.num_layers)
    ]
    if s.join == LINEAR:
      self.join = linear(token + carried, (c.width,), bias=s.join_bias)
    if 'token' in s.norms:
      self.norm_token = Norm(c, token)
    if 'feature' in s.norms:
      self.norm_feature = Norm(c, carried)
    if first and s.projects:
      self.out = linear(c.width, (e,))
    if not first:
      self.fuse = linear(len(s.taps) * e, (c.width,))
    if s.mask_token is not None:
      shape = (1, 1, len(s.taps) * e)
      self.mask_hidden = declare(self, 'mask_hidden', shape, start=1.0)
    if 'taps' in s.norms:
      self.norm_taps = [Norm(c, e) for _ in s.taps]
    if 'fused' in s.norms:
      self.norm_fused = Norm(c, len(s.taps) * e)
    if 'last' in s.norms:
      self.norm = Norm(c)
    if s.own_embedding:
      shape = c.vocab_size, c.width
      self.embedding = declare(self, 'embedding', shape, start=c.width**-0.5)
    if s.own_unembedding:
      shape = carried, s.draft_vocab or c.vocab_size
      self.unembedding = declare(self, 'unembedding', shape)
    if s.draft_vocab:
      self.places = declare_places(self, s.draft_vocab, c.vocab_size)

  def read(self, hidden):
    """Features [..., F] of those of the target [..., len(taps), E]."""
    if self.sizes.version == 1:
      return hidden[..., 0, :]
    if 'taps' in self.sizes.norms:
      normed = [n(hidden[..., i, :]) for i, n in enumerate(self.norm_taps)]
      hidden = jnp.stack(normed, -2)
    hidden = hidden.reshape(*hidden.shape[:-2], -1)
    if 'fused' in self.sizes.norms:
      hidden = self.norm_fused(hidden)
    return self.fuse(hidden)

  def read_mask(self):
    """The feature [F] of a mask."""
    return self.read(self.mask_hidden.reshape(len(self.sizes.taps), -1))

  def embed(self, tokens):
    return self.embedding[tokens]

  def __call__(
    self, tokens, features, positions, cache, length, mask, flight, at
  ):
    """Features [B, T, F] after embedded tokens [B, T, E], and the flight.

    Args:
      tokens: their embeddings.
      features: [B, T, F] of the tokens before them.
      positions: as of `models.layers.Layer`, likewise the next five.
      cache: of every layer, or None.
      length: of the cache.
      mask: of the block.
      flight: of every layer, or None.
      at: row of the block.
    """
    s = self.sizes
    x = self.norm_token(tokens) if 'token' in s.norms else tokens
    y = self.norm_feature(features) if 'feature' in s.norms else features
    both = jnp.concatenate([y, x] if s.feature_first else [x, y], -1)
    if s.join == PAIR:
      x, reads = y if 'residual' in s.norms else features, both
    else:
      x = self.join(both)
      reads = None if 'layer' in s.norms else x
    made = []
    for i, layer in enumerate(self.layers):
      own = None if cache is None else cache[i]
      block = None if flight is None else flight[i]
      x, new = layer(x, positions, own, length, mask, block, at, reads=reads)
      made.append(new)
      reads = None
    if 'carried' in s.norms:
      x = self.norm(x)
    x = self.out(x) if s.version == 1 and s.projects else x
    return x, tuple(made)

  def last(self, features):
    """Returns the input of the unembedding, from carried features."""
    normed = 'last' in self.sizes.norms and 'carried' not in self.sizes.norms
    return self.norm(features) if normed else features

  def few(self, features):
    """Returns the logits [..., V_d] of the tokens that have one."""
    return multiply(
      self.last(features), self.unembedding, self.config.device.rows
    )

  def head(self, features):
    logits = self.few(features)
    return spread(logits, self.places) if self.sizes.draft_vocab else logits

  def everything(self, tokens, hidden, *attention):
    """Touches all parameters, of tokens and the target's features."""
    s = self.sizes
    embedded = jnp.zeros((*tokens.shape, self.target.width), hidden.dtype)
    if s.own_embedding:
      embedded = self.embed(tokens)
    features = self(embedded, self.read(hidden), *attention)[0]
    return self.head(features) if s.own_unembedding else self.last(features)


@dataclasses.dataclass(frozen=True)
class Head:
  """A head for a target, as pure functions of `Params`.

  Attributes:
    target: the target.
    sizes: of the head.
    narrowed: pairs that it sees of a text; None: all.
    layer: configuration of its layer, where that is a layer of the target;
      None: as its sizes say.
  """

  target: Model
  sizes: Sizes
  narrowed: Narrowed | None = None
  layer: TransformerConfig | None = None

  def __post_init__(self):
    s, e = self.sizes, self.target.config.width
    files.check_taps(self.target.config.num_layers, s.taps)
    as_wide = s.version == 1 and (s.join == PAIR or not s.projects)
    if as_wide and s.width != e:
      raise ValueError(
        f'width is {s.width}, but such a head of version 1 is as wide as its '
        f'target, {e}'
      )

  @functools.cached_property
  def config(self) -> TransformerConfig:
    s, t = self.sizes, self.target.config
    if self.layer is not None:
      return dataclasses.replace(self.layer, narrowed=self.narrowed)
    return modules.layer_config(
      s,
      t,
      native=t.native,
      narrowed=self.narrowed,
      activation=ACTIVATIONS[s.activation],
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
      none[None],
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

  def _own(self, params, *args, method):
    return self.module.apply({'params': params.drafter}, *args, method=method)

  def embed(self, params, tokens):
    if self.sizes.own_embedding:
      return self._own(params, tokens, method=Eagle.embed)
    return embed(params.target['embedding'], tokens)

  def read(self, params, hidden):
    """Features [..., F] from those of the target's layers."""
    if self.sizes.version == 1:
      last = hidden[..., 0, :]
      norm = self.sizes.final_norm
      return self.target.norm(params.target, last) if norm else last
    return self._own(params, hidden, method=Eagle.read)

  def read_text(self, params, ctx, hidden):
    """The cache of the pairs of a text, and features [B, F] after the last.

    Args:
      params: `Params`.
      ctx: `types.Context` of the text.
      hidden: [B, S, len(taps), E] of the target.
    """
    batch, slots = ctx.tokens.shape
    features = self.read(params, hidden)

    def forward(params, tokens, positions, cache, used, mask, taps):
      del tokens, taps  # Unused: what is read is found by position.
      at = jnp.broadcast_to(positions, (batch, mask.shape[1]))
      after = jnp.minimum(at + 1, slots - 1)
      read = jnp.take_along_axis(features, at[..., None], 1)
      following = jnp.take_along_axis(ctx.tokens, after, 1)
      attention = at, cache, used, mask, None, 0
      new, flight = self.forward(params, following, read, *attention)
      return Output(new, new[:, :, None], flight)

    config = dataclasses.replace(self.config, width=features.shape[-1])
    model = Model(config, self.init, forward, self.logits)
    cache = caches.empty(self.config, batch, slots, hidden.dtype)
    cache, made = prefill.prefill(
      model, params, ctx.tokens, ctx.length, cache, (0,)
    )
    last = jnp.maximum(ctx.length - 2, 0)
    return cache, made[jnp.arange(batch), last, 0]

  def read_mask(self, params):
    """The feature [F] of a mask."""
    return self._own(params, method=Eagle.read_mask)

  def forward(self, params, tokens, features, *attention):
    """Features [B, T, F] one place further, and the flight.

    Args:
      params: `Params`.
      tokens: [B, T].
      features: [B, T, F] of the tokens before them.
      *attention: as of `Eagle`, from the positions on.
    """
    tokens = self.embed(params, tokens)
    return self._own(params, tokens, features, *attention, method=None)

  def logits(self, params, features):
    if self.sizes.own_unembedding:
      return self._own(params, features, method=Eagle.head)
    features = self._own(params, features, method=Eagle.last)
    return self.target.head(params.target, features)

  def learned(self, params, logits):
    """Returns what a head learns of the target's logits [..., V].

    Returns:
      The logits [..., V_d] of the tokens that the head has, the probability
      [...] that the target gives these tokens (1.0 for all tokens), and a
      function of features that returns the head's logits [..., V_d].
    """
    if not self.sizes.draft_vocab:
      return logits, 1.0, functools.partial(self.logits, params)
    kept = ids(params.drafter['places'], self.sizes.draft_vocab)
    some = logits[..., kept]
    share = jnp.exp(logsumexp(some, -1) - logsumexp(logits, -1))
    return some, share, functools.partial(self._own, params, method=Eagle.few)

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
    flight = caches.empty(self.config, batch, 0, features.dtype)
    made = []
    for j in range(steps):
      own = [column == row - j + k for k in range(1, j + 1)]
      sees = jnp.concatenate([column <= row - j, *own], 1)
      sees = jnp.broadcast_to(sees, (batch, *sees.shape))
      flight = caches.grow(flight, (j + 1) * count)
      features, flight = self.forward(
        params, tokens, features, at, None, None, sees, flight, j * count
      )
      made.append(features)
      features = jnp.roll(features, 1, 1)
    return made

  def shapes(self):
    """Shapes of the weights."""
    return overrides.shapes_of(self)


KIND = Kind(
  'eagle',
  tuple(Sizes.__annotations__),
  lambda target, config: Head(target, sizes_of(config)),
)
