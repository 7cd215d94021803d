"""Divergences between the distributions p of the target and q of the draft.

Each is a function of their logarithms, over the last axis, in nats (total
variation has no unit). A chance of zero counts as exp(FLOOR), so that values
and gradients are finite wherever p or q vanishes.

The chance that the first drafted token is accepted is alpha = sum(min(p, q)),
which is 1 - total variation (Leviathan et al., arXiv:2211.17192). DistillSpec
(Zhou et al., arXiv:2310.08461) compares the four after the first as losses.
"""

import jax
import jax.numpy as jnp

from specjax.drafters.heads import trainable

FLOOR = -80.0  # its exponential is still a normal float32


def _bound(*logs: jax.Array) -> tuple[jax.Array, ...]:
  return tuple(jnp.maximum(x, FLOOR) for x in logs)


def cross_entropy(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """Forward KL and the entropy of p, which no draft changes."""
  return trainable.cross_entropy(*_bound(log_p, log_q))


def forward_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """KL(p || q): q must be everywhere where p is."""
  log_p, log_q = _bound(log_p, log_q)
  return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)


def reverse_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """KL(q || p): q must be nowhere where p is not."""
  return forward_kl(log_q, log_p)


def jensen_shannon(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """Mean of the KL of both from their mixture; at most log 2."""
  log_p, log_q = _bound(log_p, log_q)
  mixture = jnp.logaddexp(log_p, log_q) - jnp.log(2.0)
  return (forward_kl(log_p, mixture) + forward_kl(log_q, mixture)) / 2


def total_variation(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """Half of sum |p - q|: the chance of a rejection, 1 - alpha."""
  log_p, log_q = _bound(log_p, log_q)
  return jnp.sum(jnp.abs(jnp.exp(log_p) - jnp.exp(log_q)), -1) / 2


def minus_log_alpha(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """-log of the chance of acceptance, sum(min(p, q)).

  Its gradient is that of total variation over alpha: where the two disagree,
  it does not fade.
  """
  return -jax.nn.logsumexp(jnp.minimum(*_bound(log_p, log_q)), -1)


def acceptance_hybrid(
  log_p: jax.Array, log_q: jax.Array, eta: float = 3.0
) -> jax.Array:
  """Forward KL where little is accepted, total variation where much is.

  The hybrid LK loss (Samarin et al., arXiv:2602.23881): the weight of KL is
  exp(-eta alpha) of each place, through which no gradient flows, and eta is 3
  as there. Total variation alone has no gradient where p and q hardly meet.
  """
  variation = total_variation(log_p, log_q)
  weight = jnp.exp(-eta * jax.lax.stop_gradient(1 - variation))
  return weight * forward_kl(log_p, log_q) + (1 - weight) * variation
