"""A language model in eight bits: another's weights, the target's as a rule.

The draft is as sure as the model it was made from, and off by what rounding
does to q; verification makes up for that. It is `lm` in every other respect.
See `models.quantize` for what it saves.
"""

from typing import Any

from specjax.drafters import lm
from specjax.drafting import shape
from specjax.models import quantize
from specjax.models.transformer import Model
from specjax.types import Drafter


def load(
  target: Model,
  depth: int,
  path: str = '',
  target_path: str = '',
  max_length: int | None = None,
  **options: Any,
) -> tuple[Drafter, Any]:
  """The drafter of a checkpoint that is quantised here, or was before.

  Args:
    target: the target model.
    depth: K.
    path: a Hugging Face directory, of floats or of eight bits as
      `checkpoints.save` writes them; empty: the target's own.
    target_path: of the target.
    max_length: longest sequence of the run, see `checkpoints.load`.
    **options: of `drafting.shape.Shape`; a chain of K without any.

  Raises:
    ValueError: there is no path, or as `lm.read`.
  """
  shape.read(options)  # Before anything is read.
  path = path or target_path
  if not path:
    raise ValueError(
      'path is empty, and so is target_path: name a checkpoint to quantise'
    )
  model, params = quantize.quantize(
    *lm.read(target, path, max_length, quantized=True)
  )
  return shape.build(lm.walk(model), depth, options), params
