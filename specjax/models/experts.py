"""A mixture of experts without capacity: every token gets what it chose."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models.config import Experts as Mixture
from specjax.models.config import TransformerConfig
from specjax.models.linear import declare, multiply


@dataclasses.dataclass(frozen=True)
class Swish:
  """x sigmoid(rate x), which SiLU is at a rate of 1."""

  rate: float

  def __call__(self, x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(self.rate * x)


def _choose(e: Mixture, scores: jax.Array, shift: jax.Array | None):
  """Returns the odds [T, chosen] of experts, and which they are.

  Args:
    e: the mixture.
    scores: [T, experts].
    shift: [experts] a bias of each in the choice, where odds are sigmoids.
  """
  odds = jax.nn.softmax(scores) if shift is None else jax.nn.sigmoid(scores)
  wanted = odds if shift is None else odds + shift
  if e.groups > 1:
    apart = wanted.reshape(len(wanted), e.groups, -1)
    best, _ = jax.lax.top_k(apart, 1 if shift is None else 2)
    _, groups = jax.lax.top_k(best.sum(-1), e.best_groups)
    eligible = (groups[..., None] == jnp.arange(e.groups)).any(1)
    apart = jnp.where(eligible[..., None], apart, -jnp.inf)
    wanted = apart.reshape(wanted.shape)
  weight, chosen = jax.lax.top_k(wanted, e.chosen)
  if shift is not None:
    weight = jnp.take_along_axis(odds, chosen, -1)
  return weight, chosen


class Experts(nn.Module):
  """x [..., E] -> [..., E], a weighted sum of the chosen experts.

  The time of a small step is that of reading weights: to read all experts for
  one token would make plain decoding slower than it has to be, and speculation
  look better than it is. So a few tokens loop over their choices, and read one
  expert for each. Where tokens x chosen > experts there is nothing to save: the
  loop is over the experts, each computes all tokens, and those that did not
  choose it have weight 0.

  It is a loop because the alternatives are slower on a CPU: a gather copies the
  experts' weights, and one product over all experts takes longer still, for one
  token and for hundreds.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x, seen=None):
    """Returns the sum; `seen` [..., E] is what the router reads, if not x."""
    c, e = self.config, self.config.experts
    width = x.shape[-1]
    router = declare(self, 'router', (c.width, e.count), ('width', None))
    up = declare(
      self,
      'up',
      (e.count, width, 2 if c.gated else 1, e.width),
      ('experts', 'width', None, 'mlp'),
      width**-0.5,
    )
    down = declare(
      self,
      'down',
      (e.count, e.width, width),
      ('experts', 'mlp', 'width'),
      c.out_scale,
    )
    own = functools.partial(declare, self, start=0.02)
    biases = None, None
    if e.bias:
      biases = (
        own('up_b', (e.count, 2, e.width), ('experts', None, 'mlp')),
        own('down_b', (e.count, width), ('experts', 'width')),
      )
    rows = x.reshape(-1, width)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    scores = (rows if seen is None else seen.reshape(-1, c.width)) @ router
    if e.bias:
      scores += own('router_b', (e.count,))
    shift = None
    if e.sigmoid:
      shift = own('router_shift', (e.count,)).astype(dtype)
    weight, chosen = _choose(e, scores.astype(dtype), shift)
    if e.normalize:
      weight /= weight.sum(-1, keepdims=True)
    if e.scale != 1:
      weight *= e.scale
    if e.beside:
      gain = own('router_gain', (e.count,))
      weight *= gain.astype(dtype)[chosen]
    weight = weight.astype(x.dtype)
    # Kept by those alone who ask for it, see `transformer.choose_experts`.
    self.sow('intermediates', 'chosen', chosen.reshape(*x.shape[:-1], -1))
    if chosen.size <= e.count:
      y = self._walk_choices(rows, weight, chosen, (up, down, *biases))
    else:
      y = self._walk_experts(rows, weight, chosen, (up, down, *biases))
    return y.reshape(x.shape)

  def _one(self, rows, expert, weights):
    """Rows [T, E] through one expert; weights are of all of them."""
    up, down, up_bias, down_bias = jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, expert, 0, False), weights
    )
    c, limit = self.config, self.config.experts.limit
    y = multiply(rows, up, c.device.rows)
    if up_bias is not None:
      y += up_bias
    gate, gated = y[:, 0], y[:, 1] if c.gated else 1
    if limit is not None:
      gate = jnp.minimum(gate, limit)
      gated = jnp.clip(gated, -limit, limit) + 1
    y = multiply(c.activation(gate) * gated, down, c.device.rows)
    return y if down_bias is None else y + down_bias

  def _walk_choices(self, rows, weight, chosen, weights):
    ways = chosen.shape[1]

    def add(i, y):
      token, way = i // ways, i % ways
      row = jax.lax.dynamic_slice_in_dim(rows, token, 1)
      part = self._one(row, chosen[token, way], weights)[0]
      return y.at[token].add(part * weight[token, way])

    return jax.lax.fori_loop(0, chosen.size, add, jnp.zeros_like(rows))

  def _walk_experts(self, rows, weight, chosen, weights):
    def add(expert, y):
      share = jnp.where(chosen == expert, weight, 0).sum(1, keepdims=True)
      return y + self._one(rows, expert, weights) * share

    return jax.lax.fori_loop(
      0, self.config.experts.count, add, jnp.zeros_like(rows)
    )
