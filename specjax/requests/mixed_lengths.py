"""Steps of another draft length than that of a state.

A state has room for its longest draft. Steps of a shorter one run on it as on
a state of their own: room for the tokens of a step is empty between two, and
counts of the first places are a part of the whole. So no cache is copied, and
each length is one program. Without any draft a drafter's memory stays as it
was; before it drafts again the texts are read again.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafters import plain
from specjax.loop import generate
from specjax.models import transformer
from specjax.types import Counts, Drafter, Params, Spec


@functools.lru_cache(maxsize=64)
def without_drafts(drafter: Drafter) -> Drafter:
  """Plain decoding that leaves the memory of a drafter unchanged."""
  alone = plain.make()

  def propose(params, memory, ctx, key):
    draft, _ = alone.propose(params, (), ctx, key)
    return draft, memory

  def commit(params, memory, ctx, verdict, hidden):
    return memory

  return Drafter(0, 0, drafter.init, propose, commit)


def _alike(memory: Any, like: Any) -> Any:
  """A drafter's memory in the layout of another draft length.

  What differs in size is room for the tokens of a step, and empty between two.
  """

  def one(x, shape):
    return x if x.shape == shape.shape else jnp.zeros(shape.shape, x.dtype)

  return jax.tree.map(one, memory, like)


def _cut(counts: Counts, depth: int) -> Counts:
  """The counts of the first places."""
  return counts._replace(
    histogram=counts.histogram[:, : depth + 1],
    tried=counts.tried[:, :depth],
    accepted=counts.accepted[:, :depth],
  )


def _put_back(whole: Counts, part: Counts) -> Counts:
  """The whole counts, with those of the first places as they are now."""

  def put(old, new):
    return old.at[:, : new.shape[1]].set(new)

  return part._replace(
    histogram=put(whole.histogram, part.histogram),
    tried=put(whole.tried, part.tried),
    accepted=put(whole.accepted, part.accepted),
  )


def features(params: Params, state, spec: Spec) -> jax.Array:
  """Zeros in the shape of features, for drafters that read the text alone."""
  taps = len(spec.drafter.taps)
  shape = (*state.tokens.shape, taps, spec.target.config.width)
  return jnp.zeros(shape, transformer.dtype_of(params.target))


@functools.partial(jax.jit, static_argnames='spec', donate_argnames='state')
def run(params, state, steps, *, spec: Spec):
  """Steps of another draft length; the state keeps its layout.

  Returns:
    The state, and what these steps judged, see `judged`.
  """
  depth = spec.drafter.depth
  memory = state.drafter
  before = judged(state)
  if depth:
    like = jax.eval_shape(
      lambda: spec.drafter.init(
        params, generate.context(state), features(params, state, spec)
      )
    )
    memory = _alike(memory, like)
  inner = state._replace(drafter=memory, counts=_cut(state.counts, depth))
  out = generate.generate(params, inner, steps, spec=spec)
  out = out._replace(
    drafter=_alike(out.drafter, state.drafter),
    counts=_put_back(state.counts, out.counts),
  )
  return out, jax.tree.map(jnp.subtract, judged(out), before)


@functools.partial(jax.jit, static_argnames='spec', donate_argnames='state')
def read_again(params, state, *, spec: Spec):
  """The state whose drafter has read the texts as they are."""
  memory = spec.drafter.init(
    params, generate.context(state), features(params, state, spec)
  )
  return state._replace(drafter=memory)


def judged(state) -> tuple[jax.Array, jax.Array]:
  """Drafted tokens [K] that were judged, and accepted, of all rows so far."""
  return state.counts.tried.sum(0), state.counts.accepted.sum(0)
