"""A language model that is a table: logits [V, V] after every last token.

It has a transformer's interface and can be worked out by hand. It never looks
at a cache, so it is blind to errors there.
"""

import functools

import jax
import jax.numpy as jnp

from specjax.models import cache as caches
from specjax.models.transformer import Model, Output, TransformerConfig


@functools.cache
def build(vocab_size: int, max_positions: int = 512) -> Model:
  """The model whose parameters are its table; the same object every time."""
  config = TransformerConfig(
    vocab_size=vocab_size,
    width=vocab_size,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    mlp_width=1,
    max_positions=max_positions,
  )

  def init(key):
    return jax.random.normal(key, (vocab_size, vocab_size))

  def forward(
    params, tokens, positions, cache, length, mask, flight=None, at=0, taps=()
  ):
    batch, count = tokens.shape
    if flight is None:
      flight = caches.empty(config, batch, count, params.dtype)
    tapped = jnp.zeros((batch, count, len(taps), vocab_size), params.dtype)
    return Output(params[tokens], tapped, flight)

  def head(params, hidden):
    return hidden

  return Model(config, init, forward, head)
