"""A language model in few bits: another's weights, the target's as a rule.

The draft is as sure as the model it was made from, and off by what rounding
does to q; verification makes up for that. It is `lm` in every other respect.
See `models.low_bits` for what it saves.
"""

from typing import Any

from specjax import checkpoints
from specjax.checkpoints.parameters import FLOATS, WeightForm
from specjax.drafters import lm
from specjax.drafters.heads.frequencies import Reduction
from specjax.drafters.shapes import shape
from specjax.models import linear, low_bits
from specjax.types import LoadedDrafter, Target


def describe(
  path: str = '', bits: int = 8, rounds: bool = False, **options: Any
) -> checkpoints.Description | None:
  """A checkpoint without its weights; None where they are the target's own."""
  if not path:
    return None
  stored = lm.describe(path, quantized=True, **options)

  def shapes(dtype, form):
    form = form._replace(weights=f'int{bits}', rounds=rounds)
    return stored.shapes(dtype, form)

  return stored._replace(shapes=shapes)


def load(
  target: Target,
  path: str = '',
  dtype: str = '',
  vocabulary: int = 0,
  frequencies: str = '',
  bits: int = 8,
  rounds: bool = False,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of a checkpoint that is quantised here, or was before.

  Args:
    target: what is drafted for.
    path: a Hugging Face directory, of floats or of eight bits as
      `checkpoints.save` writes them; empty: the target's own.
    dtype: of what stays floats, and of its cache; by default the target's.
    vocabulary: tokens that get a logit, see `frequencies.Reduction`; 0: all.
    frequencies: how frequent they are, likewise.
    bits: of a weight, 8 or 4.
    rounds: round activations to eight bits as well.
    **options: of `shapes.shape.Shape`; chains without any.

  Raises:
    ValueError: there is no path, no such number of bits, or as `lm.read`.
  """
  shape.check(target, options)  # Before anything is read.
  if bits not in low_bits.BITS:
    raise ValueError(f'bits is {bits}: choose 8 or 4')
  path = path or target.path
  if not path:
    raise ValueError(
      'path is empty, and the target has none: name a checkpoint to quantise'
    )
  kept = Reduction(vocabulary, frequencies).choose(target)
  other = lm.compare(target, path)
  mask = lm.mask_token(path, other)
  # One after another, so that no second copy is in memory.
  form = WeightForm(f'int{bits}', rounds, target.model.config.native)
  if on_mesh := target.model.placement is not None:
    form = FLOATS
  model, params = lm.read(target, path, True, dtype, other, kept, form=form)
  if on_mesh:
    tied = model.config.tied_embeddings
    params = linear.quantize(params, tied, bits, rounds)
  return lm.of(target, model, params, other, mask, **options)
