"""The assistant of Gemma 4: a few layers that read the target's cache.

It has no keys and values of its own. Each layer attends to those of the last
layer of the target that makes some and sees as much of the text as it does. It
is fed the last token's embedding and the feature that the target drew it from,
and says what follows and a feature in the target's place, for the next token:

  token, feature -> pre -> layers -> head
                             \\-> post: feature of the next one

All tokens of a draft have the position of the last committed one, since no key
of them is ever seen. So a draft costs no memory, and its tree no mask. Formats
and weights are those of transformers (`gemma4_assistant`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.checkpoints.families import conversion
from specjax.checkpoints.families.gemma import GEMMA4
from specjax.checkpoints.families.table import LINEAR, Tensors
from specjax.checkpoints.families.values import flag, size
from specjax.checkpoints.files import CONFIG, CheckpointError
from specjax.drafters.heads import formats, modules, overrides
from specjax.drafters.heads.formats import Files, Format, Found, Kind
from specjax.drafters.shapes import shape
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.errors import blame
from specjax.models import cache as caches
from specjax.models.config import Sharing, TransformerConfig
from specjax.models.layers import Layer, Norm
from specjax.models.linear import Linear, declare, embed
from specjax.models.transformer import Model
from specjax.types import KV, Context, LoadedDrafter, Params, Target


class Reading(NamedTuple):
  """How the weights are read, beside their configuration.

  normed: whether it reads features behind the target's last norm.
  ahead: positions between the last committed token and a draft.
  """

  normed: bool = True
  ahead: int = 0


USUAL = Reading()


class State(NamedTuple):
  """The feature that the last committed token was drawn from."""

  feature: jax.Array  # [B, E] of the target
  length: jax.Array  # [B] tokens of the text then


class Assistant(nn.Module):
  """The weights; see the module.

  Attributes:
    config: of its layers.
    wide: E, width of the target.
    centroids: of groups of tokens, of which the best get logits; 0: all do.
    chosen: groups that get some.
  """

  config: TransformerConfig
  wide: int
  centroids: int = 0
  chosen: int = 0

  @nn.compact
  def __call__(self, x, positions, caches, length):
    """Logits [B, T, V] and features [B, T, E] after tokens.

    Args:
      x: [B, T, 2 E] embeddings of tokens, and features before them.
      positions: [B, T].
      caches: of the target, for each layer.
      length: [B] slots of them that are seen.
    """
    c = self.config
    table = declare(self, 'embedding', (c.vocab_size, c.width), start=0.02)

    def linear(name, x, outputs):
      return Linear(x.shape[-1], (outputs,), name=name)(x)

    x = linear('pre', x, c.width)
    unseen = jnp.zeros((*x.shape[:2], 1), bool)
    for i in range(c.num_layers):
      kv = caches[i]
      # A block of one row that no query sees: all is in the cache.
      block = KV(kv.k[..., :1], kv.v[:, :, :1])
      layer = Layer(c.at(i), i, name=f'layer{i}')
      x, _ = layer(x, positions, kv, length, unseen, block, 0)
    x = Norm(c, name='norm')(x)
    features = linear('post', x, self.wide)
    if not self.centroids:
      return x @ table.T, features
    order = self.param(
      'order',
      lambda _: jnp.arange(c.vocab_size).reshape(self.centroids, -1),
    )
    score = linear('centroids', x, self.centroids)
    best = jax.lax.top_k(score, self.chosen)[1]
    tokens = order[best].reshape(*x.shape[:2], -1)
    some = jnp.einsum('btw,btnw->btn', x, table[tokens])
    none = jnp.full((*x.shape[:2], c.vocab_size), -jnp.inf, some.dtype)
    put = jax.vmap(jax.vmap(lambda row, at, new: row.at[at].set(new)))
    return put(none, tokens, some), features


@dataclasses.dataclass(frozen=True)
class Head:
  """An assistant of a target, as pure functions of `Params`.

  Raises:
    ValueError: the target has no such keys and values.
  """

  target: Model
  module: Assistant
  reading: Reading = USUAL

  def __post_init__(self):
    c, t = self.module.config, self.target.config
    if not isinstance(t, TransformerConfig):
      raise ValueError('the assistant reads layers of a target of this package')
    for layer, source in enumerate(self.sources):
      own, wants = c.at(layer), 'with' if c.window(layer) else 'without'
      if source < 0:
        raise ValueError(
          f'layer {layer} of the assistant reads keys and values of a layer '
          f'{wants} a window, and the target has none: give its own target'
        )
      count, _, width = caches.heads(t, source)
      if (count, width) != (own.num_kv_heads, own.head_dim):
        raise ValueError(
          f'layer {layer} of the assistant reads {own.num_kv_heads} heads of '
          f'{own.head_dim} entries, and layer {source} of the target has '
          f'{count} of {width}: give its own target'
        )

  @functools.cached_property
  def sources(self) -> tuple[int, ...]:
    """The layer of the target that each layer attends to."""
    c, t = self.module.config, self.target.config
    makes = [
      i for i in range(t.num_layers) if t.source(i) == i and t.attends(i)
    ]

    def alike(layer: int) -> int:
      windowed = c.window(layer) is not None
      found = (i for i in makes if (t.window(i) is not None) == windowed)
      return max(found, default=-1)

    return tuple(map(alike, range(c.num_layers)))

  def init(self, key) -> Any:
    """Returns random weights."""
    t = self.target.config
    cache = caches.empty(t, 1, 1, jnp.float32)
    x, at = jnp.zeros((1, 1, 2 * t.width)), jnp.zeros((1, 1), jnp.int32)
    read = [cache[i] for i in self.sources]
    return nn.unbox(self.module.init(key, x, at, read, at[0])['params'])

  def shapes(self) -> Any:
    """Returns the shapes of the weights."""
    return overrides.shapes_of(self)

  def feature(self, params, raw):
    """Features [..., E] as the assistant reads those of the target."""
    if not self.reading.normed:
      return raw
    return self.target.norm(params.target, raw)

  def say(self, params: Params, ctx: Context, tokens, features) -> Step:
    """Says what follows tokens [B, T] that were drawn from features."""
    t, used = self.target.config, ctx.length - 1
    x = embed(params.target['embedding'], tokens)
    if t.embedding_scale is not None:
      x *= jnp.asarray(t.embedding_scale, x.dtype)
    at = jnp.broadcast_to(used[:, None] + self.reading.ahead, tokens.shape)
    made: Any
    logits, made = self.module.apply(
      {'params': params.drafter},
      jnp.concatenate([x, features.astype(x.dtype)], -1),
      at,
      [ctx.cache[i] for i in self.sources],
      used,
    )
    return Step(logits, made.astype(features.dtype), ())


@functools.cache
def walk(head: Head) -> Walker:
  """The walker of an assistant."""

  def init(params, ctx, hidden, rows):
    del rows  # Nothing is kept of them.
    last = jnp.maximum(ctx.length - 2, 0)
    raw = hidden[jnp.arange(len(last)), last, 0]
    return State(head.feature(params, raw), ctx.length + 0), ()

  def start(params, state, block, ctx):
    del block  # There is none.
    last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)
    return head.say(params, ctx, last, state.feature[:, None])

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    del state, block, row, depth, sees  # Nothing of a draft is attended to.
    return head.say(params, ctx, tokens, features)

  def commit(params, state, block, ctx, verdict, hidden):
    del block, verdict
    # Fewer than were accepted where the text ended; none in a finished row.
    new = ctx.length - state.length
    raw = hidden[jnp.arange(len(new)), jnp.maximum(new - 1, 0), 0]
    made = head.feature(params, raw).astype(state.feature.dtype)
    feature = jnp.where(new[:, None] > 0, made, state.feature)
    return State(feature, ctx.length + 0)

  return Walker(
    init, start, feed, commit, taps=(head.target.config.num_layers - 1,)
  )


def _describe(read: Files, name: str) -> Found:
  """Finds the sizes of an assistant."""
  text = dict(read.take('text_config', formats.mapping, {}))
  # A model of which all layers read keys of others is none of a family.
  text['num_kv_shared_layers'] = 0
  text.pop('architectures', None)
  with blame(f'{read.directory}: {CONFIG}: ', CheckpointError):
    family, config = conversion.read_attributes(text)
    if family is not GEMMA4:
      raise ValueError(f'model_type {family.model_type!r} is not gemma4_text')
  # Its window is of distances from the last token in the cache, none too far.
  windows = tuple(w and w + 2 for w in config.windows)
  config = dataclasses.replace(
    config,
    windows=windows,
    sharing=Sharing(0, config.mlp_width),
  )
  wide = read.take('backbone_hidden_size', size, 1536)
  grouped = read.take('use_ordered_embeddings', flag, False)
  count = read.take('num_centroids', size, 2048) if grouped else 0
  chosen = read.take('centroid_intermediate_top_k', size, 32) if grouped else 0
  if grouped and (config.vocab_size % count or chosen > count):
    read.refuse(
      f'{chosen} of num_centroids = {count} groups of {config.vocab_size} '
      'tokens cannot be chosen; it is damaged'
    )
  return Found(
    name,
    {'module': Assistant(config, wide, count, chosen)},
    _table(config, count),
    wide,
    config.vocab_size,
    unused=('lm_head.weight', 'embed_tokens_per_layer.weight'),
  )


def _table(config: TransformerConfig, centroids: int) -> formats.Table:
  """Returns where the parameters are, by names without `model.`."""
  table = GEMMA4.table(config)
  return {
    **formats.rename(table, lambda name: name.removeprefix('model.')),
    'pre/w': Tensors(LINEAR, ('pre_projection.weight',)),
    'post/w': Tensors(LINEAR, ('post_projection.weight',)),
    'centroids/w': Tensors(LINEAR, ('masked_embedding.centroids.weight',)),
    'order': formats.Made(
      lambda order: order.reshape(centroids, -1).astype('int32'),
      ('masked_embedding.token_ordering',),
    ),
  }


KIND = Kind(
  'assistant',
  Reading._fields,
  lambda target, config: Head(
    target, config['module'], overrides.pick(Reading, config)
  ),
)
FORMATS = (
  Format(
    'Gemma 4 assistant',
    KIND,
    lambda names: 'pre_projection.weight' in names,
    _describe,
  ),
)
_read = functools.partial(modules.read, KIND)


def load(
  target: Target,
  path: str,
  dtype: str = '',
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of an assistant, for its target.

  Args:
    target: what is drafted for.
    path: directory of the assistant, or its name on the Hub.
    dtype: of its weights; by default the target's.
    read_as: values of `Reading`, where they are others than usual:
      `specjax probe` finds out.
    **options: of `shapes.shape.Shape`.

  Raises:
    ValueError: there is no such assistant, or it is another target's.
  """
  shape.check(target, options)
  read = _read(target, path, read_as, dtype)
  return shape.load(
    target, walk(read.head), options, read.params, pairing=read.pairing
  )


def _near(read: modules.Read, target: TransformerConfig) -> overrides.Readings:
  del target
  reading = read.head.reading
  return overrides.other_norm('normed', reading.normed) | {
    f'drafts {1 - reading.ahead} ahead': {'ahead': 1 - reading.ahead},
  }


alternatives = functools.partial(modules.alternatives, _read, _near)
