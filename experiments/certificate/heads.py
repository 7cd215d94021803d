"""Drafts of heads, whose law depends on where a draft began.

Every context is read by the target, and every text that may be drafted after
it is fed to the walker, token by token: so the laws that are multiplied out are
those of the very functions that draft.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.certificate.world import World
from specjax import cache as caches
from specjax import exact, sampling
from specjax.drafting.walker import Walker
from specjax.models import prefill
from specjax.types import Context, Drafter, Params

_SLOTS = 128


def holding(drafter: Drafter, own: Any) -> Drafter:
  """The same drafter with parameters of its own, whatever it is passed."""

  def bind(function):
    return lambda params, *rest: function(params._replace(drafter=own), *rest)

  return drafter._replace(
    init=bind(drafter.init),
    propose=bind(drafter.propose),
    commit=bind(drafter.commit),
  )


def _read(w: World, contexts, taps):
  """A context of the texts and the target's features of them, in float64."""
  target = jax.tree.map(lambda x: jnp.asarray(x, float), w.params.target)
  texts = [(*w.prompt, *w.texts.tokens(number)) for number in contexts]
  tokens, length = prefill.pad(texts, _SLOTS)
  cache = caches.empty(w.target.config, *tokens.shape, float)
  cache, hidden = prefill.prefill(w.target, target, tokens, length, cache, taps)
  values = sampling.make(len(texts))
  ctx = Context(tokens, length, cache, values, sampling.History())
  return target, ctx, hidden


@functools.partial(jax.jit, static_argnums=(0, 5))
def _walk(walker, params, ctx, hidden, tokens, depth):
  """Logits [M, K, V] at the root and after each forced token [M, K-1]."""
  kept, block = walker.init(params, ctx, hidden, depth)
  step = walker.start(params, kept, block, ctx)
  logits = [step.logits[:, 0]]
  for i in range(1, depth):
    sees = jnp.broadcast_to(jnp.arange(depth) <= i, (len(tokens), 1, depth))
    fed = params, kept, step.block, ctx, i, i, tokens[:, i - 1 : i]
    step = walker.feed(*fed, step.features, sees)
    logits.append(step.logits[:, 0])
  return jnp.stack(logits, 1)


def walked(
  w: World, walker: Walker, own: Any, parents: tuple[int, ...], depth: int
) -> exact.DraftSource:
  """All drafts of a walker, in the shape of a static tree.

  Args:
    w: where it drafts.
    walker: that goes from token to token.
    own: its parameters; float32.
    parents: of the tree.
    depth: of the tree.
  """

  @functools.cache
  def laws():
    """By setting, the law after drafted texts [contexts, texts of each]."""
    with jax.enable_x64(True):
      contexts, vocab = w.contexts, w.vocab
      target, ctx, hidden = _read(w, contexts, walker.taps)
      params = Params(
        target, jax.tree.map(lambda x: jnp.asarray(x, float), own)
      )
      forced = np.indices((vocab,) * (depth - 1)).reshape(depth - 1, -1).T
      row = np.repeat(np.arange(len(contexts)), len(forced))
      ctx, hidden = jax.tree.map(lambda x: x[row], (ctx, hidden))
      tokens = jnp.asarray(np.tile(forced, (len(contexts), 1)), jnp.int32)
      logits = np.asarray(_walk(walker, params, ctx, hidden, tokens, depth))
      logits = logits.reshape(len(contexts), len(forced), depth, vocab)
      numbers, found = [contexts[:, None]], []
      for level in range(depth):
        # Of the texts that begin alike the first.
        same = vocab ** (depth - 1 - level)
        found.append(logits[:, ::same, level])
        after = w.texts.after(numbers[-1][..., None], np.arange(vocab))
        numbers.append(after.reshape(len(contexts), -1))
      joined = np.concatenate(numbers[:-1], 1)
      flat = np.concatenate(found, 1).reshape(-1, vocab)
      return w.process(flat, joined.ravel()), joined

  def after(texts, q, contexts):
    del contexts  # Those of the world.
    name = next(name for name, known in w.q.items() if known is q)
    by_setting, joined = laws()
    law, each = by_setting[name], joined.shape[1]
    place = np.full(int(w.contexts.max()) + 1, -1)
    place[w.contexts] = np.arange(len(w.contexts))

    def find(context, above):
      level = texts.length(above) - texts.length(context)
      begin = np.cumsum([0, *(w.vocab**i for i in range(depth))])[level]
      code = (above - texts.offset[texts.length(above)]) % w.vocab**level
      at = place[context] * each + begin + code
      return law.probs[at], law.logits[at]

    return find

  return exact.tree(parents, after=after)
