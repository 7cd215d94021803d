"""All drafts that a walker or a cascade may make, with their chances.

A walker's distributions depend on where a draft began: every context is read by
the target, and every text that may be drafted after it is fed to the walker,
token by token. A cascade's drafts have been verified by a smaller model: the
inner rule's own functions are multiplied out, as those of the target's rule
are. Of what is chosen by the text there is one draft after each. So what is
enumerated are the very functions that draft.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.certify import exact
from specjax.certify.tiny_models import TinyModels
from specjax.drafters.shapes.step_model import Walker
from specjax.models import cache as caches
from specjax.models import prefill
from specjax.types import Context, Drafter, Params, Rule

_SLOTS = 128


def _read(tiny: TinyModels, contexts, taps):
  """A context of the texts and the target's features of them, in float64."""
  target = jax.tree.map(lambda x: jnp.asarray(x, float), tiny.params.target)
  texts = [(*tiny.prompt, *tiny.texts.tokens(number)) for number in contexts]
  tokens, length = prefill.pad(texts, _SLOTS)
  cache = caches.empty(tiny.target.config, *tokens.shape, float)
  cache, hidden = prefill.prefill(
    tiny.target, target, tokens, length, cache, taps
  )
  values = sampling.make(len(texts))
  ctx = Context(tokens, length, cache, values, sampling.History())
  return target, ctx, hidden


@functools.partial(jax.jit, static_argnums=(0, 5))
def _walk(walker, params, ctx, hidden, tokens, depth):
  """Logits [M, K, V] at the root and after each forced token [M, K-1]."""
  state, block = walker.init(params, ctx, hidden, depth)
  step = walker.start(params, state, block, ctx)
  logits = [step.logits[:, 0]]
  for i in range(1, depth):
    sees = jnp.broadcast_to(jnp.arange(depth) <= i, (len(tokens), 1, depth))
    fed = params, state, step.block, ctx, i, i, tokens[:, i - 1 : i]
    step = walker.feed(*fed, step.features, sees)
    logits.append(step.logits[:, 0])
  return jnp.stack(logits, 1)


def _wide(x) -> type:
  """The type of a parameter in double precision."""
  return float if jnp.issubdtype(x.dtype, jnp.floating) else int


def of_walker(
  tiny: TinyModels,
  walker: Walker,
  own: Any,
  parents: tuple[int, ...],
  depth: int,
) -> exact.DraftSource:
  """All drafts of a walker, in the shape of a static tree.

  Args:
    tiny: the models and the prompt.
    walker: that goes from token to token.
    own: its parameters; float32.
    parents: of the tree.
    depth: of the tree.
  """

  @functools.cache
  def distributions():
    """By setting, what follows drafted texts [contexts, texts of each]."""
    with jax.enable_x64(True):
      contexts, vocab = tiny.contexts, tiny.vocab
      target, ctx, hidden = _read(tiny, contexts, walker.taps)
      params = Params(
        target, jax.tree.map(lambda x: jnp.asarray(x, _wide(x)), own)
      )
      forced = np.indices((vocab,) * (depth - 1)).reshape(depth - 1, -1).T
      row = np.repeat(np.arange(len(contexts)), len(forced))
      ctx, hidden = jax.tree.map(lambda x: x[row], (ctx, hidden))
      tokens = jnp.asarray(np.tile(forced, (len(contexts), 1)), jnp.int32)
      logits = np.asarray(_walk(walker, params, ctx, hidden, tokens, depth))
      logits = logits.reshape(len(contexts), len(forced), depth, vocab)
      numbers, levels = [contexts[:, None]], []
      for level in range(depth):
        # Of the texts that begin alike the first.
        same = vocab ** (depth - 1 - level)
        levels.append(logits[:, ::same, level])
        after = tiny.texts.after(numbers[-1][..., None], np.arange(vocab))
        numbers.append(after.reshape(len(contexts), -1))
      joined = np.concatenate(numbers[:-1], 1)
      flat = np.concatenate(levels, 1).reshape(-1, vocab)
      return tiny.process(flat, joined.ravel()), joined

  def after(texts, q, contexts):
    del contexts  # Those of the tiny models.
    name = next(name for name, known in tiny.q.items() if known is q)
    by_setting, joined = distributions()
    drafted, each = by_setting[name], joined.shape[1]
    place = np.full(int(tiny.contexts.max()) + 1, -1)
    place[tiny.contexts] = np.arange(len(tiny.contexts))

    def find(context, above):
      level = texts.length(above) - texts.length(context)
      begin = np.cumsum([0, *(tiny.vocab**i for i in range(depth))])[level]
      code = (above - texts.offset[texts.length(above)]) % tiny.vocab**level
      at = place[context] * each + begin + code
      return drafted.probs[at], drafted.logits[at]

    return find

  return exact.tree(parents, after=after)


def of_chosen(tiny: TinyModels, drafter: Drafter) -> exact.DraftSource:
  """The drafts of a drafter that chooses them, by the text alone.

  It reads every text anew: that this is what it would remember is for the tests
  of what drafters promise.

  Args:
    tiny: the models and the prompt.
    drafter: without parameters of its own.
  """

  @jax.jit
  def propose(params, ctx, hidden):
    memory = drafter.init(params, ctx, hidden)
    return drafter.propose(params, memory, ctx, None)[0]

  def source(texts, q, contexts):
    del q  # Unused.
    with jax.enable_x64(True):
      target, ctx, hidden = _read(tiny, contexts, drafter.taps)
      made = jax.device_get(propose(Params(target, None), ctx, hidden))
    every = np.arange(len(contexts))
    rows = np.zeros((len(contexts), drafter.nodes + 1), int)
    rows[:, 0] = contexts
    for node, token in enumerate(made.tokens.T):
      above = rows[every, made.parents[:, node]]
      rows[:, node + 1] = texts.after(above, token)
    return exact.Drafts(made, np.ones(len(contexts)), every, rows)

  return source


def of_cascade(
  rule: Rule,
  inner: exact.DraftSource,
  depth: int,
  r: exact.Distributions | None = None,
) -> exact.DraftSource:
  """The drafts of `drafters.cascade`: inner steps until there are K tokens.

  Their chances come from the inner rule; the probabilities they state are q.

  Args:
    rule: how inner drafts are judged.
    inner: all of them.
    depth: K.
    r: distributions of the inner drafter; None where it chooses.
  """

  def source(texts, q, contexts):
    made = exact.tree(tuple(range(depth)))(texts, q, contexts)
    reached = np.zeros((len(contexts), len(texts)))
    ends = texts.length(np.asarray(contexts)) + depth
    cut = {end: texts.cut(end, ())[0] for end in set(ends.tolist())}
    begins = np.arange(texts.offset[ends.max()])
    steps = exact.step(rule, inner, texts, q, r or q, begins)
    for row, first, end in zip(reached, contexts, ends, strict=True):
      row[first] = 1
      # Longer texts have higher numbers: each is complete when it is met.
      for text in range(first, texts.offset[end]):
        if row[text]:
          after = np.flatnonzero(steps[text])
          weight = row[text] * steps[text, after]
          np.add.at(row, cut[end][after], weight)
    return made._replace(weight=reached[made.context, made.rows[:, -1]])

  return source
