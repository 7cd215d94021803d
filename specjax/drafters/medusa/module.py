"""The heads of Medusa, as functions of their weights.

Cai et al., arXiv:2401.10774. Head k is a residual block before an output layer,
the language model's or its own: softmax(head(h + SiLU(h W_k + b_k))).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.heads import overrides
from specjax.drafters.heads.formats import Kind
from specjax.models.linear import multiply
from specjax.models.transformer import Model


class Reading(NamedTuple):
  """How the weights of heads are read, beside their configuration.

  skip: heads that are left out: the next one says the first place.
  final_norm: whether they read features behind the target's last norm.
  """

  skip: int = 0
  final_norm: bool = True


USUAL = Reading()


def apply(target: Model, params, feature, reading: Reading = USUAL):
  """Logits [..., K, V] of all heads after features [..., E]."""
  own, h = params.drafter, feature
  if reading.final_norm:
    h = target.norm(params.target, feature)
  rows = target.config.device.rows
  y = multiply(h, own['residual'], rows)
  if 'bias' in own:
    y += own['bias']
  y = y.reshape(*h.shape[:-1], -1, h.shape[-1])
  y = (h[..., None, :] + jax.nn.silu(y))[..., reading.skip :, :]
  if 'unembedding' not in own:
    return target.head(params.target, y)
  count = range(y.shape[-2])
  said = [
    multiply(y[..., k, :], own['unembedding'][_name(k + reading.skip)], rows)
    for k in count
  ]
  return jnp.stack(said, -2)


def _name(index: int) -> str:
  """The parameters of head i, counted from 0."""
  return f'head{index + 1}'


def near(reading: Reading, count: int) -> overrides.Readings:
  """Other readings of the weights of `count` heads, one mistake away."""
  found = overrides.other_norm('final_norm', reading.final_norm)
  for skip in (reading.skip - 1, reading.skip + 1):
    if skip in (0, 1) and skip < count:
      found[f'{skip} heads left out'] = {'skip': skip}
  return found


class Heads(NamedTuple):
  """The heads for a target.

  Attributes:
    target: the target model.
    config: their `count`, and whether they have a `bias` and an `unembedding`
      of their own, each.
  """

  target: Model
  config: Mapping[str, Any]

  @property
  def reading(self) -> Reading:
    return overrides.pick(Reading, self.config)

  def shapes(self) -> dict[str, Any]:
    """Returns the shapes of the weights."""
    count, width = self.config['count'], self.target.config.width

    def array(*shape):
      return jax.ShapeDtypeStruct(shape, jnp.float32)

    made = {'residual': array(width, count * width)}
    if self.config.get('bias'):
      made['bias'] = array(count * width)
    if self.config.get('unembedding'):
      one = array(width, self.target.config.vocab_size)
      made['unembedding'] = {_name(k): one for k in range(count)}
    return made


KIND = Kind('medusa', Reading._fields, Heads)
