"""Every rule with every kind of draft that it takes."""

import dataclasses
from collections.abc import Callable

import jax

from experiments.certificate import heads, stages, world
from experiments.certificate.world import World
from specjax import exact, verify
from specjax.drafters import cascade, eagle, early_exit, lm, medusa, ngram
from specjax.drafting import chain, policies, static_tree
from specjax.models.eagle import Head, Sizes
from specjax.types import Drafter, Params, Rule

_CHAIN = (0, 1, 2)
_TREE = (0, 0, 1, 1, 2)
_CHAINS = (0, 0, 1, 2)
_STOP = 0.35


@dataclasses.dataclass(frozen=True)
class Kind:
  """A drafter, and the enumeration of all that it may draft."""

  name: str
  drafter: Callable[[World], Drafter]
  source: Callable[[World], exact.DraftSource]


CHAIN = Kind(
  'chain', lambda w: lm.make(w.draft, 3), lambda w: exact.tree(_CHAIN)
)
LONG = Kind(
  'chain of four',
  lambda w: lm.make(w.draft, 4),
  lambda w: exact.tree((0, 1, 2, 3)),
)
STOPPED = Kind(
  'chain that stops',
  lambda w: lm.make(w.draft, 3, policies.confidence(_STOP)),
  lambda w: exact.tree(_CHAIN, size=exact.stopping(_STOP)),
)
LOOKUP = Kind(
  'lookup', lambda w: ngram.make(3), lambda w: exact.lookup(w.prompt, 3)
)
LOOKUPS = Kind(
  'lookup of two candidates',
  lambda w: ngram.make(3, candidates=2),
  lambda w: exact.lookup(w.prompt, 3, candidates=2),
)
TREE = Kind(
  'tree without replacement',
  lambda w: lm.make_tree(w.draft, _TREE),
  lambda w: exact.tree(_TREE),
)
TREE_WITH = Kind(
  'tree with replacement',
  lambda w: lm.make_tree(w.draft, _TREE, True),
  lambda w: exact.tree(_TREE, True),
)
CHAINS = Kind(
  'two chains',
  lambda w: lm.make_tree(w.draft, _CHAINS, True),
  lambda w: exact.tree(_CHAINS, True),
)


CASCADE = Kind(
  'cascade over lookup',
  lambda w: heads.holding(
    cascade.make(w.draft, ngram.make(2), 2), Params(w.params.drafter, None)
  ),
  lambda w: stages.staged(verify.token, exact.lookup(w.prompt, 2), 2),
)

SIZES = {'width': 8, 'num_heads': 2, 'num_kv_heads': 1, 'head_dim': 4}


def _head(name, walk, trainable, make, parents, depth) -> Kind:
  """A head with random weights in the world of transformers."""

  def own(w: World):
    """Weights far from zero, or heads would say what the target does."""
    with jax.enable_x64(False):  # The same whatever the precision in force.
      made = trainable(w).init(jax.random.key(3), w.params.target)
      leaves, structure = jax.tree.flatten(made)
      keys = jax.random.split(jax.random.key(4), len(leaves))
      return structure.unflatten(
        x + 0.3 * jax.random.normal(key, x.shape)
        for x, key in zip(leaves, keys, strict=True)
      )

  def drafter(w: World) -> Drafter:
    return heads.holding(make(walk(w)), own(w))

  def source(w: World) -> exact.DraftSource:
    return heads.walked(w, walk(w), own(w), parents, depth)

  return Kind(name, drafter, source)


EAGLE = _head(
  'EAGLE-3',
  lambda w: eagle.walk(Head(w.target, Sizes(3, (0, 1), **SIZES, mlp_width=16))),
  lambda w: eagle.trainable(w.target, 3, **SIZES, mlp_width=16),
  lambda walker: chain.make(walker, 3),
  _CHAIN,
  3,
)
MEDUSA = _head(
  'tree of Medusa',
  lambda w: medusa.walk(w.target, 2),
  lambda w: medusa.trainable(w.target, 2),
  lambda walker: static_tree.make(walker, _TREE),
  _TREE,
  2,
)
# The draft of that world is the target's first layer.
EXIT = Kind(
  'early exit',
  lambda w: heads.holding(chain.make(early_exit.walk(w.target, 1), 3), None),
  CHAIN.source,
)

# A draft so poor that whole blocks are rejected shows what happens to the
# tokens behind a rejection.
WORLDS: dict[str, Callable[[], World]] = {
  'table': world.tables,
  'transformer': world.transformers,
  'poor draft': lambda: world.tables(
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
    model: what drafts and verifies, one of `WORLDS`.
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
  Case('token', verify.token, STOPPED),
  Case('token', verify.token, LOOKUP),
  Case('token', verify.token, CASCADE),
  Case('token', verify.token, CHAIN, 'transformer'),
  Case('token', verify.token, EXIT, 'transformer'),
  Case('token', verify.token, EAGLE, 'transformer', full=True),
  Case('recursive', verify.recursive, MEDUSA, 'transformer', full=True),
  Case('block', verify.block, CHAIN, quick=True),
  Case('block', verify.block, LONG, 'poor draft'),
  Case('block', verify.block, STOPPED),
  Case('block', verify.block, LOOKUP),
  Case('recursive', verify.recursive, CHAIN),
  Case('recursive', verify.recursive, TREE, quick=True),
  Case('recursive', verify.recursive, TREE_WITH),
  Case('recursive', verify.recursive, CHAINS),
  Case('recursive', verify.recursive, TREE, 'transformer'),
  Case('recursive', verify.recursive, LOOKUPS),
  Case('k-SEQ', verify.k_seq, TREE_WITH),
  Case('k-SEQ', verify.k_seq, CHAINS),
  Case('lenience 0.5', verify.lenience(0.5), CHAIN),
  Case('typical', verify.typical(), CHAIN),
  Case('typical', verify.typical(), TREE),
)


def find(rule: str, kind: Kind, model: str = 'table') -> Case:
  wanted = rule, kind, model
  return next(c for c in CASES if (c.rule, c.kind, c.model) == wanted)
