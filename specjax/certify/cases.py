"""The certified cases: every rule with every kind of draft that it takes.

A kind of draft is a drafter and the enumeration of all that it may draft, by
the very functions that draft. Every context is read by the target, and every
text that may be drafted after it is fed to the drafter, token by token.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, verify
from specjax.certify import exact, tiny_models
from specjax.certify.tiny_models import TinyModels, holding
from specjax.drafters import (
  assistant,
  cascade,
  dflash,
  eagle,
  early_exit,
  lm,
  medusa,
  mtp,
  ngram,
  pard,
  recycling,
  skip,
  suffix,
  windowed,
)
from specjax.drafters.dflash import module as dflash_models
from specjax.drafters.eagle.module import Head, Sizes
from specjax.drafters.shapes import (
  chain,
  dynamic_tree,
  policies,
  static_tree,
)
from specjax.drafters.shapes.step_model import Walker
from specjax.loop import generate
from specjax.models import prefill
from specjax.models.config import GatedDelta, Sharing
from specjax.types import Context, Drafter, Params, Rule

_SLOTS = 128


def _read(tiny: TinyModels, contexts, taps):
  """Reads texts in float64: weights, context and features of the target."""
  weights = jax.device_get(tiny.params.target)
  target = jax.tree.map(lambda x: np.asarray(x, float), weights)
  texts = [(*tiny.prompt, *tiny.texts.tokens(number)) for number in contexts]
  tokens, length = prefill.pad(texts, _SLOTS)
  cache, hidden = generate.read_prompts(
    target, tokens, length, None, target=tiny.target, taps=taps
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


def _wide(x) -> jax.Array:
  floats = jnp.issubdtype(x.dtype, jnp.floating)
  return jnp.asarray(x, float if floats else int)


def of_walker(
  tiny: TinyModels, walker: Walker, own: Any, parents: tuple[int, ...]
) -> exact.DraftSource:
  """All drafts of a step model, whose q depends on where a draft began.

  Args:
    tiny: the models and the prompt.
    walker: the step model.
    own: its parameters; float32.
    parents: the static tree that it drafts.
  """
  depth = len(static_tree.levels_of(parents))

  @functools.cache
  def distributions():
    """By setting, q after all drafted texts [contexts, texts of each]."""
    with jax.enable_x64(True):
      contexts, vocab = tiny.contexts, tiny.vocab
      target, ctx, hidden = _read(tiny, contexts, walker.taps)
      params = Params(target, jax.tree.map(_wide, own))
      forced = np.indices((vocab,) * (depth - 1)).reshape(depth - 1, -1).T
      row = np.repeat(np.arange(len(contexts)), len(forced))
      ctx, hidden = jax.tree.map(lambda x: x[row], (ctx, hidden))
      tokens = jnp.asarray(np.tile(forced, (len(contexts), 1)), jnp.int32)
      logits = np.asarray(_walk(walker, params, ctx, hidden, tokens, depth))
      logits = logits.reshape(len(contexts), len(forced), depth, vocab)
      numbers, levels = [contexts[:, None]], []
      for level in range(depth):
        # The first of the texts that begin alike.
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
  """The drafts of a drafter without parameters that chooses its tokens.

  It reads every text anew. Tests of drafters show that its memory is the same.
  It sees the stages of the setting that q is of, if of any.
  """

  @jax.jit
  def propose(params, ctx, hidden):
    memory = drafter.init(params, ctx, hidden)
    return drafter.propose(params, memory, ctx, None)[0]

  def source(texts, q, contexts):
    with jax.enable_x64(True):
      target, ctx, hidden = _read(tiny, contexts, drafter.taps)
      for i, known in enumerate(tiny.q.values()):
        if known is q:
          row = jax.tree.map(lambda x, i=i: x[i : i + 1], tiny.values(1))
          values = jax.tree.map(lambda x: x.repeat(len(contexts), 0), row)
          ctx = ctx._replace(sampling=values, history=tiny.history(contexts))
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

  Their chances come from the inner rule, whose own functions are multiplied
  out. The probabilities that they state are q.

  Args:
    rule: how inner drafts are judged.
    inner: all inner drafts.
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


@dataclasses.dataclass(frozen=True)
class Kind:
  """A drafter, and the enumeration of all that it may draft."""

  name: str
  drafter: Callable[[TinyModels], Drafter]
  source: Callable[[TinyModels], exact.DraftSource]


_CHAIN = (0, 1, 2)
_TREE = (0, 0, 1, 1, 2)
_CHAINS = (0, 0, 1, 2)
_STOP = policies.confidence(0.35)


def _lm(
  name: str,
  parents: tuple[int, ...],
  replacement: bool = False,
  hub: bool = False,
) -> Kind:
  """The tree of the draft model; a chain where each node hangs on the last."""
  if parents == tuple(range(len(parents))):
    make = functools.partial(lm.make, depth=len(parents))
  else:
    make = functools.partial(
      lm.make_tree, parents=parents, replacement=replacement, hub=hub
    )
  law = static_tree.beside_hub if hub else static_tree.remaining
  return Kind(
    name,
    lambda tiny: make(tiny.draft),
    lambda tiny: exact.tree(parents, replacement, law=law),
  )


CHAIN = _lm('chain', _CHAIN)
LONG = _lm('chain of four', (0, 1, 2, 3))
TREE = _lm('tree without replacement', _TREE)
TREE_WITH = _lm('tree with replacement', _TREE, True)
CHAINS = _lm('two chains', _CHAINS, True)
HUB = _lm('tree with hubs', _TREE, hub=True)
STOPPED = Kind(
  'chain that stops',
  lambda tiny: lm.make(tiny.draft, 3, _STOP),
  lambda tiny: exact.tree(_CHAIN, size=exact.stopping(_STOP)),
)
CASCADE = Kind(
  'cascade over lookup',
  lambda tiny: holding(
    cascade.make(tiny.draft, ngram.make(2), 2),
    Params(tiny.params.drafter, None),
  ),
  lambda tiny: of_cascade(verify.token, of_chosen(tiny, ngram.make(2)), 2),
)
# The draft of the tiny transformers is the target's first layer.
EXIT = Kind(
  'early exit',
  lambda tiny: holding(chain.make(early_exit.walk(tiny.target, 1), 3), None),
  CHAIN.source,
)


def _choosing(name: str, make: Callable[[TinyModels], Drafter]) -> Kind:
  return Kind(
    name,
    lambda tiny: holding(make(tiny), None),
    lambda tiny: of_chosen(tiny, make(tiny)),
  )


LOOKUP = _choosing('lookup', lambda tiny: ngram.make(3))
LOOKUPS = _choosing(
  'lookup of two candidates', lambda tiny: ngram.make(3, candidates=2)
)
SUFFIX = _choosing(
  'tree of suffixes',
  lambda tiny: suffix.make(2, factor=2.0, candidates=2, places=8),
)
RECYCLING = _choosing(
  'recycled candidates', lambda tiny: recycling.make(tiny.target, 2, 2, 4)
)


def _walked(
  name: str,
  walk: Callable[[TinyModels], Walker],
  own: Callable[[TinyModels], Any] = lambda tiny: None,
  parents: tuple[int, ...] = _CHAIN,
) -> Kind:
  """A step model on the tiny transformers, with parameters of its own."""

  def drafter(tiny: TinyModels) -> Drafter:
    if parents == _CHAIN:
      made = chain.make(walk(tiny), len(parents))
    else:
      made = static_tree.make(walk(tiny), parents)
    return holding(made, own(tiny))

  return Kind(
    name, drafter, lambda tiny: of_walker(tiny, walk(tiny), own(tiny), parents)
  )


def _random(fresh) -> Callable[[TinyModels], Any]:
  """Weights far from zero; otherwise heads would say what the target says.

  Args:
    fresh: (tiny models, key) -> the weights that a training begins with.
  """

  @functools.cache
  def own(tiny: TinyModels):
    with jax.enable_x64(False):  # The same in every precision.
      made = fresh(tiny, jax.random.key(3))
      leaves, structure = jax.tree.flatten(made)
      keys = jax.random.split(jax.random.key(4), len(leaves))
      return structure.unflatten(
        x + 0.3 * jax.random.normal(key, x.shape)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else x
        for x, key in zip(leaves, keys, strict=True)
      )

  return own


_SIZES = {'width': 8, 'num_heads': 2, 'num_kv_heads': 1, 'head_dim': 4}
_EAGLE = Sizes(3, (0, 1), **_SIZES, mlp_width=16)

# As others publish them, joined from the token's and the target's features.
_PUBLISHED = dataclasses.replace(
  _EAGLE, join='pair', norms=('token', 'feature', 'last')
)
_MASKED = dataclasses.replace(_PUBLISHED, mask_token=0)


def _eagle(name: str, sizes: Sizes) -> Kind:
  return _walked(
    name,
    lambda tiny: eagle.walk(Head(tiny.target, sizes)),
    _random(lambda tiny, key: Head(tiny.target, sizes).init(key)),
  )


def _dflash(name: str, parents: tuple[int, ...], **more: Any) -> Kind:
  """A DFlash head of one layer, whose draft is one block."""
  depth = len(static_tree.levels_of(parents))
  sizes = {k: v for k, v in _SIZES.items() if k != 'width'}
  sizes |= {'block': depth + 1, 'layers': 1, 'mlp_width': 16}
  sizes |= more

  def walk(tiny: TinyModels) -> Walker:
    known = dflash_models.Sizes((0, 1), **sizes)
    return dflash.walk(dflash_models.Head(tiny.target, known), depth + 1)

  def fresh(tiny: TinyModels, key):
    head = dflash.trainable(tiny.target, **sizes)
    return head.init(key, tiny.params.target)

  return _walked(name, walk, _random(fresh), parents)


EAGLE = _eagle('EAGLE-3', _EAGLE)
# A token that has no logit is never drafted.
PUBLISHED = _eagle(
  'published EAGLE-3', dataclasses.replace(_PUBLISHED, draft_vocab=2)
)
PARD = _walked(
  'PARD',
  lambda tiny: pard.walk(tiny.draft, 0, len(_CHAIN)),
  lambda tiny: tiny.params.drafter,
)
AT_ONCE = _walked(
  'P-EAGLE',
  lambda tiny: eagle.at_once.walk(Head(tiny.target, _MASKED), len(_CHAIN)),
  _random(lambda tiny, key: Head(tiny.target, _MASKED).init(key)),
)
MTP = _walked(
  'next-token layer',
  lambda tiny: eagle.walk(mtp.head_of(tiny.target)),
  _random(lambda tiny, key: mtp.head_of(tiny.target).init(key)),
)
_MEDUSA = _random(
  lambda tiny, key: medusa.trainable(tiny.target, 2).init(
    key, tiny.params.target
  )
)


def _assistant(tiny: TinyModels) -> assistant.Head:
  config = dataclasses.replace(
    tiny.target.config, num_layers=1, width=4, sharing=Sharing(0, 8)
  )
  module = assistant.Assistant(config, tiny.target.config.width)
  return assistant.Head(tiny.target, module)


ASSISTANT = _walked(
  'tree of an assistant',
  lambda tiny: assistant.walk(_assistant(tiny)),
  _random(lambda tiny, key: _assistant(tiny).init(key)),
  _TREE,
)
MEDUSA = _walked(
  'tree of Medusa', lambda tiny: medusa.walk(tiny.target), _MEDUSA, _TREE
)
# Its nodes are the most likely under the laws of both places.
MEDUSA_CHOSEN = _choosing(
  'chosen tree of Medusa',
  lambda tiny: holding(
    dynamic_tree.make(medusa.walk(tiny.target), 2, 4, 4), _MEDUSA(tiny)
  ),
)
DFLASH = _dflash('DFlash', _CHAIN)
DFLASH_TREE = _dflash('tree of DFlash', _TREE)
# A place of a block is corrected by the token drawn before it.
DSPARK = _dflash('DSpark', _CHAIN, correction='rnn', rank=4)
DSPARK_TREE = _dflash('tree of DSpark', _TREE, correction='gated', rank=4)
DOMINO = _dflash('Domino', _CHAIN, correction='gru', rank=4, recalled=2)
# One token has q = 0.
DFLASH2_TREE = _dflash(
  'tree of DFlash2', _TREE, correction='selector', rank=4, candidates=3,
  conv=2, conv_group=4, windows=(3,),
)  # fmt: skip
SKIP = _walked(
  'layer skipping', lambda tiny: skip.walk(tiny.target, (0,), (1,))
)
# Some tokens of every text lie between the window and the first ones.
WINDOWED = _walked(
  'window of the target', lambda tiny: windowed.walk(tiny.target, 2, 1)
)


def other(own=tiny_models.spelled, how=tiny_models.other_reading) -> Kind:
  """The draft with another vocabulary: its weights, and how it reads texts."""
  return _walked(
    'another vocabulary', lambda tiny: lm.walk(tiny.draft, how()), own
  )


OTHER = other()

MODELS: dict[str, Callable[[], TinyModels]] = {
  'table': tiny_models.tables,
  'transformer': tiny_models.transformers,
  # Its texts often end before their limit.
  'other transformer': lambda: tiny_models.transformers(5),
  'transformer with states': lambda: tiny_models.transformers(
    recurrent=GatedDelta((0,), 1, 2, 3, 4, kernel=2)
  ),
  'transformer in eight bits': tiny_models.eight_bits,
  'table in bfloat16': lambda: tiny_models.tables().cast('bfloat16'),
  # So poor that whole blocks are rejected, which shows what happens to the
  # tokens behind a rejection.
  'poor draft': lambda: tiny_models.tables(
    vocab=3,
    mix=1.0,
    prompt=(0, 1),
    eos=(),
    new=6,
    reach=4,
    settings={'T 1': {}},
  ),
}


@functools.cache
def models(name: str) -> TinyModels:
  """Returns some of `MODELS`, made once: they keep what they enumerate."""
  return MODELS[name]()


@dataclasses.dataclass(frozen=True)
class Case:
  """A row of the certificate for every setting."""

  rule: str
  verify: Rule
  kind: Kind
  model: str = 'table'  # what drafts and verifies, one of `MODELS`
  quick: bool = False  # whether the quick certificate runs its loop, too
  full: bool = False  # whether only the full certificate has this row


CASES = (
  Case('token', verify.token, CHAIN, quick=True),
  Case('token', verify.token, CHAIN, 'table in bfloat16'),
  Case('token', verify.token, STOPPED),
  Case('token', verify.token, LOOKUP),
  Case('token', verify.token, CASCADE),
  Case('token', verify.token, CHAIN, 'transformer'),
  Case('token', verify.token, CHAIN, 'transformer in eight bits', full=True),
  Case('token', verify.token, EXIT, 'transformer'),
  Case('token', verify.token, WINDOWED, 'transformer', full=True),
  Case('token', verify.token, OTHER, 'other transformer'),
  Case('token', verify.token, SKIP, 'transformer', full=True),
  Case('recursive', verify.recursive, SUFFIX, 'transformer', full=True),
  Case('recursive', verify.recursive, RECYCLING, 'transformer', full=True),
  Case('token', verify.token, EAGLE, 'transformer', full=True),
  Case('token', verify.token, DFLASH, 'transformer', full=True),
  Case('token', verify.token, DSPARK, 'transformer', full=True),
  Case('token', verify.token, DOMINO, 'transformer', full=True),
  Case('token', verify.token, PUBLISHED, 'transformer', full=True),
  Case('token', verify.token, AT_ONCE, 'transformer', full=True),
  Case('block', verify.block, PARD, 'transformer', full=True),
  Case('token', verify.token, MTP, 'transformer with states', full=True),
  Case('recursive', verify.recursive, ASSISTANT, 'transformer', full=True),
  Case('recursive', verify.recursive, MEDUSA, 'transformer', full=True),
  Case('recursive', verify.recursive, DFLASH_TREE, 'transformer', full=True),
  Case('recursive', verify.recursive, DSPARK_TREE, 'transformer', full=True),
  Case('recursive', verify.recursive, MEDUSA_CHOSEN, 'transformer', full=True),
  Case('recursive', verify.recursive, DFLASH2_TREE, 'transformer', full=True),
  Case('block', verify.block, CHAIN, quick=True),
  Case('block', verify.block, LONG, 'poor draft'),
  Case('block', verify.block, STOPPED),
  Case('block', verify.block, DSPARK, 'transformer', full=True),
  Case('block', verify.block, LOOKUP),
  Case('recursive', verify.recursive, CHAIN),
  Case('recursive', verify.recursive, TREE, quick=True),
  Case('recursive', verify.recursive, TREE_WITH, full=True),
  Case('recursive', verify.recursive, CHAINS),
  Case('recursive', verify.recursive, TREE, 'transformer', full=True),
  Case('recursive', verify.recursive, LOOKUPS),
  Case('k-SEQ', verify.k_seq, TREE_WITH, full=True),
  Case('k-SEQ', verify.k_seq, CHAINS),
  Case('hub', verify.hub, CHAIN, full=True),
  Case('hub', verify.hub, HUB),
  Case('importance', verify.importance, TREE_WITH, full=True),
  Case('importance', verify.importance, CHAINS),
  Case('multi-path', verify.multi_path, CHAIN, full=True),
  Case('multi-path', verify.multi_path, CHAINS),
  Case('traversal', verify.traversal, TREE),
  Case('traversal', verify.traversal, TREE_WITH, full=True),
  Case('traversal', verify.traversal, LOOKUPS, full=True),
  Case('naive', verify.naive, CHAIN),
  Case('naive', verify.naive, TREE, quick=True),
  Case('naive', verify.naive, TREE_WITH, full=True),
  Case('naive', verify.naive, LOOKUPS, full=True),
  Case('lenience 0.5', verify.lenience(0.5), CHAIN),
  Case('typical', verify.typical(), CHAIN),
  Case('typical', verify.typical(), TREE, full=True),
)


def find(rule: str, kind: Kind, model: str = 'table') -> Case:
  wanted = rule, kind, model
  return next(c for c in CASES if (c.rule, c.kind, c.model) == wanted)
