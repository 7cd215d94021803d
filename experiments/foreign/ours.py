"""Our own rules through the door of foreign samplers.

specjax certify --foreign=experiments.foreign.ours.token
"""

import jax
import jax.numpy as jnp

from specjax import sampling, verify
from specjax.types import Draft, History, Rule, Sampling
from specjax.verify.judge import walk


def of_rule(rule: Rule, distributions=sampling.distributions):
  """Makes a sampler of a rule, and of how the target is processed."""

  def judge(draft, q, scores, coins):
    depth = draft.shape[0]
    chain = Draft(draft, jnp.arange(depth), jnp.int32(depth), q)
    bits = (coins * 2**24).astype(jnp.uint32).clip(0, 2**24 - 1) << 8
    u = sampling.uniform(bits[:depth], scores.probs.dtype)
    path, count = walk(chain, rule.accept(chain, scores), u, depth)
    token = sampling.draw(bits[depth:], rule.rest(chain, scores, path[-1]))
    place = jnp.arange(depth + 1)
    kept = jnp.where(place < count, jnp.append(draft, 0), -1)
    return jnp.where(place == count, token, kept)

  @jax.jit
  def sampler(draft: jax.Array, q, logits, values, uniforms):
    above = jnp.full((*logits.shape[:2], 1), -1)
    scores = distributions(logits, Sampling(**values), History(), above)
    return jax.vmap(judge)(draft, q, scores, uniforms)

  sampler.coins = lambda gamma, vocab: (gamma + 2, 0)
  return sampler


token = of_rule(verify.token)
block = of_rule(verify.block)
