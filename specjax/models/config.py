"""Sizes and options of a decoder."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax

from specjax.arguments import check_number
from specjax.models import cache_attention
from specjax.models.attention import CacheAttention
from specjax.models.devices import CPU, DeviceForm
from specjax.models.rotary import Scaling


@dataclasses.dataclass(frozen=True)
class Experts:
  """A mixture of experts in place of the MLP (Shazeer et al., 2017,
  arXiv:1701.06538).

  Attributes:
    count: of the experts of a layer.
    chosen: experts that each token goes to; nothing is ever dropped.
    width: of an expert.
    normalize: whether the weights of the chosen ones add up to 1.
    dense: layers that have a plain MLP instead.
    bias: whether the router and the experts have biases (gpt-oss).
    shared: width of an expert that every token goes to; 0: there is none.
    shared_gate: whether it is behind a sigmoid gate (Qwen3-Next).
    sigmoid: odds are sigmoids of scores. Experts are chosen by odds and a bias
      of each, which the weights of the chosen ones leave out (DeepSeek V3).
    groups: of experts, equally many in each. Only experts of the best groups
      are chosen. A group is as good as its best expert, or, with `sigmoid`, as
      its two best ones.
    best_groups: how many these are.
    scale: what the weights of the chosen ones are multiplied by.
    inner: width of the map between the stream and the experts; 0: they read
      the stream (Nemotron 3).
    beside: whether layers have a plain MLP, too. Each half is normed before
      and after, and the router reads the stream by a norm of its own (Gemma 4).
    limit: the linear half of an expert is clamped to [-limit, limit] and has 1
      added, and its gate is clamped to at most the limit; None: no clamp.
  """

  count: int
  chosen: int
  width: int
  normalize: bool = True
  dense: tuple[int, ...] = ()
  bias: bool = False
  limit: float | None = None
  shared: int = 0
  shared_gate: bool = True
  sigmoid: bool = False
  groups: int = 1
  best_groups: int = 1
  scale: float = 1.0
  inner: int = 0
  beside: bool = False

  def __post_init__(self):
    if self.count % self.groups or not 1 <= self.best_groups <= self.groups:
      raise ValueError(
        f'{self.best_groups} of {self.groups} groups of {self.count} experts '
        'cannot be chosen; the groups must divide the experts'
      )
    eligible = self.count // self.groups * self.best_groups
    if not 1 <= self.chosen <= eligible:
      raise ValueError(
        f'{self.chosen} of {eligible} experts cannot be chosen; choose '
        'between 1 and all of them'
      )
    if self.sigmoid and 1 < self.groups == self.count:
      raise ValueError(
        f'{self.groups} groups of one expert have no two best ones; give '
        'groups of two or more'
      )


@dataclasses.dataclass(frozen=True)
class _States:
  """The sizes of layers with a state, see `GatedDelta` and `Mamba2`."""

  layers: tuple[int, ...]
  key_heads: int
  value_heads: int
  key_dim: int
  value_dim: int
  kernel: int

  def __post_init__(self):
    if self.value_heads % self.key_heads:
      raise ValueError(
        f'{self.value_heads} heads of values must be a multiple of the '
        f'{self.key_heads} heads of keys'
      )

  @property
  def keys(self) -> int:
    """Entries of all keys of a token; of Mamba-2, of its input maps."""
    return self.key_heads * self.key_dim

  @property
  def values(self) -> int:
    """Entries of all values of a token."""
    return self.value_heads * self.value_dim

  @property
  def channels(self) -> int:
    """Entries that the convolution sees: queries, keys and values.

    Of Mamba-2 values, input and output maps.
    """
    return 2 * self.keys + self.values


@dataclasses.dataclass(frozen=True)
class GatedDelta(_States):
  """Layers with a state in place of attention, see `models.recurrent`.

  Attributes:
    layers: which they are, from 0.
    key_heads: heads of queries and keys.
    value_heads: a multiple of these; neighbours share a key.
    key_dim: entries of a key.
    value_dim: entries of a value.
    kernel: tokens that the convolution sees, the token itself included.
    by_head: whether the maps' outputs lie head by head (Qwen3-Next).
  """

  by_head: bool = False


@dataclasses.dataclass(frozen=True)
class Mamba2(_States):
  """Layers with a state that only decays (Mamba-2), see `models.recurrent`.

  Attributes:
    layers: which they are, from 0.
    key_heads: groups of heads, each with an input map and an output map.
    value_heads: a multiple of these; neighbours share the maps.
    key_dim: entries of the state for each entry of a value.
    value_dim: entries of a value.
    kernel: tokens that the convolution sees, the token itself included.
    conv_bias: whether the convolution has a bias.
    bias: whether the first map has one.
    out_bias: whether the last map has one.
    activation: behind the convolution.
    norm: whether what is read is normed, group by group.
    gate_first: whether it is multiplied by its gate before that, or after it.
    scales: factors of the input, of the gate, values, keys, queries and steps
      that are made of it, and of the output (Falcon-H1). Empty: all are 1.
  """

  conv_bias: bool = True
  bias: bool = False
  out_bias: bool = False
  activation: Callable[[jax.Array], jax.Array] = nn.silu
  norm: bool = True
  gate_first: bool = True
  scales: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class ShortConv:
  """Layers that convolve a few tokens in place of attention (LFM2).

  Attributes:
    layers: which they are, from 0.
    channels: entries of a token that are convolved.
    kernel: tokens that the convolution sees, the token itself included.
    bias: whether the convolution and the maps around it have biases.
  """

  layers: tuple[int, ...]
  channels: int
  kernel: int
  bias: bool = False

  # What they keep is the last tokens alone, beside a state of no entries.
  key_heads: ClassVar[int] = 1
  value_heads: ClassVar[int] = 1
  key_dim: ClassVar[int] = 0
  value_dim: ClassVar[int] = 0
  values: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True)
class Latent:
  """Attention whose heads share one compressed token, see `models.latent`.

  Attributes:
    rank: entries of the latent, which keys and values are made of.
    turned: entries of the key that all heads share and positions turn.
    keys: entries of a head's key that are made of the latent.
    values: entries of a head's value.
    queries: entries that queries are compressed to; None: they are not.
    side_by_side: positions turn entries that lie side by side.
  """

  rank: int
  turned: int
  keys: int
  values: int
  queries: int | None = None
  side_by_side: bool = True


@dataclasses.dataclass(frozen=True)
class Wide:
  """Layers whose attention has other sizes (Gemma 4).

  Attributes:
    layers: which they are, from 0.
    num_kv_heads: of these layers.
    head_dim: of these layers.
    keys_as_values: whether a value is what the map of keys gives.
  """

  layers: tuple[int, ...]
  num_kv_heads: int
  head_dim: int
  keys_as_values: bool = False


@dataclasses.dataclass(frozen=True)
class Sharing:
  """Last layers that make no keys and values (Gemma 3n, Gemma 4).

  They attend to those of the last layer that makes some and has a window, or
  has none, as they do.

  Attributes:
    first: of these layers, from 0.
    mlp_width: of these layers.
  """

  first: int
  mlp_width: int


@dataclasses.dataclass(frozen=True)
class LayerInputs:
  """A second embedding of tokens, each layer reads its own part (Gemma 3n).

  Attributes:
    width: entries of a part.
    parts: of the table; a model without its last layers reads fewer.
    vocab_size: tokens of the table.
  """

  width: int
  parts: int
  vocab_size: int


@dataclasses.dataclass(frozen=True)
class Relative:
  """Relative positions: a learned bias for each head and bucket of distances
  (Raffel et al., 2020, arXiv:1910.10683, section 2.1).

  Attributes:
    buckets: half of them for single distances, the other half for ranges that
      grow with the distance; in an encoder each half again for either side.
    longest: distance from which on all share the last bucket.
  """

  buckets: int
  longest: int

  def __post_init__(self):
    if self.buckets < 4 or self.buckets % 4:
      raise ValueError(
        f'{self.buckets} buckets of distances must be a multiple of 4'
      )
    if self.longest <= self.buckets // 2:
      raise ValueError(
        f'the longest distance {self.longest} must be above half of the '
        f'{self.buckets} buckets'
      )


@dataclasses.dataclass(frozen=True)
class Encoder:
  """The encoder of an encoder-decoder; sizes are the decoder's.

  Attributes:
    num_layers: of the encoder.
    start: token that every text of the decoder begins with.
  """

  num_layers: int
  start: int = 0


@dataclasses.dataclass(frozen=True)
class Narrowed:
  """A narrow view of a draft: less of a text than its model would see.

  The last tokens and the first ones, which attention leans on (Xiao et al.,
  2023, arXiv:2309.17453). Positions stay those of the text. A layer whose own
  window is smaller keeps it, and one that has a window sees no sinks.

  Attributes:
    window: tokens that a query sees, itself included.
    sinks: first tokens of the text that it sees besides.
  """

  window: int
  sinks: int = 0

  def __post_init__(self):
    check_number('window', self.window, 1)
    check_number('sinks', self.sinks, 0)


def narrowed_to(window: int, sinks: int, positions: int) -> Narrowed | None:
  """Returns the view that options of a drafter choose; a window of 0 is none.

  Raises:
    ValueError: there is no such window, or sinks without one or beyond the
      positions.
  """
  check_number('window', window, 0)
  if not window and sinks:
    raise ValueError(
      f'sinks is {sinks}, but without a window all tokens are seen: give '
      'window, too, or leave sinks out'
    )
  check_number('sinks', sinks, 0, positions)
  return Narrowed(window, sinks) if window else None


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes and options of a decoder; options are functions, not names.

  An option that is off adds no operation to the model.

  Attributes:
    max_positions: longest sequence of a run. Rotary scalings that depend on
      the length are fixed by it, see `rotary.Dynamic` and `rotary.LongRope`.
    activation: of the MLP, e.g. `nn.silu`.
    gated: whether the MLP multiplies by a gate (Llama) or not (GPT-2).
    layer_norm: LayerNorm (mean and bias) instead of RMSNorm.
    norm_plus_one: scales are stored as their difference from 1 (Gemma).
    norm_bias: whether a LayerNorm has a bias; Cohere's has none.
    pre_norms: attention and MLP read a normed stream; OLMo's read it as it is.
    post_norms: attention and MLP are normed once more before they are added.
    qk_norm: queries and keys are normed, head by head.
    qk_norm_whole: they are normed over all heads at once (OLMo 2).
    qk_norm_last: they are normed after they are turned (Hunyuan).
    parallel: attention and MLP read the same input (GPT-NeoX).
    one_norm: they also share its norm (Phi, Cohere); with `parallel` alone.
    rope_theta: base of the rotary positions; None means learned positions, or
      relative ones.
    local_rope_theta: base in layers with a window, where it is another one.
      It is never scaled.
    rope_scaling: how the rotary frequencies were changed for longer texts.
    rotary_dim: entries of a head that are turned, the first ones; None: all.
    rotary_apart: the two entries of a pair are half a head apart, and not half
      of `rotary_dim`.
    unturned: layers without positions, from 0 (SmolLM3).
    position_offset: rows of the learned positions before the first (OPT: 2).
    relative: relative positions, which all layers share, or None.
    windows: of each layer, how many tokens a query sees, itself included;
      None: all. Empty: no layer has a window.
    embedding_scale: what embeddings are multiplied by.
    query_scale: what attention scores are; None: 1 / sqrt(head_dim).
    query_growth: (a, n) multiplies queries at position i by
      1 + a log(1 + floor(i / n)), or None (Ministral 3).
    residual_scale: what attention and MLP are multiplied by before they are
      added.
    sink_logits: each head has a logit to which no token belongs: the weights of
      tokens add up to less than 1 (gpt-oss).
    attention_cap: soft cap of attention scores, cap * tanh(score / cap).
    logit_cap: the same for logits.
    head_scale: what the head's input is multiplied by.
    head_bias: whether logits have a bias (Phi).
    encoder: of an encoder-decoder, or None.
    experts: a mixture of experts, or None.
    recurrent: layers that have a state in place of attention, or None.
    state_beside: these layers attend, too, to the same stream (Falcon-H1).
    latent: attention to latents, or None. With it `num_kv_heads` is 1,
      `head_dim` counts all entries of a head's key, and `rotary_dim` those that
      are turned, which are its last ones.
    wide: layers whose attention has other sizes, or None; see `at`.
    sharing: layers that make no keys and values, or None.
    value_norm: values are normed, head by head and without a scale.
    layer_inputs: a second embedding of tokens, for each layer, or None.
    layer_scale: what a layer gives is multiplied by a number of its own.
    attention_scales: factors of the input and the output of attention, or None.
    mlp_scales: factors of the gate before its activation and of the output of
      the MLP, or None.
    attention_gate: what attention gives is multiplied by a sigmoid of as many
      entries, which come with the queries (Qwen3-Next).
    kept: tokens that have a logit of their own, see `reduced_vocab_head`;
      0: all.
    native: weights are for the kernel, see `variants.to_native`. The kernel
      also turns queries and keys.
    attention: how the cache is read, see `models.cache_attention`.
    device: what differs by the platform, see `variants.for_device`.
    without_attention: layers without attention or a state, from 0: it is left
      out, or there is none (Nemotron-H).
    without_mlp: layers without an MLP.
    narrowed: of a draft that sees less of a text, or None.
  """

  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int
  max_positions: int
  activation: Callable[[jax.Array], jax.Array] = nn.silu
  gated: bool = True
  layer_norm: bool = False
  norm_eps: float = 1e-5
  norm_plus_one: bool = False
  norm_bias: bool = True
  pre_norms: bool = True
  post_norms: bool = False
  qk_norm: bool = False
  qk_norm_whole: bool = False
  qk_norm_last: bool = False
  parallel: bool = False
  one_norm: bool = False
  rope_theta: float | None = 10000.0
  local_rope_theta: float | None = None
  rope_scaling: Scaling | None = None
  rotary_dim: int | None = None
  rotary_apart: bool = False
  unturned: tuple[int, ...] = ()
  position_offset: int = 0
  relative: Relative | None = None
  windows: tuple[int | None, ...] = ()
  embedding_scale: float | None = None
  query_scale: float | None = None
  query_growth: tuple[float, int] | None = None
  residual_scale: float | None = None
  sink_logits: bool = False
  attention_cap: float | None = None
  logit_cap: float | None = None
  head_scale: float | None = None
  head_bias: bool = False
  encoder: Encoder | None = None
  experts: Experts | None = None
  recurrent: GatedDelta | Mamba2 | ShortConv | None = None
  state_beside: bool = False
  latent: Latent | None = None
  wide: Wide | None = None
  sharing: Sharing | None = None
  value_norm: bool = False
  layer_inputs: LayerInputs | None = None
  layer_scale: bool = False
  attention_scales: tuple[float, float] | None = None
  mlp_scales: tuple[float, float] | None = None
  attention_gate: bool = False
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  tied_embeddings: bool = False
  kept: int = 0
  native: bool = False
  attention: CacheAttention = cache_attention.blocked
  device: DeviceForm = CPU
  without_attention: tuple[int, ...] = ()
  without_mlp: tuple[int, ...] = ()
  narrowed: Narrowed | None = None

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f'num_heads ({self.num_heads}) must be a multiple of num_kv_heads '
        f'({self.num_kv_heads})'
      )
    if self.rope_theta is not None and self.turned % 2:
      name = 'head_dim' if self.rotary_dim is None else 'rotary_dim'
      raise ValueError(
        f'{name} = {self.turned} must be even for rotary positions'
      )
    if self.windows and len(self.windows) != self.num_layers:
      raise ValueError(
        f'windows has {len(self.windows)} entries for {self.num_layers} '
        'layers; give one for each, or none at all'
      )

    windows = self.windows or self.narrowed
    if self.encoder is not None and (self.parallel or windows):
      raise ValueError(
        'an encoder-decoder can have neither parallel layers nor windows'
      )

  @property
  def learned_positions(self) -> bool:
    """True if there is a table of positions."""
    return self.rope_theta is None and self.relative is None

  @property
  def skips_padding(self) -> bool:
    """True if a token that its mask has in no text takes little time.

    It is zeros in the kernel's products, but for one behind a bias of an MLP.
    """
    return self.native and self.recurrent is None

  @property
  def fills_padding(self) -> bool:
    """True if biases would make other numbers of such zeros."""
    biased = self.out_bias or self.mlp_bias
    return self.skips_padding and (
      biased or (self.layer_norm and self.norm_bias)
    )

  @property
  def out_scale(self) -> float:
    """Size of fresh weights of a map back to the residual stream."""
    return (2 * self.num_layers * self.width) ** -0.5

  @property
  def group(self) -> int:
    """Query heads that share one key-value head."""
    return self.num_heads // self.num_kv_heads

  @property
  def turned(self) -> int:
    """Entries of a head that rotary positions turn."""
    return self.head_dim if self.rotary_dim is None else self.rotary_dim

  def at(self, layer: int) -> 'TransformerConfig':
    """Returns the configuration with the sizes of one layer."""
    sizes: dict[str, Any] = {}
    if self.wide is not None and layer in self.wide.layers:
      sizes['num_kv_heads'] = self.wide.num_kv_heads
      sizes['head_dim'] = self.wide.head_dim
    if self.sharing is not None and layer >= self.sharing.first:
      sizes['mlp_width'] = self.sharing.mlp_width
    return dataclasses.replace(self, **sizes) if sizes else self

  def like(self, layer: int) -> int:
    """Returns the first layer that differs from one in its weights alone."""

    def facts(i):
      return (
        self.at(i),
        self.source(i) == i,
        self.turns(i),
        self.window(i),
        self.has_state(i),
        self.is_sparse(i),
        i in self.without_attention,
        i in self.without_mlp,
        self.wide is not None and i in self.wide.layers,
      )

    return next(i for i in range(layer + 1) if facts(i) == facts(layer))

  def source(self, layer: int) -> int:
    """Returns the layer whose keys and values a layer attends to.

    It is -1 where it is none of this model's (`drafters.assistant`).
    """
    if self.sharing is None or layer < self.sharing.first:
      return layer
    alike = (
      i
      for i in range(self.sharing.first)
      if (self.window(i) is None) == (self.window(layer) is None)
    )
    return max(alike, default=-1)

  def turns(self, layer: int) -> bool:
    """Returns true if rotary positions turn queries and keys of a layer."""
    return self.rope_theta is not None and layer not in self.unturned

  def window(self, layer: int) -> int | None:
    """Tokens that a query of a layer sees; None: all."""
    return self.windows[layer] if self.windows else None

  def has_state(self, layer: int) -> bool:
    """Returns true if a layer has a state."""
    return self.recurrent is not None and layer in self.recurrent.layers

  def attends(self, layer: int) -> bool:
    """Returns true if a layer has attention."""
    alone = self.has_state(layer) and not self.state_beside
    return not alone and layer not in self.without_attention

  def reach(self, layer: int) -> int | None:
    """Tokens that a query of a layer reaches; None if no text is longer."""
    if not self.attends(layer):
      return None
    window = self.window(layer)
    if self.narrowed is not None:
      narrow = self.narrowed.window
      window = narrow if window is None else min(window, narrow)
    return None if (window or 0) >= self.max_positions else window

  def sinks(self, layer: int) -> int:
    """First tokens that a query of a layer sees beside those of `reach`."""
    windowed = self.window(layer) is not None
    if self.narrowed is None or windowed or not self.attends(layer):
      return 0
    return self.narrowed.sinks

  def is_sparse(self, layer: int) -> bool:
    """Returns true if a layer has experts."""
    return self.experts is not None and layer not in self.experts.dense
