"""Models of other code bases as targets, a file each."""

import jax

import specjax
from specjax import checkpoints, pair


def draw(weights, seed: int, scale: float = 0.2):
  """Adds normal noise to every array, so that no layer is left out.

  Packages begin some matrices with zeros.
  """
  leaves, structure = jax.tree.flatten(weights)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  noise = [
    scale * jax.random.normal(key, leaf.shape, leaf.dtype)
    for key, leaf in zip(keys, leaves, strict=True)
  ]
  return jax.tree.unflatten(
    structure, [a + b for a, b in zip(leaves, noise, strict=True)]
  )


def target(model: specjax.Model, params, eos=(0,)) -> specjax.Target:
  """Returns the target, with the embedded tokenizer if its tokens fit."""
  tokenizer = checkpoints.load_tokenizer(pair.path('target'))
  known = tokenizer if len(tokenizer) == model.config.vocab_size else None
  return specjax.Target.of(model, params, tokenizer=known, eos=eos)
