"""Models of other code in place of a checkpoint: made by a function by name.

Where a program takes a path, 'load:module.function' names a function that
returns a `specjax.Target`. The functions of this package then answer by it.
"""

import dataclasses
import functools
import os
import pathlib
import pkgutil
from collections.abc import Callable
from typing import Any

from specjax.checkpoints.files import CheckpointError
from specjax.checkpoints.parameters import FLOATS, WeightForm
from specjax.errors import first_line
from specjax.models.config import TransformerConfig
from specjax.models.transformer import Model
from specjax.types import Target, Weights

PREFIX = 'load:'


def read(path: str | os.PathLike) -> Target | None:
  """Returns the target of a path that names a function; None of any other.

  A function is called once.

  Raises:
    CheckpointError: there is no such function, it fails, or it returns
      something else.
  """
  text = os.fspath(path) if isinstance(path, str | os.PathLike) else ''
  return _call(text[len(PREFIX) :]) if text.startswith(PREFIX) else None


@functools.cache
def _call(name: str) -> Target:
  try:
    function = pkgutil.resolve_name(name)
  except (ImportError, AttributeError, ValueError) as error:
    raise CheckpointError(
      f'{PREFIX}{name}: there is no such function ({error}); name one as '
      'module.function, of a module that can be imported from here'
    ) from error
  if not callable(function):
    raise CheckpointError(f'{PREFIX}{name} is no function')
  try:
    made = function()
  except Exception as error:  # Other code may raise anything.
    raise CheckpointError(
      f'{PREFIX}{name} fails: {type(error).__name__}: {first_line(error)}'
    ) from error
  if not isinstance(made, Target) or made.params is None:
    raise CheckpointError(
      f'{PREFIX}{name} must return what specjax.Target.of returns, got '
      f'{type(made).__name__}'
    )
  if isinstance(made.model.config, TransformerConfig):
    raise CheckpointError(
      f'{PREFIX}{name} returns a model of specjax: give its directory as path'
    )
  # What asks for shapes of parameters asks `init`.
  model = made.model._replace(init=lambda key: made.params)
  return dataclasses.replace(made, path=PREFIX + name, model=model)


def or_of(answer: Callable[..., Any]) -> Callable[[Callable], Callable]:
  """Lets a function of a path answer by answer(target, ...) for such models.

  Args:
    answer: takes the target in place of the path.
  """

  def wrap(function):
    @functools.wraps(function)
    def call(path, *args, **options):
      made = read(path)
      if made is None:
        return function(path, *args, **options)
      return answer(made, *args, **options)

    return call

  return wrap


def path_of(target: Target, *args: Any, **options: Any) -> pathlib.Path:
  """Returns the path that names a model of other code, as it is."""
  del args, options  # Nothing is fetched.
  return pathlib.Path(target.path)


def weights_of(
  target: Target,
  dtype: Any = 'auto',
  max_length: int | None = None,
  placement: Any = None,
  quantized: bool = False,
  form: WeightForm = FLOATS,
) -> tuple[Model, Weights]:
  """Returns the model and its weights, as `checkpoints.load` is asked for them.

  Raises:
    CheckpointError: they are asked for in another form than they have.
  """
  del max_length, quantized  # They change nothing.
  if placement is not None:
    raise CheckpointError(
      f'{target.path} is not split over devices: leave mesh out'
    )
  if form != FLOATS:
    raise CheckpointError(
      f'{target.path} keeps its weights as floats: leave weights out'
    )
  if dtype not in ('auto', target.dtype):
    raise CheckpointError(
      f'{target.path} has weights in {target.dtype}, and not in {dtype}: '
      f'choose dtype={target.dtype}'
    )
  return target.model, target.params


def tokenizer_of(target: Target, known: Any = None) -> Any:
  """Returns the tokenizer.

  Raises:
    CheckpointError: there is none.
  """
  if target.tokenizer is None:
    raise CheckpointError(
      f'{target.path} has no tokenizer, which programs read texts with: give '
      'one to specjax.Target.of'
    )
  del known  # Nothing is read.
  return target.tokenizer
