"""A transformer of plain functions as a target, by the first door."""

import jax
import jax.numpy as jnp

import specjax
from experiments.own_models import draw, target
from specjax.models import cache as caches


def forward(
  params, tokens, positions, cache, length, mask, flight=None, at=0, taps=()
):
  """Reads the cache below `length`, and the block as far as its mask goes."""
  x, new, tapped = params['words'][tokens] + params['places'][positions], [], []
  if cache is not None:
    below = jnp.arange(cache[0].k.shape[3]) < length[:, None, None]
    mask = jnp.concatenate([jnp.repeat(below, mask.shape[1], 1), mask], 2)
  for i, layer in enumerate(params['layers']):
    q, k, v = jnp.einsum('bte,nef->nbtf', x, layer[:3])
    rows = caches.block_of_rows(k[:, :, None], v[:, :, None])
    new.append(caches.put(flight[i], rows, at) if flight else rows)
    held = [cache[i], new[i]] if cache else [new[i]]
    keys = jnp.concatenate([kv.k for kv in held], 3)
    values = jnp.concatenate([kv.v for kv in held], 2)
    weights = jnp.einsum('bte,bges->bts', q, keys)
    weights = jax.nn.softmax(weights, where=mask)
    x = jnp.tanh(x + jnp.einsum('bts,bgse->bte', weights, values) @ layer[3])
    tapped += [x] * (i in taps)
  tapped = jnp.stack([*tapped, x], 2)[:, :, : len(taps)]
  return specjax.Output(x, tapped, tuple(new))


def load(seed=0, vocab=2048, width=32, layers=2) -> specjax.Target:
  sizes = specjax.Sizes(vocab, width, layers, 1, width, max_positions=1024)
  model = specjax.Model(sizes, None, forward, lambda p, x: x @ p['words'].T)
  params = {'words': jnp.zeros((vocab, width))}
  params['places'] = jnp.zeros((1024, width))
  params['layers'] = jnp.zeros((layers, 4, width, width))
  return target(model, draw(params, seed, 0.4))
