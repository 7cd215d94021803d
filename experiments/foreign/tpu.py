"""The rejection sampler of tpu-inference, with what its runner gives to it.

  specjax certify --foreign=experiments.foreign.tpu.chosen

The runner drafts without probabilities; the function that it calls takes them,
and `drawn` gives them.
"""

import functools
import types
from unittest import mock

import jax
import jax.numpy as jnp

from experiments import foreign
from specjax.certify.cells import exponentials

foreign.stub(
  'torch',
  'torchax',
  'tpu_inference.env_override',
  'tpu_inference.runner',
  'tpu_inference.tpu_info',
  'tpu_inference.utils',
  'vllm',
)

from tpu_inference.layers.jax.sample import (  # noqa: E402
  rejection_sampler,
  sampling,
)


def _metadata(values, greedy: bool):
  """Values as `InputBatch` stores them: a greedy row has temperature -1."""
  cold = values['temperature'] == 0
  return sampling.TPUSupportedSamplingMetadata(
    temperature=jnp.where(cold, -1.0, values['temperature']),
    top_k=values['top_k'],
    top_p=values['top_p'],
    do_sampling=not greedy,
  )


@functools.partial(jax.jit, static_argnames='greedy')
def _plain(logits, values, greedy):
  metadata = _metadata(values, greedy)
  processed = sampling._apply_sampling_transforms(logits, metadata)
  best = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1])
  cold = metadata.temperature < sampling._SAMPLING_EPS
  return jnp.where(cold[:, None], best, jax.nn.softmax(processed))


@functools.partial(jax.jit, static_argnames='greedy')
def _judge(draft, q, logits, values, coins, race, greedy):
  rows, gamma = draft.shape
  vocab = logits.shape[-1]
  # The bonus token is drawn as the next token of plain decoding.
  ends = _plain(logits[:, -1], values, greedy).cumsum(-1)
  bonus = (coins[:, -1:] * ends[:, -1:] >= ends[:, :-1]).sum(-1)
  target, metadata = (
    logits[:, :-1].reshape(-1, vocab),
    _metadata(values, greedy),
  )
  counts = jnp.full(rows, gamma)
  given = types.SimpleNamespace(
    split=lambda key: (key, key),
    uniform=lambda key, shape: coins[:, :-1].reshape(shape),
    exponential=lambda key, shape: race.reshape(shape),
  )
  ours = types.SimpleNamespace(**{**vars(jax), 'random': given})
  with mock.patch.object(rejection_sampler, 'jax', ours):
    if not greedy:
      target = rejection_sampler._compute_probs(target, counts, metadata)
    found = rejection_sampler.rejection_sample(
      draft.ravel(),
      counts,
      None if q is None else q.reshape(-1, vocab),
      target,
      bonus,
      not greedy,
      key=0,
    )
  main, last = jnp.split(found, [rows * gamma])
  return jnp.concatenate([main.reshape(rows, gamma), last[:, None]], 1)


def drawn(draft: jax.Array, q, logits, values, uniforms):
  gamma = draft.shape[1]
  coins, race = jnp.split(uniforms, [gamma + 1], axis=1)
  greedy = bool((values['temperature'] == 0).all())
  race = jnp.asarray(exponentials(race), jnp.float32)
  return _judge(draft, q, logits, values, coins, race, greedy)


def chosen(draft: jax.Array, q, logits, values, uniforms):
  if q is not None:
    raise NotImplementedError('its runner drafts without probabilities')
  return drawn(draft, q, logits, values, uniforms)


def plain(logits: jax.Array, values):
  return _plain(logits, values, bool((values['temperature'] == 0).all()))


# A race for each drafted token.
drawn.coins = chosen.coins = lambda gamma, vocab: (gamma + 1, gamma)
drawn.plain = chosen.plain = plain
