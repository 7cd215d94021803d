"""An independent small language model.

Speculative decoding as Leviathan et al. (arXiv:2211.17192) and Chen et al.
(arXiv:2302.01318) describe it: the draft prefills the prompt into a cache of
its own.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import cache as caches
from specjax import checkpoints
from specjax.arguments import check_path
from specjax.checkpoints import precision
from specjax.drafting import chain, heads, shape, static_tree
from specjax.drafting.policies import Policy
from specjax.drafting.walker import Step, Walker
from specjax.models import prefill, transformer, variants
from specjax.models.transformer import Model
from specjax.types import Cache, Drafter, LoadedDrafter, Target


class Fed(NamedTuple):
  """What was fed and nobody has judged yet."""

  flight: Cache  # the token before the root, then the rows of the tree
  base: jax.Array  # [B] position of the first of these; -1 where there is none


@functools.cache
def walk(model: Model) -> Walker:
  """The walker of a model; its parameters are the model's.

  Args:
    model: the draft, over the target's vocabulary.
  """

  def init(params, ctx, hidden, rows):
    del hidden  # Unused.
    batch, slots = ctx.tokens.shape
    cache = transformer.open_cache(
      model, params.drafter, batch, slots, ctx.source
    )
    cache, _ = prefill.prefill(
      model, params.drafter, ctx.tokens, ctx.length, cache
    )
    flight = caches.empty(model.config, batch, rows + 1, cache[0].k.dtype)
    return cache, Fed(flight, ctx.length - 2)

  def forward(params, cache, block, tokens, at, offset, mask):
    alone = (block.base < 0)[:, None, None]
    rows = jnp.arange(mask.shape[-1])
    out = model.forward(
      params.drafter,
      tokens,
      block.base[:, None] + offset,
      cache,
      jnp.maximum(block.base, 0),
      mask & ~(alone & (rows == 0)),
      block.flight,
      at,
    )
    return out.hidden, block._replace(flight=out.flight)

  def start(params, cache, block, ctx):
    # The last drafted token of the step before was never fed. Feeding the
    # last two tokens at every step costs less than asking whether it stayed:
    #
    #   tokens  ... a b | x1 x2        cache holds all before a
    #   flight      a b   x1           rows 0, 1, 2
    #
    # A row of one token has no a: its row 0 is masked out.
    block = block._replace(base=ctx.length - 2)
    two = jnp.arange(2)
    index = jnp.maximum(block.base[:, None] + two, 0)
    tokens = jnp.take_along_axis(ctx.tokens, index, 1)
    slots = block.flight[0].v.shape[2]
    mask = jnp.broadcast_to(
      jnp.arange(slots) <= two[:, None], (*tokens.shape, slots)
    )
    hidden, block = forward(params, cache, block, tokens, 0, two, mask)
    return Step(model.head(params.drafter, hidden[:, -1:]), (), block)

  def feed(params, cache, block, ctx, row, depth, tokens, features, sees):
    del ctx, features  # Unused.
    mask = jnp.pad(sees, ((0, 0), (0, 0), (1, 0)), constant_values=True)
    offset = jnp.full(tokens.shape[1], depth + 1)
    hidden, block = forward(params, cache, block, tokens, row + 1, offset, mask)
    return Step(model.head(params.drafter, hidden), (), block)

  def commit(params, cache, block, ctx, verdict, hidden):
    del params, ctx, hidden  # Unused.
    # What was drawn and never fed has no row here, and is never in the way:
    # its slot lies beyond what the next step looks at.
    path = jnp.pad(verdict.path + 1, ((0, 0), (1, 0)))
    alone = (block.base < 0)[:, None]
    path = jnp.where(alone, jnp.roll(path, -1, 1), path)
    start = jnp.maximum(block.base, 0)
    return caches.commit(cache, block.flight, path, start)

  return Walker(
    init,
    start,
    feed,
    commit,
    init_params=model.init,
    positions=model.config.max_positions,
  )


def make(model: Model, depth: int, policy: Policy | None = None) -> Drafter:
  """A chain of a model; see `drafting.chain`."""
  return chain.make(walk(model), depth, policy)


def make_tree(
  model: Model, parents: tuple[int, ...], replacement: bool = False
) -> Drafter:
  """A static tree of a model; see `drafting.static_tree`."""
  return static_tree.make(walk(model), parents, replacement)


def check_encoder(target: Model, draft: Model, name: str) -> None:
  """Whether there is a source for the encoder of a draft.

  A draft without one fits any target: it reads the new text alone.

  Raises:
    ValueError: there is none; names the draft.
  """
  if draft.encode is not None and target.encode is None:
    raise ValueError(
      f'{name} is an encoder-decoder, and the target has no encoder: there is '
      'no source for it to read; use a draft without an encoder, or an '
      'encoder-decoder target'
    )


def read(
  target: Target, path: str, quantized: bool = False, dtype: str = ''
) -> tuple[Model, Any]:
  """The draft model of a directory, laid out and run as the target is.

  On the target's mesh, where it has one, as its placement has it for drafts.

  Heads may differ in size where the rest of the larger is unused; that the
  ids of both mean the same tokens is for the caller to see to, who has the
  tokenizers.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, or the name of a model on the Hub.
    quantized: see `checkpoints.load`.
    dtype: of its weights and cache; by default the target's.

  Raises:
    ValueError: it is a trained head, or has an encoder and the target none; or
      there is no such type.
  """
  host = target.model
  placement = host.placement and host.placement.for_draft
  check_path(path, 'a language model')
  path = str(checkpoints.locate(path))
  heads.refuse(path)
  model, params = checkpoints.load(
    path,
    precision.check(dtype or target.dtype),
    target.max_length,
    placement,
    quantized,
  )
  check_encoder(host, model, path)
  model = variants.with_cache_attention(model, host.config.attention)
  if columns := host.config.columns:
    model, params = variants.block(model, params, columns)
  return variants.resize_head(model, host.config.vocab_size), params


def describe(path: str, **options: Any) -> checkpoints.Description:
  """The draft model of a directory without its weights; see `load`."""
  del options  # Any shape drafts with the whole model.
  return checkpoints.describe(path)


def load(
  target: Target, path: str, dtype: str = '', **options: Any
) -> LoadedDrafter:
  """The drafter of a checkpoint, for a target; see `read`.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, or the name of a model on the Hub.
    dtype: of its weights and cache; by default the target's.
    **options: of `drafting.shape.Shape`; chains without any.
  """
  shape.check(target, options)  # Before anything is read.
  model, params = read(target, path, dtype=dtype)
  return shape.load(target, walk(model), options, params, model)
