"""The target drafts for itself from a window of its own cache.

Of a long text most of what a step reads is the cache, and the end of the text
says most of what comes next. So the target's own weights draft, and read of its
cache the last tokens and the first ones (sinks: Xiao et al., 2023,
arXiv:2309.17453), as the first level of TriForce (Sun et al., 2024,
arXiv:2404.11912) and of MagicDec (Chen et al., 2024, arXiv:2408.11049). Nothing
is copied, read or remembered besides: slots and positions are the target's, and
the tokens of a draft have a block of their own. A draft token costs the weights
and the window; it pays where the cache outweighs the weights.
"""

from typing import Any, Literal

from specjax.arguments import check_no_path, check_number
from specjax.drafters import early_exit
from specjax.drafters.shapes import shape
from specjax.drafters.shapes.step_model import Walker
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target


def walk(target: Model, window: int, sinks: int = 0) -> Walker:
  """The walker: an exit behind the last layer that sees a window."""
  return early_exit.walk(target, target.config.num_layers, window, sinks)


def load(
  target: Target,
  path: Literal[''] = '',
  window: int = 512,
  sinks: int = 4,
  **options: Any,
) -> LoadedDrafter:
  """The drafter for a target; it has no weights of its own.

  Args:
    target: what is drafted for.
    path: empty: the weights are the target's.
    window: tokens that a draft token sees, itself included, at least 1. In
      layers with a smaller window of their own it sees no more than there.
    sinks: first tokens of the text that it sees besides, fewer than positions.
    **options: of `shapes.shape.Shape`; chains without any.

  Raises:
    ValueError: there is no such window, or the target is an encoder-decoder.
  """
  check_no_path(path)
  shape.check(target, options)
  check_number('window', window, 1)
  layers = target.model.config.num_layers
  return early_exit.load(target, '', layers, window, sinks, **options)
