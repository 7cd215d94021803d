"""An independent small language model that drafts a chain.

Speculative decoding as Leviathan et al. (arXiv:2211.17192) and Chen et al.
(arXiv:2302.01318) describe it, with its own cache and an optional stop.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax import cache as caches
from specjax import sampling, trees
from specjax.models import checkpoints, reading, transformer
from specjax.models.transformer import Model
from specjax.types import Draft, Drafter


@functools.cache
def confidence(threshold: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Stop after a token whose q is below the threshold; the token stays.

  The rule of "assisted generation" (its confidence threshold), as a stopping
  time: it looks only at tokens that are kept.
  """
  if not 0 <= threshold <= 1:
    raise ValueError(f'threshold must be in [0, 1], got {threshold}')

  def stop(probs, token):
    return probs[token] < threshold

  return stop


@functools.cache
def make(
  model: Model,
  depth: int,
  stop: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> Drafter:
  """Returns the drafter; its parameters are the model's.

  Args:
    model: the draft, over the target's vocabulary.
    depth: K, tokens drafted at most.
    stop: (q [V], drawn token) -> whether to draft no further; of one row. It
      may depend on q and on tokens already drawn, which all stay.
  """
  if depth < 1:
    raise ValueError(f'depth must be at least 1, got {depth}')

  def init(params, ctx, hidden):
    del hidden  # Unused.
    batch, slots = ctx.tokens.shape
    cache = transformer.open_cache(
      model, params.drafter, batch, slots, ctx.source
    )
    return reading.prefill(
      model, params.drafter, ctx.tokens, ctx.length, cache
    )[0]

  def propose(params, cache, ctx, key):
    # The last drafted token of the step before was never fed. Feeding the
    # last two tokens at every step costs less than asking whether it stayed:
    #
    #   tokens  ... a b | x1 x2        cache holds all before a
    #   flight      a b   x1           rows 0, 1, 2
    #
    # A row of one token has no a: its row 0 is masked out.
    batch = ctx.length.shape[0]
    base = ctx.length - 2
    used = jnp.maximum(base, 0)
    alone = base < 0
    rows = jnp.arange(depth + 1)
    flight = caches.empty(model.config, batch, depth + 1, cache[0].k.dtype)
    u = jax.vmap(lambda k: jax.random.uniform(k, (depth,)))(key)
    laws = jax.vmap(sampling.law)

    def feed(tokens, at, flight, above):
      """q [B, V] after tokens [B, T] at rows at, at + 1, ...; see `law`."""
      here = at + jnp.arange(tokens.shape[1])
      mask = rows <= here[:, None]
      mask = mask & ~(alone[:, None, None] & (rows == 0))
      out = model.forward(
        params.drafter,
        tokens,
        base[:, None] + here,
        cache,
        used,
        mask,
        flight,
        at,
      )
      logits = model.head(params.drafter, out.hidden[:, -1])
      q, _ = laws(logits, ctx.sampling, ctx.history, above)
      return q, out.flight

    def draw(i, q, tokens, probs, size, going):
      token = jax.vmap(sampling.draw)(u[:, i], q)
      size = size + going
      if stop is not None:
        going &= ~jax.vmap(stop)(q, token)
      return (
        token,
        tokens.at[:, i].set(token),
        probs.at[:, i].set(q),
        size,
        going,
      )

    index = jnp.maximum(base[:, None] + jnp.arange(2), 0)
    none = jnp.zeros((batch, depth), jnp.int32)
    q, flight = feed(
      jnp.take_along_axis(ctx.tokens, index, 1), 0, flight, none - 1
    )
    drafted = draw(
      0,
      q,
      none,
      jnp.zeros((batch, depth, q.shape[-1]), q.dtype),
      jnp.zeros(batch, jnp.int32),
      jnp.ones(batch, bool),
    )

    def more(carry):
      i, _, (*_, going) = carry
      return (i < depth) & going.any()

    def turn(carry):
      i, flight, (token, *rest) = carry
      above = jnp.where(jnp.arange(depth) < i, rest[0], -1)
      q, flight = feed(token[:, None], i + 1, flight, above)
      return i + 1, flight, draw(i, q, *rest)

    one = jnp.ones((), jnp.int32)
    _, flight, drafted = jax.lax.while_loop(more, turn, (one, flight, drafted))
    _, tokens, probs, size, _ = drafted
    path = rows + alone[:, None]
    cache = caches.commit(cache, flight, path, used)
    return Draft(tokens, trees.chain(batch, depth), size, probs), cache

  def commit(params, cache, ctx, verdict, hidden):
    del params, ctx, verdict, hidden  # Unused.
    return cache

  return Drafter(
    depth,
    depth,
    init,
    propose,
    commit,
    init_params=model.init,
    positions=model.config.max_positions,
  )


@functools.cache
def resize(model: Model, vocab: int) -> Model:
  """The model with logits of another vocabulary, to which ids mean the same.

  A smaller head is filled with minus infinity, so that q is 0 there; of a
  larger one the rest is left out. Ids beyond the embedding are read as its
  last, as JAX reads beyond an array's end.

  Args:
    model: the model; its parameters stay as they are.
    vocab: entries of the logits.
  """
  own = model.config.vocab_size
  if own == vocab:
    return model

  def head(params, hidden):
    logits = model.head(params, hidden)[..., :vocab]
    widths = [(0, 0)] * (logits.ndim - 1) + [(0, vocab - logits.shape[-1])]
    return jnp.pad(logits, widths, constant_values=-jnp.inf)

  return model._replace(head=head)


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
  target: Model, path: str, max_length: int | None = None
) -> tuple[Model, Any]:
  """The draft model of a directory, laid out and run as the target is.

  On the target's mesh, where it has one, as its layout says of drafts.

  Heads may differ in size where the rest of the larger is unused; that the
  ids of both mean the same tokens is for the caller to see to, who has the
  tokenizers.

  Raises:
    ValueError: it has an encoder and the target has none.
  """
  layout = target.layout and target.layout.for_draft
  model, params = checkpoints.load(path, max_length=max_length, layout=layout)
  check_encoder(target, model, path)
  model = transformer.attend_by(model, target.config.attention)
  if target.config.blocked:
    model, params = transformer.block(model, params)
  return resize(model, target.config.vocab_size), params


def load(
  target: Model,
  depth: int,
  path: str,
  threshold: float = 0.0,
  max_length: int | None = None,
) -> tuple[Drafter, Any]:
  """The drafter of a checkpoint, for a target; see `read`.

  Args:
    target: the target model.
    depth: K.
    path: a Hugging Face directory.
    threshold: of `confidence`; 0 always drafts `depth` tokens.
    max_length: longest sequence of the run, see `checkpoints.load`.
  """
  model, params = read(target, path, max_length)
  stop = confidence(threshold) if threshold else None
  return make(model, depth, stop), params
