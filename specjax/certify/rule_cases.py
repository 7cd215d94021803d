"""What is certified: every rule with every kind of draft that it takes."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax import verify
from specjax.certify import draft_sources, exact, other_vocabulary, tiny_models
from specjax.certify.other_vocabulary import holding
from specjax.certify.tiny_models import TinyModels
from specjax.drafters import (
  cascade,
  dflash,
  eagle,
  early_exit,
  lm,
  medusa,
  ngram,
  recycling,
  skip,
  suffix,
  windowed,
)
from specjax.drafters.dflash import module
from specjax.drafters.dflash import module as dflash_models
from specjax.drafters.eagle.module import Head, Sizes
from specjax.drafters.shapes import chain, policies, static_tree
from specjax.types import Drafter, Params, Rule

_CHAIN = (0, 1, 2)
_TREE = (0, 0, 1, 1, 2)
_CHAINS = (0, 0, 1, 2)
_STOP = 0.35


@dataclasses.dataclass(frozen=True)
class Kind:
  """A drafter, and the enumeration of all that it may draft."""

  name: str
  drafter: Callable[[TinyModels], Drafter]
  source: Callable[[TinyModels], exact.DraftSource]


CHAIN = Kind(
  'chain', lambda tiny: lm.make(tiny.draft, 3), lambda tiny: exact.tree(_CHAIN)
)
LONG = Kind(
  'chain of four',
  lambda tiny: lm.make(tiny.draft, 4),
  lambda tiny: exact.tree((0, 1, 2, 3)),
)
STOPPED = Kind(
  'chain that stops',
  lambda tiny: lm.make(tiny.draft, 3, policies.confidence(_STOP)),
  lambda tiny: exact.tree(_CHAIN, size=exact.stopping(_STOP)),
)
LOOKUP = Kind(
  'lookup',
  lambda tiny: ngram.make(3),
  lambda tiny: exact.lookup(tiny.prompt, 3),
)
LOOKUPS = Kind(
  'lookup of two candidates',
  lambda tiny: ngram.make(3, candidates=2),
  lambda tiny: exact.lookup(tiny.prompt, 3, candidates=2),
)
TREE = Kind(
  'tree without replacement',
  lambda tiny: lm.make_tree(tiny.draft, _TREE),
  lambda tiny: exact.tree(_TREE),
)
TREE_WITH = Kind(
  'tree with replacement',
  lambda tiny: lm.make_tree(tiny.draft, _TREE, True),
  lambda tiny: exact.tree(_TREE, True),
)
CHAINS = Kind(
  'two chains',
  lambda tiny: lm.make_tree(tiny.draft, _CHAINS, True),
  lambda tiny: exact.tree(_CHAINS, True),
)


CASCADE = Kind(
  'cascade over lookup',
  lambda tiny: holding(
    cascade.make(tiny.draft, ngram.make(2), 2),
    Params(tiny.params.drafter, None),
  ),
  lambda tiny: draft_sources.of_cascade(
    verify.token, exact.lookup(tiny.prompt, 2), 2
  ),
)

SIZES = {'width': 8, 'num_heads': 2, 'num_kv_heads': 1, 'head_dim': 4}


def _head(name, walk, fresh, make, parents, depth) -> Kind:
  """A head with random weights on the tiny transformers."""

  def own(tiny: TinyModels):
    """Weights far from zero, or heads would say what the target does."""
    with jax.enable_x64(False):  # The same whatever the precision in force.
      made = fresh(tiny, jax.random.key(3))
      leaves, structure = jax.tree.flatten(made)
      keys = jax.random.split(jax.random.key(4), len(leaves))
      return structure.unflatten(
        x + 0.3 * jax.random.normal(key, x.shape)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else x
        for x, key in zip(leaves, keys, strict=True)
      )

  def drafter(tiny: TinyModels) -> Drafter:
    return holding(make(walk(tiny)), own(tiny))

  def source(tiny: TinyModels) -> exact.DraftSource:
    return draft_sources.of_walker(tiny, walk(tiny), own(tiny), parents, depth)

  return Kind(name, drafter, source)


_EAGLE = Sizes(3, (0, 1), **SIZES, mlp_width=16)
# As others publish them: a token that has no logit is never drafted.
_PUBLISHED = dataclasses.replace(
  _EAGLE, join='pair', norms=('token', 'feature', 'last'), draft_vocab=2
)

EAGLE = _head(
  'EAGLE-3',
  lambda tiny: eagle.walk(Head(tiny.target, _EAGLE)),
  lambda tiny, key: Head(tiny.target, _EAGLE).init(key),
  lambda walker: chain.make(walker, 3),
  _CHAIN,
  3,
)
PUBLISHED = _head(
  'published EAGLE-3',
  lambda tiny: eagle.walk(Head(tiny.target, _PUBLISHED)),
  lambda tiny, key: Head(tiny.target, _PUBLISHED).init(key),
  lambda walker: chain.make(walker, 3),
  _CHAIN,
  3,
)
MEDUSA = _head(
  'tree of Medusa',
  lambda tiny: medusa.walk(tiny.target),
  lambda tiny, key: medusa.trainable(tiny.target, 2).init(
    key, tiny.params.target
  ),
  lambda walker: static_tree.make(walker, _TREE),
  _TREE,
  2,
)


def _dflash(name, depth, make, parents) -> Kind:
  """A DFlash head of one layer: a draft so deep is one block of its own."""
  sizes = {k: v for k, v in SIZES.items() if k != 'width'}
  sizes |= {'block': depth + 1, 'layers': 1, 'mlp_width': 16}

  def walk(tiny: TinyModels):
    known = module.Sizes((0, 1), **sizes)
    return dflash.walk(dflash_models.Head(tiny.target, known), depth + 1)

  return _head(
    name,
    walk,
    lambda tiny, key: dflash.trainable(tiny.target, **sizes).init(
      key, tiny.params.target
    ),
    make,
    parents,
    depth,
  )


DFLASH = _dflash('DFlash', 3, lambda walker: chain.make(walker, 3), _CHAIN)
DFLASH_TREE = _dflash(
  'tree of DFlash', 2, lambda walker: static_tree.make(walker, _TREE), _TREE
)
# The draft of the tiny transformers is the target's first layer.
EXIT = Kind(
  'early exit',
  lambda tiny: holding(chain.make(early_exit.walk(tiny.target, 1), 3), None),
  CHAIN.source,
)

SKIP = Kind(
  'layer skipping',
  lambda tiny: holding(chain.make(skip.walk(tiny.target, (0,), (1,)), 3), None),
  lambda tiny: draft_sources.of_walker(
    tiny, skip.walk(tiny.target, (0,), (1,)), None, _CHAIN, 3
  ),
)


def _choosing(name: str, make: Callable[[TinyModels], Drafter]) -> Kind:
  """A drafter that chooses by the text, and has no parameters."""
  return Kind(
    name,
    lambda tiny: holding(make(tiny), None),
    lambda tiny: draft_sources.of_chosen(tiny, make(tiny)),
  )


SUFFIX = _choosing(
  'tree of suffixes',
  lambda tiny: suffix.make(2, factor=2.0, candidates=2, places=8),
)
RECYCLING = _choosing(
  'recycled candidates', lambda tiny: recycling.make(tiny.target, 2, 2, 4)
)
# Of every text that is drafted on, some tokens lie between the two.
WINDOWED = _head(
  'window of the target',
  lambda tiny: windowed.walk(tiny.target, 2, 1),
  lambda tiny, key: None,
  lambda walker: chain.make(walker, 3),
  _CHAIN,
  3,
)

OTHER = Kind(
  'another vocabulary',
  other_vocabulary.drafter,
  lambda tiny: draft_sources.of_walker(
    tiny,
    other_vocabulary.walk(tiny, other_vocabulary.read()),
    other_vocabulary.own(tiny),
    _CHAIN,
    other_vocabulary.DEPTH,
  ),
)

# A draft so poor that whole blocks are rejected shows what happens to the
# tokens behind a rejection.
MODELS: dict[str, Callable[[], TinyModels]] = {
  'table': tiny_models.tables,
  'transformer': tiny_models.transformers,
  # Texts of it often end before their limit.
  'other transformer': lambda: tiny_models.transformers(5),
  'table in bfloat16': lambda: tiny_models.tables().cast('bfloat16'),
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


@dataclasses.dataclass(frozen=True)
class Case:
  """A row of the certificate for every setting.

  Attributes:
    rule: its name.
    verify: the rule.
    kind: of draft.
    model: what drafts and verifies, one of `MODELS`.
    quick: whether the quick certificate runs its loop, too.
    full: whether only the full certificate has this row at all.
  """

  rule: str
  verify: Rule
  kind: Kind
  model: str = 'table'
  quick: bool = False
  full: bool = False


CASES = (
  Case('token', verify.token, CHAIN, quick=True),
  Case('token', verify.token, CHAIN, 'table in bfloat16'),
  Case('token', verify.token, STOPPED),
  Case('token', verify.token, LOOKUP),
  Case('token', verify.token, CASCADE),
  Case('token', verify.token, CHAIN, 'transformer'),
  Case('token', verify.token, EXIT, 'transformer'),
  Case('token', verify.token, WINDOWED, 'transformer', full=True),
  Case('token', verify.token, OTHER, 'other transformer'),
  Case('token', verify.token, SKIP, 'transformer', full=True),
  Case('recursive', verify.recursive, SUFFIX, 'transformer', full=True),
  Case('recursive', verify.recursive, RECYCLING, 'transformer', full=True),
  Case('token', verify.token, EAGLE, 'transformer', full=True),
  Case('token', verify.token, DFLASH, 'transformer', full=True),
  Case('token', verify.token, PUBLISHED, 'transformer', full=True),
  Case('recursive', verify.recursive, MEDUSA, 'transformer', full=True),
  Case('recursive', verify.recursive, DFLASH_TREE, 'transformer', full=True),
  Case('block', verify.block, CHAIN, quick=True),
  Case('block', verify.block, LONG, 'poor draft'),
  Case('block', verify.block, STOPPED),
  Case('block', verify.block, LOOKUP),
  Case('recursive', verify.recursive, CHAIN),
  Case('recursive', verify.recursive, TREE, quick=True),
  Case('recursive', verify.recursive, TREE_WITH, full=True),
  Case('recursive', verify.recursive, CHAINS),
  Case('recursive', verify.recursive, TREE, 'transformer', full=True),
  Case('recursive', verify.recursive, LOOKUPS),
  Case('k-SEQ', verify.k_seq, TREE_WITH, full=True),
  Case('k-SEQ', verify.k_seq, CHAINS),
  Case('traversal', verify.traversal, TREE),
  Case('traversal', verify.traversal, TREE_WITH, full=True),
  Case('traversal', verify.traversal, LOOKUPS, full=True),
  Case('lenience 0.5', verify.lenience(0.5), CHAIN),
  Case('typical', verify.typical(), CHAIN),
  Case('typical', verify.typical(), TREE, full=True),
)


def find(rule: str, kind: Kind, model: str = 'table') -> Case:
  wanted = rule, kind, model
  return next(c for c in CASES if (c.rule, c.kind, c.model) == wanted)
