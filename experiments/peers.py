"""torch and transformers, with which we are compared."""

import os
from typing import Any

import jax

from specjax.errors import UserError, need


def libraries() -> tuple[Any, Any]:
  """torch and transformers.

  Raises:
    UserError: they are not installed.
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise UserError(
      f'{error.name} is not installed; install the extra: '
      'pip install -e .[parity]'
    ) from error
  return torch, transformers


def device(torch) -> str:
  """Where the other side decodes: on a GPU where we do.

  Raises:
    UserError: torch does not see it.
  """
  if jax.default_backend() != 'gpu':
    return 'cpu'
  need(
    torch.cuda.is_available(),
    'jax decodes on a GPU that torch does not see: install torch with CUDA, or '
    'set JAX_PLATFORMS=cpu',
  )
  return 'cuda'


def cores() -> int:
  return len(os.sched_getaffinity(0))


def load(
  path: str,
  dtype: str = 'float32',
  generation: dict | None = None,
  **options,
):
  """A model whose `generate` has the library's defaults and knows no eos.

  Args:
    path: a Hugging Face directory.
    dtype: of its weights.
    generation: values other than the defaults.
    **options: of `from_pretrained`.
  """
  torch, transformers = libraries()
  place = device(torch)
  torch.set_num_threads(cores())
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path, dtype=getattr(torch, dtype), **options
  ).to(place)
  # One from the directory would bring the end-of-text token with it.
  model.generation_config = transformers.GenerationConfig(**generation or {})
  return model
