"""Published EAGLE heads say what their own modules say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import published, sampling
from specjax.drafters import eagle
from specjax.models import transformer
from specjax.types import Params, Target, Verdict
from tests.library import test_drafter_promises as promises
from tests.support import models
from tests.support import published_eagle as written

HOST = Target(written.TARGET, max_length=100)
TEXT = np.random.default_rng(1).integers(0, written.V, 40).astype(np.int32)


@functools.cache
def target_weights():
  return models.weights(written.TARGET, 5)


@functools.cache
def tapped(taps):
  """Features [T, taps, E] of the text."""
  mask, at = transformer.causal(1, len(TEXT))
  out = written.TARGET.forward(
    target_weights(), TEXT[None], at, None, None, mask, taps=taps
  )
  return np.asarray(out.taps[0])


@functools.partial(jax.jit, static_argnums=0)
def fed(walker, params, state, block, ctx, row, token, features):
  sees = jnp.arange(4)[None, None] <= row
  return walker.feed(
    params, state, block, ctx, row, row, token[:, None], features, sees
  )


# Each has what the others leave out.
QUICK = ('EAGLE-1', 'EAGLE-3', 'speculators', 'speculators, Qwen3')


@pytest.fixture(
  params=[
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in written.LAYOUTS
  ]
)
def layout(request):
  return written.LAYOUTS[request.param]


def test_drafts_are_those_of_the_published_module(layout, tmp_path):
  """Along a text, and after tokens that were rejected."""
  weights = written.tensors(layout)
  path = written.write(tmp_path / 'head', layout, weights)
  loaded = eagle.load(HOST, path)
  assert loaded.pairing == published.UNVERIFIED
  drafter = loaded.make(3)
  assert drafter.taps == layout.taps
  found = published.find(path, written.TARGET.config)
  head = eagle.Head(written.TARGET, eagle.sizes_of(found.config))
  walker = eagle.walk(head)
  restated = written.Restated(layout, weights, target_weights())
  params = Params(target_weights(), loaded.params)
  tokens = np.zeros((1, 128), np.int32)
  length = 6
  tokens[0, :length] = TEXT[:length]
  hidden = tapped(layout.taps)
  begin = np.zeros((1, 128, *hidden.shape[1:]), np.float32)
  begin[0, : length - 1] = hidden[: length - 1]
  ctx, _ = promises.fresh(
    models.DRAFTERS['plain'][0], params, tokens, np.array([length]),
    sampling.make(1, 1.0), target=written.TARGET,
  )  # fmt: skip
  state, block = jax.jit(walker.init, static_argnums=3)(params, ctx, begin, 4)
  start = jax.jit(walker.start)
  commit = jax.jit(walker.commit)
  for accepted in (2, 0, 3):
    drafted = [*TEXT[length : length + accepted]]
    wrong = [(TEXT[length + i] + 1) % written.V for i in range(accepted, 3)]
    drafted += wrong
    step = start(params, state, block, ctx)
    said = [step.logits[0, 0]]
    for row, token in enumerate(drafted, 1):
      step = fed(
        walker, params, state, step.block, ctx, jnp.int32(row),
        jnp.array([token]), step.features,
      )  # fmt: skip
      said.append(step.logits[0, 0])
    expected = restated.draft(TEXT[:length], hidden, drafted)
    np.testing.assert_allclose(np.stack(said), expected, atol=1e-5)
    assert np.isfinite(expected).any(-1).all()
    old, length = length, length + accepted + 1
    tokens[0, :length] = TEXT[:length]
    ctx = ctx._replace(
      tokens=jnp.asarray(tokens), length=jnp.full(1, length, jnp.int32)
    )
    path = np.where(np.arange(4) <= accepted, np.arange(4), 0)[None]
    verdict = Verdict(jnp.asarray(path), jnp.array([accepted]), None)
    along = hidden[old - 1 : old + 3][None]
    state = commit(params, state, step.block, ctx, verdict, jnp.asarray(along))
