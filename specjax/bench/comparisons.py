"""Comparisons that `specjax parity` can make; the config names one.

Each is a function of the config, of which it checks its own fields before
anything is loaded. It returns what makes the other side of a method:
(setup, method) -> Side.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.bench import greedy_texts
from specjax.bench.config import Parity
from specjax.bench.loading import checks
from specjax.bench.measure import Decoding
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan
from specjax.checkpoints import precision
from specjax.errors import need


class Side(NamedTuple):
  """One side of a comparison: something to run, or texts that are there."""

  name: str
  way: Decoding | None = None
  batch: int = 0
  texts: list[list[int]] | None = None  # of every prompt


class Setup(NamedTuple):
  """What a comparison may look at: the plan, the models, the prompts."""

  plan: Plan
  built: Loaded
  prompts: list[list[int]]  # of all domains, in their order


Other = Callable[[Setup, Method], Side]


def plain(x: Parity) -> Other:
  """Plain decoding, in the same batches and the same dtype."""
  del x  # Unused.

  def other(setup, method):
    need(
      method.spec.rule.lossless,
      f'verifiers: {method.verifier} is lossy, its text is not that of plain '
      'decoding: leave it out',
    )
    return Side('plain', setup.built.base, setup.plan.batch)

  return other


def batch(x: Parity) -> Other:
  """The same method, one prompt at a time."""
  need(
    x.batch > 1,
    'batch is 1: a comparison with single prompts needs more, such as '
    '--batch=8',
  )

  def other(setup, method):
    del setup  # Unused.
    return Side('batch 1', method.way, 1)

  return other


def dtype(x: Parity) -> Other:
  """The same method with its weights in `other_dtype`."""
  name = x.other_dtype
  checks.check_dtype('other_dtype', name, 'float64')
  need(
    name != precision.AUTO,
    'other_dtype is auto: name a type that differs from that of dtype',
  )

  def differ(dtype):
    need(dtype != name, f'other_dtype must differ from dtype, got {name} twice')

  asked = x.target.dtype or x.dtype
  if asked != precision.AUTO or jax.default_backend() == 'cpu':
    differ(precision.resolve(asked, 'float32'))

  def other(setup, method):
    differ(setup.built.target.dtype)  # On an accelerator auto may be any.
    way = Decoding(method.spec, cast(method.params, name))
    return Side(name, way, setup.plan.batch)

  return other


def text(x: Parity) -> Other:
  """Texts that another program wrote, from the file `text`."""
  entries = greedy_texts.read(x.text)

  def other(setup, method):
    del method  # Unused.
    built = setup.built
    texts = greedy_texts.match(
      entries,
      setup.prompts,
      built.target.tokenizer,
      built.plain,
      setup.plan.max_new_tokens,
    )
    return Side('text', texts=texts)

  return other


def cast(params: Any, name: str) -> Any:
  """Parameters in another floating-point type."""

  def one(w):
    return w.astype(name) if jnp.issubdtype(w.dtype, jnp.floating) else w

  return jax.tree.map(one, params)
