"""The interface of a trained drafter, and its view of the target."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from specjax.models.transformer import Model
from specjax.types import Drafter

Divergence = Callable[[jax.Array, jax.Array], jax.Array]


def cross_entropy(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """Nats [...] of tokens of p under q, both log-probabilities [..., V].

  The token that a text goes on with is one draw from p: the expectation is the
  same and the noise less (Hinton et al., arXiv:1503.02531).
  """
  return -(jnp.exp(log_p) * log_q).sum(-1)


class Seen(struct.PyTreeNode):
  """A frozen target on whole texts: position t has seen tokens 0 to t.

  counts: 1 where the target's distribution after token t is to be learned, and
    0 elsewhere: in questions, and behind the end. None: everywhere.
  divergence: of log-probabilities [..., V] of the target and of a drafter,
    [...]: what is to be minimised.
  """

  tokens: jax.Array  # [B, T]
  hidden: jax.Array  # [B, T, len(taps), E] features of the layers asked for
  logits: jax.Array  # [B, T, V]
  counts: jax.Array | None = None  # [B, T]
  divergence: Divergence = struct.field(
    pytree_node=False, default=cross_entropy
  )

  @property
  def weights(self) -> jax.Array:
    """`counts` as numbers."""
    if self.counts is None:
      return jnp.ones(self.tokens.shape)
    return self.counts.astype(jnp.float32)

  def behind(self, begin: int) -> 'Seen':
    """Returns the part from place `begin` on."""
    whole = self.replace(counts=self.weights)
    return jax.tree.map(lambda x: x[:, begin:], whole)

  def following(self, vocab: int) -> 'Seen':
    """Returns texts whose own next tokens are to be learned, of `vocab`."""
    after = jax.nn.one_hot(jnp.roll(self.tokens, -1, 1), vocab)
    return self.replace(
      logits=jnp.log(after),
      counts=self.weights.at[:, -1].set(0.0),
      divergence=cross_entropy,
    )

  def judge(
    self, goal: jax.Array, logits: jax.Array, weight: jax.Array
  ) -> jax.Array:
    """Mean divergence of a drafter from the target.

    Args:
      goal: [..., V] logits of the target.
      logits: [..., V] of the drafter.
      weight: [...] of each place; see `weights`.
    """
    log_p, log_q = (
      jax.nn.log_softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
      for x in (goal, logits)
    )
    return mean(self.divergence(log_p, log_q), weight)


def mean(values: jax.Array, weight: jax.Array) -> jax.Array:
  """Weighted mean of all values; 0 where no place counts."""
  total = weight.sum()
  return (values * weight).sum() / jnp.where(total > 0, total, 1)


class Trainable(NamedTuple):
  """The functions and facts that training needs of a drafter.

  config: sizes, with which it is made again; as JSON.
  taps: layers of the target whose features it reads.
  init(key, target_params) -> params: fresh weights.
  loss(params, seen, key) -> dict of scalars, whose sum is to be minimised;
    `params` is `Params`, and only those of the drafter are trained. Made of
    `seen.judge`, it follows the divergence that a recipe names.
  drafter(depth) -> Drafter: a chain, to see what is accepted.
  measure(params, seen, begin) -> dict of arrays, sums over texts, from place
    `begin` on, that are kept in the config: what a tree is chosen by.
  save(path, config, params): writes it into a new directory, and
  read(path) -> params: reads them again; None of both: as heads are kept.
  model: the drafter as a model that writes texts without the target, if it is.
  """

  config: dict[str, Any]
  taps: tuple[int, ...]
  init: Callable[..., Any]
  loss: Callable[..., dict[str, jax.Array]]
  drafter: Callable[[int], Drafter]
  measure: Callable[..., dict[str, jax.Array]] | None = None
  save: Callable[..., None] | None = None
  read: Callable[..., Any] | None = None
  model: Model | None = None
