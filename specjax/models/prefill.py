"""Prefill: texts are fed into a cache, in blocks and without logits."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import cache as caches
from specjax.models import linear, transformer, uniform
from specjax.models.config import TransformerConfig

_LEAST_READ, _MOST_READ = 32, 512  # slots
# Tokens of a block where the kernel multiplies. Arithmetic is the limit of its
# rows, and weights are read while a block of so many is computed.
_BY_ROWS = 32


def check_prompts(config: TransformerConfig, prompts: Sequence[Sequence[int]]):
  """Raises a ValueError where a prompt cannot be prefilled."""
  if isinstance(prompts, str) or any(isinstance(x, str) for x in prompts):
    raise ValueError(
      'prompts must be lists of token ids, got a text: encode it with the '
      "target's tokenizer"
    )
  if not len(prompts):
    raise ValueError('prompts is empty: give at least one')
  for i, prompt in enumerate(prompts):
    if not len(prompt):
      raise ValueError(f'prompt {i} is empty: it needs at least one token')
    if min(prompt) < 0 or max(prompt) >= config.vocab_size:
      raise ValueError(
        f'prompt {i} has a token outside the vocabulary of '
        f'{config.vocab_size} tokens'
      )
    if config.encoder is not None and len(prompt) > config.max_positions:
      raise ValueError(
        f'prompt {i} has {len(prompt)} tokens for the encoder, but the target '
        f'has {config.max_positions} positions: shorten it'
      )


def split(config: TransformerConfig, prompts: Sequence[Sequence[int]]):
  """Returns the texts that the decoder begins with, and the sources.

  Args:
    config: of the target.
    prompts: lists of token ids.

  Returns:
    Texts: the prompts, or the start token for each where an encoder reads
    these. And sources: the prompts then, otherwise None.
  """
  if config.encoder is None:
    return prompts, None
  return [[config.encoder.start]] * len(prompts), prompts


def check_slots(read: int, texts: Sequence[Sequence[int]], slots: int) -> None:
  """Raises unless texts can be read into the first slots of a buffer.

  Raises:
    ValueError: these are too few, too many, or no whole blocks.
  """
  needed = max(map(len, texts))
  if not needed <= read <= slots or read % caches.block_of(read):
    raise ValueError(
      f'read_slots is {read}: it must hold the {needed} tokens of a prompt, in '
      f'whole blocks, and fit into the {slots} slots of the buffer'
    )


def read_sizes(slots: int) -> tuple[int, ...]:
  """Slots that prompts are read into, for a buffer of so many.

    128   ->   32 64 128        4096   ->   32 64 128 256 512 4096

  A prompt of 20 tokens is then read at the price of 32, and not of a block of
  the buffer: 128 tokens, or 512 beyond 512 slots (`cache.block_of`). A larger
  one is read in such blocks, and only the blocks in use cost time; where the
  kernel multiplies, only the tokens in use do.
  """
  sizes = [_LEAST_READ]
  while 2 * sizes[-1] < min(slots, 2 * _MOST_READ):
    sizes.append(2 * sizes[-1])
  return *sizes, slots


def pad(texts: Sequence[Sequence[int]], slots: int):
  """Token ids [B, slots] and lengths [B] of texts, on the device."""
  padded = np.zeros((len(texts), slots), np.int32)
  for row, text in zip(padded, texts, strict=True):
    row[: len(text)] = text
  lengths = np.array([len(text) for text in texts], np.int32)
  return jax.device_put((padded, lengths))


def prefill(model, params, tokens, length, cache, taps=()):
  """Feeds all committed tokens but the last, which stays to be fed.

  Blocks of equal size are fed until the longest row is through, so one program
  serves every prompt length of a buffer.

  Args:
    model: a `transformer.Model`.
    params: its parameters.
    tokens: [B, S], S whole blocks, as `cache.round_slots` gives it.
    length: [B] committed tokens, at least 1.
    cache: an empty cache of S slots, see `transformer.open_cache`.
    taps: layers whose features to return.

  Returns:
    The cache, and the features [B, S, len(taps), E] of the tokens fed, zeros
    elsewhere.
  """
  batch, slots = tokens.shape
  size = caches.block_of(slots)
  if slots % size:  # As a draft with tokens of its own may have.
    size = 128
  if uniform.is_uniform(model):
    size = min(size, uniform.ROWS)
  if size % _BY_ROWS == 0 and linear.has_blocks(params):
    size = _BY_ROWS
  mask, offsets = transformer.causal(batch, size)
  dtype = caches.dtype_of(cache)

  def feed(i, carry):
    cache, features = carry
    begin = i * size
    block = jax.lax.dynamic_slice_in_dim(tokens, begin, size, axis=1)
    used = jnp.full(batch, begin)
    count = jnp.clip(length - 1 - begin, 0, size)
    seen = mask
    if model.config.skips_padding:
      seen = mask & (offsets < count[:, None])[..., None]
    out = model.forward(
      params, block, begin + offsets, cache, used, seen, taps=taps
    )
    cache = caches.fill(cache, out.flight, begin, count, model.config.native)
    fed = (begin + offsets < length[:, None] - 1)[..., None, None]
    here = jnp.where(fed, out.taps, 0).astype(dtype)
    return cache, jax.lax.dynamic_update_slice_in_dim(
      features, here, begin, axis=1
    )

  features = jnp.zeros((batch, slots, len(taps), model.config.width), dtype)
  blocks = (length.max() - 1 + size - 1) // size
  return jax.lax.fori_loop(0, blocks, feed, (cache, features))
