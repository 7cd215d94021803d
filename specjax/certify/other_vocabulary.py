"""The draft of the tiny transformers with a vocabulary of its own.

  target   a  b  ab  end          draft   b  zz  end  a
  id       0  1   2    3          id      0   1    2  3

It lacks a token of the target, which it reads as two, and has one that the
target lacks.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.certify.tiny_models import TinyModels
from specjax.checkpoints import vocabularies
from specjax.checkpoints.vocabularies import reading
from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.drafters import lm
from specjax.drafters.shapes import chain
from specjax.types import Drafter

TARGET = Tokens(4, {0: b'a', 1: b'b', 2: b'ab'}, special={3: 'end'}, ends=(3,))
DRAFT = Tokens(4, {0: b'b', 1: b'zz', 3: b'a'}, special={2: '</s>'}, ends=(2,))
_ROWS = np.array([1, 2, 3, 0])  # of the draft's tokens in the target's
DEPTH = 3


def own(tiny: TinyModels) -> reading.Spelled:
  """Parameters of the draft, which says about what it says in all tokens."""
  weights: Any = dict(tiny.params.drafter)
  weights['embedding'] = weights['embedding'][_ROWS]
  weights['unembedding'] = weights['unembedding'][:, _ROWS]
  made, _ = vocabularies.tables.build(TARGET, DRAFT)
  return reading.Spelled(weights, made)


def without_end(tiny: TinyModels) -> reading.Spelled:
  """The same, where the draft's end of text is nothing to the target."""
  made = own(tiny)
  places = made.tables.places.at[3].set(DRAFT.size)
  return made._replace(tables=made.tables._replace(places=places))


def read() -> reading.Reading:
  made, _ = vocabularies.tables.build(TARGET, DRAFT)
  return reading.other(reading.sizes_of(made))


def loses_pieces() -> reading.Reading:
  """One that feeds the last piece of a token and takes the rest as read."""
  right = read()

  def last(own, ends, ctx):
    found = right.last(own, ends, ctx)
    return found._replace(known=found.base + right.width - 1)

  return right._replace(last=last)


def walk(tiny: TinyModels, how: reading.Reading):
  return lm.walk(tiny.draft, how)


def holding(drafter: Drafter, params: Any) -> Drafter:
  """The same drafter with parameters of its own, whatever it is given."""

  def bind(function):
    return lambda given, *rest: function(given._replace(drafter=params), *rest)

  return drafter._replace(
    init=bind(drafter.init),
    propose=bind(drafter.propose),
    commit=bind(drafter.commit),
  )


def drafter(
  tiny: TinyModels, params=own, how: reading.Reading | None = None
) -> Drafter:
  """The chain of the draft, with its own parameters."""
  walker = walk(tiny, how or read())
  return holding(chain.make(walker, DEPTH), params(tiny))


def masked(logits, *rest, distributions):
  """`distributions` of a target that is cut to the tokens of both."""
  both = vocabularies.tables.match(TARGET, DRAFT)
  common = np.array([token in both for token in range(TARGET.size)])
  return distributions(jnp.where(common, logits, -jnp.inf), *rest)
