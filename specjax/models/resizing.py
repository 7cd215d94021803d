"""Models whose heads have the size of another vocabulary."""

import functools

import jax.numpy as jnp

from specjax.models.transformer import Model


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
