"""The type that weights are read in, and that their model computes in.

Probabilities are float32 or wider whatever a model computes in: the pipeline
of `specjax.sampling`, drafts and rules see to that.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specjax.checkpoints.files import CODES
from specjax.errors import first_line

AUTO = 'auto'
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
NARROW = ('bfloat16', 'float16')
# As headers of safetensors files call them; others are quantised weights.
STORED = {code: name for name, code in CODES.items() if name in DTYPES}


def name_of(dtype: Any) -> str:
  """The name of a type that is given as one, or by its name."""
  return dtype if isinstance(dtype, str) else jnp.dtype(dtype).name


def in_dtype(tree: Any, dtype: str) -> Any:
  """A tree with its floating-point arrays in a type."""

  def one(x):
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

  return jax.tree.map(one, tree)


def check_dtype(dtype: Any) -> str:
  """The name of a type that may be asked for; 'auto' is one.

  Raises:
    ValueError: there is no such type, or this device does not compute in it.
  """
  name, choices = name_of(dtype), (AUTO, *DTYPES)
  if name not in choices:
    raise ValueError(f'dtype is {name!r}: choose one of {", ".join(choices)}')
  if name != AUTO and (reason := refusal(name)):
    raise ValueError(f'dtype is {name!r}: {reason}')
  return name


def refusal(name: str) -> str:
  """Why this device does not compute in a type; empty where it does."""
  if jax.dtypes.canonicalize_dtype(name) != name:
    return (
      'JAX computes in 32 bits here; choose float32, or call '
      "jax.config.update('jax_enable_x64', True) first"
    )
  try:
    x = jnp.ones((8, 8), name)
    jax.block_until_ready(x @ x)
  except Exception as error:  # Each backend has its own.
    return (
      f'{jax.devices()[0].device_kind} does not compute in it '
      f'({first_line(error)}); choose float32'
    )
  return ''


def resolve(dtype: Any, stored: str) -> str:
  """The type itself where 'auto' was asked for.

  That of the file on an accelerator, where the device computes in it; float32
  on a CPU, which computes in nothing narrower.

  Args:
    dtype: asked for.
    stored: that most of the weights have in the file.
  """
  name = name_of(dtype)
  if name != AUTO:
    return name
  if jax.default_backend() == 'cpu' or stored not in NARROW or refusal(stored):
    return 'float32'
  return stored
