"""The module of DFlash: a few layers that fill a block of masks at once.

Chen et al., arXiv:2602.06036. A block is the last committed token and masks
behind it. Every layer reads keys and values of two kinds, by the same weights:
of the context, which is the target's features of all tokens before the block,
and of the block itself, in both directions. Only the block asks. The target's
embedding and head stand at either end, unless there are others of its own.

  slots    c0 c1 c2 c3 | x4  m5  m6  m7      x4 sees c0 to c3 and x4 to m7,
  says                       5   6   7       and so does every mask
  anchored              5   6   7   8

A correction adds what the token drawn before a place says, see `corrections`.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from specjax.arguments import check_number
from specjax.drafters.dflash import corrections
from specjax.drafters.dflash.corrections import Corrected, Places
from specjax.drafters.heads import files, modules, overrides
from specjax.drafters.heads.formats import Kind
from specjax.models import cache as caches
from specjax.models import rotary
from specjax.models.attention import attend
from specjax.models.config import TransformerConfig
from specjax.models.layers import Layer, Norm, scale_queries
from specjax.models.linear import Linear, declare, embed, multiply
from specjax.models.reduced_vocab_head import declare_places, spread
from specjax.models.rotary import Scaling
from specjax.models.transformer import Model
from specjax.types import KV, Cache


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a head; its width is the target's.

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
    draft_vocab: tokens that have a logit of its own; 0: all, see
      `reduced_vocab_head`.
    anchored: whether the last committed token says the first place, and the
      first mask the second one; else the first mask says the first place.
    correction: by the token before a place, one of `corrections.KINDS`.
    rank: of the correction.
    recalled: width of the state of the correction `gru`.
    plain: first places that `gru` leaves as they are.
    candidates: of the correction `selector`.
    confidence: what says how likely the target accepts a place: '', nothing;
      'place', what the output layer reads there; 'token', the token before,
      too, which a correction of DSpark knows.
    conv: taps of the convolutions around attention and MLP, along a block, as
      in DFlash2; 0: none.
    conv_group: channels whose weights change alike from place to place.
    windows: of each layer, how many tokens a place sees, itself included, and
      None: all. Empty: no layer has a window. Layers with one have the same,
      and `causal` is of these, where there are any.
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
  anchored: bool = False
  correction: str = ''
  rank: int = 64
  recalled: int = 64
  plain: int = 0
  candidates: int = 16
  confidence: str = ''
  conv: int = 0
  conv_group: int = 16
  windows: tuple[int | None, ...] = ()

  def __post_init__(self):
    for name in ('layers', 'rank', 'recalled', 'candidates', 'conv_group'):
      check_number(name, getattr(self, name), 1)
    for name in ('plain', 'conv'):
      check_number(name, getattr(self, name), 0)
    for name, known in (
      ('correction', corrections.KINDS),
      ('confidence', ('', 'place', 'token')),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
          f'{name} must be one of {known}, got {getattr(self, name)!r}'
        )
    if self.confidence == 'token' and self.correction not in corrections.MARKOV:
      raise ValueError(
        "confidence = 'token' needs one of the corrections "
        f'{corrections.MARKOV}, got {self.correction!r}'
      )
    if self.block < 2:
      raise ValueError(
        f'block is {self.block}: it holds the last token and at least one mask'
      )
    if self.windows and len(self.windows) != self.layers:
      raise ValueError(
        f'windows has {len(self.windows)} entries for {self.layers} layers'
      )
    widths = {x for x in self.windows if x}
    if len(widths) > 1:
      raise ValueError(f'windows must be of one width, got {self.windows}')
    if min(widths, default=self.block) < self.block:
      raise ValueError(
        f'windows {self.windows} are shorter than a block of {self.block}'
      )
    if self.draft_vocab and not self.own_unembedding:
      raise ValueError('draft_vocab is of a head with logits of its own')

  @property
  def depth(self) -> int:
    """Places of a block, the longest draft."""
    return self.block - 1 + self.anchored

  @property
  def state(self) -> int:
    """Width of the state that a correction carries from place to place."""
    return {'rnn': self.rank, 'gru': self.recalled}.get(self.correction, 0)

  @property
  def in_turn(self) -> bool:
    """Returns true if a place has a correction or a confidence."""
    return bool(self.correction or self.confidence)


# The sizes that a head's config.json names; options have defaults.
sizes_of = functools.partial(overrides.pick, Sizes)


def near(sizes: Sizes, target: TransformerConfig) -> dict[str, dict[str, Any]]:
  """Other readings of a head's weights, one mistake away; see `overrides`."""
  name = 'masks see later ones' if sizes.causal else 'masks see no later ones'
  first = 'first mask' if sizes.anchored else 'last token'
  return {
    **overrides.other_taps(sizes.taps, target.num_layers),
    **overrides.other_positions(sizes.rope_theta, sizes.rope_scaling, target),
    name: {'causal': not sizes.causal},
    f'the {first} says the first place': {'anchored': not sizes.anchored},
    **({'no window': {'windows': ()}} if sizes.windows else {}),
    **{
      f'corrected from place {n + 1} on': {'plain': n}
      for n in (sizes.plain - 1, sizes.plain + 1)
      if n >= 0 and sizes.correction == 'gru'
    },
  }


class BlockConv(nn.Module):
  """A convolution along a block, before and behind a part of a layer.

  out[t, c] = sum_o (base[o, c] + own[t, o, c // group]) x[t - o, c], where
  `own` is a linear map of x. Places before the block count as zeros.
  """

  sizes: Sizes
  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    """Returns blocks [B, T, E] convolved, and a function that convolves."""
    s, c = self.sizes, self.config

    def begin(key, shape, dtype=jnp.float32):
      del key  # Unused: nothing is changed at first.
      return jnp.zeros(shape, dtype).at[:, 0].set(1)

    base = self.param('base', begin, (2, s.conv, c.width))
    outputs = 2, s.conv, c.width // s.conv_group
    own = Linear(
      c.width,
      outputs,
      scale=0.1 * c.width**-0.5,
      rows=c.device.rows,
      name='own',
    )(x)
    kernels = base + jnp.repeat(own, s.conv_group, -1)  # [B, T, 2, taps, E]
    rows = min(x.shape[1], s.block)  # Of one block, or of many in a row.

    def along(x, which):
      blocks = x.reshape(-1, rows, c.width)
      kernel = kernels[:, :, which].reshape(-1, rows, s.conv, c.width)
      padded = jnp.pad(blocks, ((0, 0), (s.conv - 1, 0), (0, 0)))
      made = sum(
        kernel[:, :, o] * padded[:, s.conv - 1 - o :][:, :rows]
        for o in range(s.conv)
      )
      return made.reshape(x.shape).astype(x.dtype)

    return along(x, 0), functools.partial(along, which=1)


class BlockLayer(Layer):
  """A decoder layer whose keys and values are also made of a context."""

  sizes: Sizes

  def setup(self):
    c = self.config
    self.kv = Linear(
      c.width,
      (c.num_kv_heads, 2, c.head_dim),
      ('width', 'kv_heads', None, 'head'),
      c.qkv_bias,
      rows=c.device.rows,
    )
    if c.qk_norm:
      self.k_norm = Norm(c, c.head_dim)
    if self.sizes.conv:
      self.attention_conv = BlockConv(self.sizes, c)
      self.mlp_conv = BlockConv(self.sizes, c)

  def read(self, x, positions) -> KV:
    """Keys and values of features [B, T, E] at positions [B, T]."""
    k, v = jnp.split(self.kv(x), 2, -2)
    if self.config.qk_norm:
      k = self.k_norm(k)
    k = rotary.rotate(k, positions, *self._rotation())
    return caches.block_of_rows(k[..., 0, :], v[..., 0, :])

  def _mlp(self, x):
    if not self.sizes.conv:
      return super()._mlp(x)
    x, behind = self.mlp_conv(x)
    return behind(super()._mlp(x))

  def _attention(self, x, positions, cache, length, mask, flight, at, bias):
    c = self.config
    b, t = x.shape[:2]
    if self.sizes.conv:
      x, behind = self.attention_conv(x)
    outputs = c.num_kv_heads, c.group, c.head_dim
    axes = 'width', 'kv_heads', None, 'head'
    q = self._map('q', x, outputs, axes, c.qkv_bias)
    if c.qk_norm:
      q = Norm(c, c.head_dim, name='q_norm')(q)
    q = rotary.rotate(q, positions, *self._rotation())
    new = self.read(x, positions)
    if flight is not None:
      new = caches.put(flight, new, at)
    y = attend(
      scale_queries(c, q),
      cache,
      length,
      new,
      mask,
      positions,
      # Masks say what is seen of the block, and of a text in flight.
      None if cache is None else c.reach(self.index),
      bias=bias,
      over_cache=c.attention,
    )
    y = self._out(
      'out', c.num_heads * c.head_dim, ('heads', 'width'), c.out_bias
    )(y.reshape(b, t, -1))
    return (behind(y) if self.sizes.conv else y), new


class DFlash(nn.Module):
  """The head's own weights; see `Sizes`."""

  sizes: Sizes
  config: TransformerConfig  # of its layers

  def setup(self):
    c = self.config
    inputs, rows = len(self.sizes.taps) * c.width, c.device.rows
    self.fuse = Linear(inputs, (c.width,), rows=rows)
    self.norm_context = Norm(c)
    self.layers = [
      BlockLayer(c, i, self.sizes, name=f'layer{i}')
      for i in range(c.num_layers)
    ]
    self.norm = Norm(c)
    s, scale = self.sizes, c.width**-0.5
    if s.mask_token is None:
      self.mask = declare(self, 'mask', (c.width,), start=scale)
    if s.own_embedding:
      shape = c.vocab_size, c.width
      self.embedding = declare(self, 'embedding', shape, start=scale)
    if s.own_unembedding:
      shape = c.width, s.draft_vocab or c.vocab_size
      self.unembedding = declare(self, 'unembedding', shape)
    if s.draft_vocab:
      self.places = declare_places(self, s.draft_vocab, c.vocab_size)
    if s.correction:
      self.correction = corrections.of_kind(s, c)
    if s.confidence:
      inputs = c.width + s.rank * (s.confidence == 'token')
      self.confidence = Linear(inputs, (1,), bias=True, rows=rows)

  def read(self, hidden, positions) -> Cache:
    """Keys and values of the target's features [B, T, len(taps), E]."""
    x = self.norm_context(self.fuse(hidden.reshape(*hidden.shape[:-2], -1)))
    return tuple(layer.read(x, positions) for layer in self.layers)

  def __call__(self, x, positions, cache, length, masks, flight=None, at=0):
    """Maps embedded blocks [B, T, E] to the head's input [B, T, E].

    Args:
      x: embeddings of tokens and masks.
      positions: [B, T].
      cache: one KV a layer, of the context, or None.
      length: [B] slots of it that are seen.
      masks: [B, T, N] which rows in flight each of them sees, in layers
        without a window and in those with one.
      flight: the rows in flight without these, one KV a layer; None: these
        are all.
      at: row in flight where these go.
    """
    for i, layer in enumerate(self.layers):
      own = None if cache is None else cache[i]
      block = None if flight is None else flight[i]
      mask = masks[self.config.window(i) is not None]
      x, _ = layer(x, positions, own, length, mask, block, at)
    return self.norm(x)

  def head(self, x):
    """Logits of its own."""
    return self.widen(multiply(x, self.unembedding, self.config.device.rows))

  def widen(self, logits):
    return spread(logits, self.places) if self.sizes.draft_vocab else logits

  def prepare(self, places: Places):
    """Returns places with the products that `correct` needs of a block."""
    return self.correction.prepare(places) if self.sizes.correction else places

  def correct(self, place, tokens, embedded, state):
    """The place after tokens [..., T], and its confidence as log-odds."""
    kind, made = self.sizes.confidence, Corrected(place.logits, state)
    if self.sizes.correction:
      made = self.correction(place, tokens, embedded, state, self.widen)
    if not kind:
      return made, None
    read = place.hidden
    if kind == 'token':
      read = jnp.broadcast_to(read, (*tokens.shape, read.shape[-1]))
      read = jnp.concatenate([read, made.token], -1)
    return made, self.confidence(read)[..., 0]

  def everything(self, hidden, x, positions, mask):
    """Touches all parameters."""
    self.read(hidden, positions)
    made = self(x, positions, None, None, (mask, mask))
    if self.sizes.own_unembedding:
      self.head(made)
    if self.sizes.in_turn:
      shape = *made.shape[:-1], self.config.vocab_size
      place = self.prepare(Places(jnp.zeros(shape), made))
      state = jnp.zeros((*made.shape[:-1], self.sizes.state))
      self.correct(place, jnp.zeros(made.shape[:-1], int), made, state)


@dataclasses.dataclass(frozen=True)
class Head:
  """A head for a target, as pure functions of `Params`."""

  target: Model
  sizes: Sizes

  def __post_init__(self):
    files.check_taps(self.target.config.num_layers, self.sizes.taps)

  @functools.cached_property
  def config(self) -> TransformerConfig:
    s, t = self.sizes, self.target.config
    if s.conv and t.width % s.conv_group:
      raise ValueError(
        f'conv_group is {s.conv_group}: it must divide the width, {t.width}'
      )
    if s.correction == 'selector' and s.candidates > t.vocab_size:
      raise ValueError(
        f'candidates is {s.candidates}: choose at most the {t.vocab_size} '
        'tokens of the target'
      )
    return modules.layer_config(
      s, t, width=t.width, qkv_bias=s.bias, out_bias=s.bias
    )

  @functools.cached_property
  def module(self) -> DFlash:
    return DFlash(self.sizes, self.config)

  def init(self, key):
    """Fresh weights."""
    e = self.config.width
    made = self.module.init(
      key,
      jnp.zeros((1, 1, len(self.sizes.taps), e)),
      jnp.zeros((1, 1, e)),
      jnp.zeros((1, 1), jnp.int32),
      jnp.ones((1, 1, 1), bool),
      method=DFlash.everything,
    )
    return nn.meta.unbox(made['params'])

  def _own(self, params, *args, method=None):
    return self.module.apply({'params': params.drafter}, *args, method=method)

  def _table(self, params):
    own = self.sizes.own_embedding
    return (params.drafter if own else params.target)['embedding']

  def embed(self, params, tokens, rows: int):
    """Blocks [..., rows, E]: each of the tokens [...] and masks behind it."""
    table = self._table(params)
    first = embed(table, tokens)[..., None, :]
    if self.sizes.mask_token is None:
      mask = params.drafter['mask'].astype(first.dtype)
    else:
      mask = embed(table, jnp.int32(self.sizes.mask_token))
    masks = jnp.broadcast_to(mask, (*tokens.shape, rows - 1, mask.shape[-1]))
    return jnp.concatenate([first, masks], -2)

  def read(self, params, hidden, positions) -> Cache:
    """Keys and values of the target's features [B, T, len(taps), E]."""
    return tuple(self._own(params, hidden, positions, method=DFlash.read))

  def forward(self, params, x, *attention):
    """Returns the input of the output layer, see `DFlash.__call__`."""
    return self._own(params, x, *attention)

  def logits(self, params, made):
    """Logits [..., V] of what `forward` made."""
    if not self.sizes.own_unembedding:
      return self.target.head(params.target, made)
    return self._own(params, made, method=DFlash.head)

  def places(self, params, made) -> Places:
    """Places of rows [..., rows, E] that `forward` made."""
    made = made[..., 0 if self.sizes.anchored else 1 :, :]
    return Places(self.logits(params, made), made)

  def prepare(self, params, places: Places):
    """Returns places with the products that `correct` needs of a block."""
    if not self.sizes.in_turn:
      return places
    return self._own(params, places, method=DFlash.prepare)

  def state(self, shape: tuple[int, ...], dtype):
    """What `correct` is given for the first place after tokens [*shape]."""
    return jnp.zeros((*shape, self.sizes.state), dtype)

  def correct(self, params, place, tokens, state):
    """A place that knows the tokens before it.

    Args:
      params: `Params`.
      place: leaves [..., 1 or T, ...] of what `prepare` made.
      tokens: [..., T] that may lie before it.
      state: of each of them, see `state`.

    Returns:
      `Corrected`, and log-odds [..., T] that a token is accepted, or None.
    """
    if not self.sizes.in_turn:
      return Corrected(place.logits, state), None
    embedded = None
    if self.sizes.correction == 'gru':
      embedded = embed(self._table(params), tokens)
    given = place, tokens, embedded, state
    return self._own(params, *given, method=DFlash.correct)

  def say(self, params, tokens, positions, cache, used, rows: int) -> Places:
    """The places [B, rows - 1] behind tokens [B]; [B, rows] of an anchored one.

    Args:
      params: `Params`.
      tokens: the last committed ones.
      positions: [B] of these.
      cache: of the context, see `read`.
      used: [B] slots of it.
      rows: of the block.
    """
    x = self.embed(params, tokens, rows)
    at = positions[:, None] + jnp.arange(rows)
    every = jnp.ones((len(tokens), rows, rows), bool)
    sees = jnp.tril(every) if self.sizes.causal else every
    masks = every if self.sizes.windows else sees, sees
    return self.places(params, self.forward(params, x, at, cache, used, masks))

  def say_many(self, params, tokens, hidden, first) -> Places:
    """Places [B, A, K] of blocks along a text, in one pass.

    Args:
      params: `Params`.
      tokens: [B, T].
      hidden: [B, T, len(taps), E] of the target.
      first: [B, A] places of the tokens that the blocks begin with. A block
        sees the context before that place, and itself.
    """
    batch, length = tokens.shape
    count, rows = first.shape[1], self.sizes.block
    text = jnp.broadcast_to(jnp.arange(length), (batch, length))
    flight = self.read(params, hidden, text)
    flight = caches.grow(flight, length + count * rows)
    x = self.embed(params, jnp.take_along_axis(tokens, first, 1), rows)
    at = first[..., None] + jnp.arange(rows)
    before = jnp.repeat(jnp.arange(length) < first[..., None], rows, 1)
    own = jnp.repeat(jnp.repeat(jnp.eye(count, dtype=bool), rows, 0), rows, 1)
    own = jnp.broadcast_to(own, (batch, *own.shape))
    far = at.reshape(batch, -1, 1) - jnp.arange(length)
    near = far < min((x for x in self.sizes.windows if x), default=0)
    masks = [
      jnp.concatenate([seen, own], -1) for seen in (before, before & near)
    ]
    made = self.forward(
      params,
      x.reshape(batch, count * rows, -1),
      at.reshape(batch, -1),
      None,
      None,
      masks,
      flight,
      length,
    )
    return self.places(params, made.reshape(batch, count, rows, -1))

  def shapes(self):
    """Shapes of the weights."""
    return overrides.shapes_of(self)


KIND = Kind(
  'dflash',
  tuple(Sizes.__annotations__),
  lambda target, config: Head(target, sizes_of(config)),
)
