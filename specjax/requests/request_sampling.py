"""The sampling stages of a pool, and the values of each request.

Which stages exist is part of the compiled program. So they are chosen once, and
a request that does not ask for one gets it at the value that changes nothing.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from specjax import arguments, sampling
from specjax.sampling import constrained, predictions
from specjax.sampling.predictions import NOTHING, Predicted
from specjax.types import Prediction, Sampling, Spec

# Arguments of `sampling.make`, at values that change nothing.
NEUTRAL: dict[str, Any] = {
  'temperature': 1.0,
  'top_k': 0,
  'top_p': 1.0,
  'min_p': 0.0,
  'repetition_penalty': 1.0,
  'presence_penalty': 0.0,
  'frequency_penalty': 0.0,
  'logit_bias': {},
  'forbidden': (),
  'min_new_tokens': 0,
  'constraint': None,
}


@dataclasses.dataclass(frozen=True)
class Stages:
  """Stages that requests may use, besides the temperature.

  Attributes:
    names: of arguments of `sampling.make`, such as `('top_p',)`.
    vocab_size: V.
    eos: tokens that end a text.
    constraint: Q and C of the largest automaton that a request may have, see
      `types.Constraint`; powers of two. Every row has tables of that size.
    prediction: tokens of the longest prediction that a request may have, see
      `sampling.make`; 0: none has any.

  Raises:
    ValueError: a name is unknown.
  """

  names: tuple[str, ...]
  vocab_size: int
  eos: tuple[int, ...] = ()
  constraint: tuple[int, int] = (256, 64)
  prediction: int = 0

  def __post_init__(self):
    for name in self.names:
      if name not in NEUTRAL:
        raise ValueError(
          f'stages has no {name!r}: choose of {", ".join(NEUTRAL)}'
        )
    arguments.check_numbers('constraint', self.constraint, 1)

  def values(
    self,
    temperature: Any = 0.0,
    prediction: Predicted = NOTHING,
    **given: Any,
  ) -> Sampling:
    """Values of one request, checked; on the host.

    Args:
      temperature: 0 is greedy.
      prediction: what drafts are copied from, see `sampling.behind`.
      **given: as for `sampling.make`; None is neutral, too.

    Raises:
      ValueError: one is out of range, or of a stage that is not here.
    """
    given = {name: x for name, x in given.items() if x is not None}
    for name in given:
      if name not in self.names:
        raise ValueError(
          f'{name} is no stage here: there are {self.names}, chosen when the '
          'pool was opened'
        )
    chosen = {name: NEUTRAL[name] for name in self.names} | given
    chosen['temperature'] = temperature
    eos, vocab_size = self.eos, self.vocab_size
    asked = chosen.pop('constraint', None)
    made: Any = sampling.make(1, **chosen, vocab_size=vocab_size, eos=eos)
    if 'constraint' in self.names:
      least, room = made.min_new_tokens, self.constraint
      rows = constrained.of_rows(1, asked, vocab_size, eos) or [None]
      constrained.check_ways(rows, least, made.forbidden)
      tables = constrained.tables(rows, least, vocab_size, room)
      ends = np.array([self.eos], np.int32)
      made = made._replace(constraint=tables, ends=ends)
    if self.prediction or prediction.tokens:
      made = made._replace(prediction=self.predicted(prediction))
    return jax.device_get(made)

  def predicted(self, prediction: Predicted) -> Prediction:
    """The prediction of one request; see `values`."""
    given = [prediction], self.vocab_size, self.prediction
    return predictions.of_rows(1, *given)


def of(spec: Spec, *names: str, **options: Any) -> Stages:
  """The stages of what runs; see `Stages`."""
  vocab_size = spec.target.config.vocab_size
  return Stages(names, vocab_size, spec.eos, **options)
