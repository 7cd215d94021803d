"""Logits over some of the target's tokens, as the target has all of them.

A head whose vocabulary is reduced costs less; what it leaves out has logit
minus infinity, so that q is 0 there and the distribution is the true one. It
remembers for every token of the target its place among its own logits.

  tokens of the target   0  1  2  3  4       ids      1  3
  places                 2  0  2  1  2       V_d = 2 stands for none
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.linear import declare


def places(ids: np.ndarray, vocab: int) -> np.ndarray:
  """Places [V] of the target's tokens among the logits of a head.

  Args:
    ids: [V_d] the token of each logit.
    vocab: V.

  Raises:
    ValueError: a token is beyond the vocabulary, or has two logits.
  """
  ids = np.asarray(ids, np.int64)
  if len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
    raise ValueError(
      f'a reduced vocabulary has the tokens {ids.min()} to {ids.max()}, and '
      f'the target {vocab}'
    )
  if len(np.unique(ids)) < len(ids):
    raise ValueError('a reduced vocabulary has a token twice')
  where = np.full(vocab, len(ids), np.int32)
  where[ids] = np.arange(len(ids))
  return where


def declare_places(module: nn.Module, kept: int, vocab: int):
  """The parameter `places` [V]: the first tokens, until others are read."""

  def first(key, shape):
    return jnp.minimum(jnp.arange(*shape), kept)

  return declare(module, 'places', (vocab,), start=first)


def ids(places: jax.Array, kept: int) -> jax.Array:
  """Returns the token [V_d] of each logit of a head; see `places`."""
  tokens = jnp.arange(len(places))
  return jnp.zeros(kept, jnp.int32).at[places].set(tokens, mode='drop')


def spread(logits: jax.Array, places: jax.Array) -> jax.Array:
  """Logits [..., V] of those [..., V_d] of a head; see the module."""
  # One beyond them would need a copy of the logits, which are many.
  found = jnp.asarray(logits).at[..., places].get(mode='clip')
  return jnp.where(places < logits.shape[-1], found, -jnp.inf)
