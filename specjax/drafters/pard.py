"""PARD: a small language model that says all places of a draft in one pass.

An et al., arXiv:2504.18583. Behind the last token of the text stand masks,
copies of one token that the model learned to read so; each says one place. A
mask sees the text and the masks before it, and nothing that is drawn, so that
drafts have their true probabilities in every shape, see `shapes.parallel`.

  text  .. a b | m m m      b and three masks say
  says         c d e f      four places

The pass that reads accepted tokens reads the next draft's masks, too. In
training masks stand behind many tokens of a text, see `heads.masked`.
"""

import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.checkpoints.families import values
from specjax.checkpoints.files import CONFIG, CheckpointError, read_json
from specjax.drafters.heads import masked
from specjax.drafters.shapes import parallel, shape
from specjax.drafters.shapes.step_model import Walker
from specjax.errors import blame
from specjax.models import cache as caches
from specjax.models import prefill, transformer
from specjax.models.transformer import Model
from specjax.types import Cache, Drafter

MASK = 'pard_token'  # of config.json


class State(NamedTuple):
  """Token i is slot i of the cache, the last one included."""

  cache: Cache
  hidden: jax.Array  # [B, K, E] after the last token and the masks behind it
  length: jax.Array  # [B] tokens of the text then


def mask_token(directory: pathlib.Path) -> int | None:
  """The token of the masks of a draft; None where it has none.

  Raises:
    CheckpointError: config.json names no token.
  """
  config = directory / CONFIG
  if not config.is_file():
    return None
  with blame(f'{config}: ', CheckpointError):
    return values.take(read_json(config), MASK, values.index, None)


@functools.cache
def walk(model: Model, mask: int, depth: int) -> Walker:
  """The walker of a draft that says `depth` places.

  Args:
    model: the draft, over the target's vocabulary.
    mask: token of the masks.
    depth: K.

  Raises:
    ValueError: the draft has no such token.
  """
  if mask >= model.config.vocab_size:
    raise ValueError(
      f'{MASK} is {mask}, but the draft has {model.config.vocab_size} tokens: '
      'copy the config.json that belongs to its weights'
    )

  def extend(params, cache, used, tokens, new, before):
    """Reads tokens and the masks behind them.

    Args:
      params: `Params`.
      cache: of the tokens before these.
      used: [B] how many those are.
      tokens: [B, R].
      new: [B] tokens that are of the text.
      before: [B, K, E] hidden states of the draft before.

    Returns:
      The cache of the text, and the hidden states of this draft.
    """
    batch, rows = tokens.shape
    drafts = parallel.with_masks(new, rows, depth - 1)
    tokens = jnp.pad(tokens, ((0, 0), (0, depth - 1)), constant_values=mask)
    block = caches.open_block(cache, model.config, rows + depth - 1)
    attention = used[:, None] + drafts.at, cache, used, drafts.sees, block, 0
    out = model.forward(params.drafter, tokens, *attention)
    path = jnp.broadcast_to(jnp.arange(rows), (batch, rows))
    cache = caches.commit(cache, out.flight, path, used, new)
    return cache, parallel.ahead(out.hidden, rows, new, before)

  def say(params, state):
    return parallel.Block(model.head(params.drafter, state.hidden))

  def init(params, ctx, hidden, fed):
    del hidden, fed  # Nothing is read of the target, and no drafted token.
    weights = params.drafter
    cache = transformer.open_cache(model, weights, *ctx.tokens.shape)
    cache, _ = prefill.prefill(model, weights, ctx.tokens, ctx.length, cache)
    last = ctx.length - 1
    token = jnp.take_along_axis(ctx.tokens, last[:, None], 1)
    sizes = len(last), depth, model.config.width
    none = jnp.zeros(sizes, transformer.dtype_of(weights))
    cache, made = extend(params, cache, last, token, jnp.ones_like(last), none)
    state = State(cache, made, ctx.length + 0)
    return state, parallel.empty(say, params, state)

  def start(params, state, block, ctx):
    del block, ctx  # Of the draft before; read when it was judged.
    return parallel.begin(say(params, state))

  def commit(params, state, block, ctx, verdict, hidden):
    del block, hidden  # Its masks were forgotten.
    at = state.length[:, None] + jnp.arange(verdict.path.shape[1])
    tokens = jnp.take_along_axis(ctx.tokens, at, 1)
    new = ctx.length - state.length
    cache, made = extend(
      params, state.cache, state.length, tokens, new, state.hidden
    )
    return State(cache, made, ctx.length + 0)

  return Walker(
    init,
    start,
    parallel.feed,
    commit,
    positions=model.config.max_positions,
  )


def make(model: Model, mask: int, depth: int, **options: Any) -> Drafter:
  """A drafter; see `walk`, and `shapes.shape.Shape` for its options."""
  made = shape.build(walk(model, mask, depth), depth, options)
  return made._replace(at_once=True)


def say_along(
  model: Model, mask: int, params, tokens, drafts: parallel.Masked
) -> jax.Array:
  """Logits [B, R + M, V] after the tokens [B, R] of texts and after masks."""
  count = drafts.begin.shape[1] - tokens.shape[1]
  tokens = jnp.pad(tokens, ((0, 0), (0, count)), constant_values=mask)
  attention = drafts.at, None, None, drafts.sees
  hidden = model.forward(params.drafter, tokens, *attention).hidden
  return model.head(params.drafter, hidden)


def loss(model: Model, masks: masked.Masks, params, seen, key):
  """Each token, and the masks behind it."""
  drafts = masks.draw(key, seen.weights)
  logits = say_along(model, masks.token, params, seen.tokens, drafts)
  return {'token': masked.judge(drafts, seen, logits)}
