"""The contract page: every public type, once.

Axes, one letter each:

  B  batch (sequences)          V  vocabulary
  S  cache slots                L  layers
  T  tokens fed at once         H  attention heads
  N  drafted nodes              G  key-value heads
  K  draft depth                D  head width
  R  source tokens              E  model width

p is always the target's distribution and q the draft's; Chen et al.
(arXiv:2302.01318) use the letters the other way round.

Moving things are NamedTuples of arrays (pytrees); `Spec` and `Drafter` are
static and hashable. Nothing is both.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax

if TYPE_CHECKING:
  from specjax.models.transformer import Model

Weights: TypeAlias = Any  # of a model or a drafter: a pytree of arrays
DrafterState: TypeAlias = Any  # a pytree of arrays [B, ...]


class KV(NamedTuple):
  """Keys and values of one layer; a cache is a tuple of these, one a layer.

  Keys are columns: their product with queries then reads them in order. Of a
  latent, a value is the rest of its key, see `models.latent`.
  """

  k: jax.Array  # [B, G, D, S]
  v: jax.Array  # [B, G, S, D]


class CrossKV(NamedTuple):
  """Keys and values of one layer of an encoder-decoder.

  Those of the source are read only.
  """

  k: jax.Array  # [B, G, D, S]
  v: jax.Array  # [B, G, S, D]
  source: KV  # of R slots
  source_length: jax.Array  # [B]


class Recurrence(NamedTuple):
  """The state of one layer that reads a text in order; see `recurrent`.

  It is of exactly the cached tokens, since no slot says which; of a row that is
  done it is of no text.
  """

  state: jax.Array  # [B, heads, keys, values] at least float32
  last: jax.Array  # [B, W - 1, channels] that a convolution of W tokens saw


class KVState(NamedTuple):
  """A layer with a state; its keys have no head where it has no attention."""

  k: jax.Array  # [B, G, D, S]
  v: jax.Array  # [B, G, S, D]
  state: Any  # a `Recurrence`, and `RecurrentRows` in flight


class RecurrentRows(NamedTuple):
  """A block of N rows in flight behind a `Recurrence`."""

  keys: jax.Array  # [B, N, heads of keys, keys]
  updates: jax.Array  # [B, N, heads, values] what each adds along its key
  decay: jax.Array  # [B, N, heads, 2] logarithm, its coarse part and the rest
  total: jax.Array  # [B, N, heads, 2] sums of these along the path
  depth: jax.Array  # [B, N] ancestors within the block
  inputs: jax.Array  # [B, N, channels] of the convolution


# Of a model that owns its cache a `models.cache.OwnCache` is in this place.
Cache = tuple[KV | CrossKV | KVState, ...]


class Source(NamedTuple):
  """The tokens that the encoder of an encoder-decoder reads."""

  tokens: jax.Array  # [B, R]
  length: jax.Array  # [B] at least 1


class Constraint(NamedTuple):
  """The texts that may come, a row; see `constraints.Automaton`.

  Every row has its own tables, like all that is said of rows: so rows of one
  batch have different ones, and are split over devices with them.
  """

  classes: jax.Array  # [B, V] of every token
  next: jax.Array  # [B, Q, C] state after a token of a class; negative: none
  only: jax.Array  # [B, Q] the one token allowed in a state; negative: more
  least: jax.Array  # [B] tokens of the shortest text, with that which ends it


class Prediction(NamedTuple):
  """The predicted continuation of a row: drafts are copied from it."""

  tokens: jax.Array  # [B, R]
  length: jax.Array  # [B] of these; 0: nothing is predicted
  start: jax.Array  # [B] of these in the text, if nothing of them is changed


class Sampling(NamedTuple):
  """Values of the pipeline's stages, one a row; None leaves a stage out.

  Which stages exist is part of the compiled program; their values are not. A
  prediction is no stage: no distribution depends on it.
  """

  temperature: jax.Array  # [B] 0 is greedy
  top_k: jax.Array | None = None  # [B] 0 keeps all
  top_p: jax.Array | None = None  # [B] in (0, 1]
  min_p: jax.Array | None = None  # [B] in [0, 1), relative to the largest
  logit_bias: jax.Array | None = None  # [B, V] added to the logits
  repetition: jax.Array | None = None  # [B] positive; 1 changes nothing
  presence: jax.Array | None = None  # [B] in [-2, 2]
  frequency: jax.Array | None = None  # [B] in [-2, 2]
  forbidden: jax.Array | None = None  # [B, V]
  min_new_tokens: jax.Array | None = None  # [B] before a text may end
  ends: jax.Array | None = None  # [B, number of them] tokens that end it
  constraint: Constraint | None = None
  prediction: Prediction | None = None


class History(NamedTuple):
  """The parts of the committed text that stages look at; None: none does."""

  new: jax.Array | None = None  # [B] tokens after the prompt
  counts: jax.Array | None = None  # [B, V] how often each is among those
  prompt: jax.Array | None = None  # [B, V] whether it is in the prompt
  state: jax.Array | None = None  # [B] of the constraint, see `Constraint`


class Params(NamedTuple):
  """The weights that a drafter may compute with: the target's and its own."""

  target: Weights
  drafter: Weights


class Context(NamedTuple):
  """The part of a state that a drafter may look at; read only.

  The last committed token is in no cache yet: cache slot i holds token i for
  i < length - 1, and `tokens[length - 1]` is the next token to be fed.
  """

  tokens: jax.Array  # [B, S]
  length: jax.Array  # [B]
  cache: Cache
  sampling: Sampling  # the stages that q must go through, as p does
  history: History
  source: Source | None = None  # of an encoder-decoder target


class Draft(NamedTuple):
  """N drafted tokens that hang as a tree under the last committed token.

  Row 0 of the scored block is that token (the root); node i is row i + 1, and
  `parents[i]` is a row: 0 the root, j + 1 node j. Parents come before their
  children, and siblings are tried in the order of their nodes. A chain has
  parents 0, 1, 2, ...

    tokens   x0  x1  x2        rows   0 -- 1 -- 2
    parents   0   1   0                 \\- 3
  """

  tokens: jax.Array  # [B, N]
  parents: jax.Array  # [B, N]
  size: jax.Array  # [B]: nodes at or beyond it do not exist
  probs: jax.Array | None  # [B, N, V] what node i was drawn from; None: chosen


class Verdict(NamedTuple):
  """The decision of a verification rule: `path` holds rows, root first."""

  path: jax.Array  # [B, K+1]
  num_accepted: jax.Array  # [B]
  next_token: jax.Array  # [B]


class Drafter(NamedTuple):
  """A way to draft: four pure functions and its sizes.

  init(params, ctx, hidden) -> state: after prefill. `hidden` is
    [B, S, len(taps), E]: the target's features of every cached token, zeros
    elsewhere.
  propose(params, state, ctx, key) -> (Draft, state): `key` is [B] keys.
  commit(params, state, ctx, verdict, hidden) -> state: `ctx` already holds
    the new tokens; `hidden` [B, K+1, len(taps), E] are the target's features
    along the accepted path. A row that has finished gets an empty path.

  `probs` of a draft is a promise that node i was drawn from it given its
  earlier siblings; a token chosen in any other way carries None. Where it is
  given, a drawn token stays: `size` may depend on tokens already drawn and
  kept, never on the one that would be dropped.
  """

  depth: int  # K: longest path from the root to a leaf
  nodes: int  # N
  init: Callable[..., DrafterState]
  propose: Callable[..., tuple[Draft, DrafterState]]
  commit: Callable[..., DrafterState]
  taps: tuple[int, ...] = ()  # target layers whose features it wants
  positions: int | None = None  # longest sequence it was made for
  independent: bool = False  # siblings are independent draws
  paths: int = 0  # chains that are drawn independently; 0: another tree
  hub: bool = False  # of two siblings one is the likeliest token of q
  beyond: int = 0  # slots its memory writes behind those of its draft
  at_once: bool = False  # a model of its own says all places in one pass
  learns: bool = False  # drafts may depend on earlier verdicts; see law 3
  predicts: bool = False  # drafts are copied from a row's `Prediction`


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
  """A target and what belongs to it; the argument of drafters' loaders.

  Attributes:
    model: the target.
    params: its weights; None where they are not read yet.
    path: directory of its checkpoint; empty where there is none.
    fingerprint: () -> that of the checkpoint, see `checkpoints.fingerprint`;
      None where it does not matter which target a head was trained for.
    max_length: longest sequence of the run, see `checkpoints.load`.
    tokenizer: of its checkpoint; None where there is none.
    eos: token ids that end a text.
    layout: of its weights, see `layouts`: 'auto' lets `decode` choose.
    dtype: of its weights and its cache; drafts are read in it, too, where
      their loader is given no other.
    form: of its matrices, see `checkpoints.parameters.WeightForm`; language
      models that draft for it are read in it, too. None: floats.
    remembered: what was chosen for it; see `layouts.choose`.
  """

  model: 'Model'
  params: Weights = None
  path: str = ''
  fingerprint: Callable[[], str] | None = None
  max_length: int | None = None
  tokenizer: Any = None
  eos: tuple[int, ...] = ()
  layout: str = 'whole'
  dtype: str = 'float32'
  form: Any = None
  remembered: dict[Any, Any] = dataclasses.field(
    init=False, repr=False, default_factory=dict
  )

  @staticmethod
  def of(
    model: 'Model',
    params: Weights,
    *,
    tokenizer: Any = None,
    eos: tuple[int, ...] = (),
  ) -> 'Target':
    """Returns a model of other code as a target; see `specjax.models.own`.

    Args:
      model: a `specjax.Model`, or what `specjax.adapt` returns.
      params: its weights, a pytree of arrays.
      tokenizer: of texts, with `encode` and `decode`; None: token ids alone.
      eos: token ids that end a text.

    Raises:
      ValueError: one of these is none; names it.
    """
    from specjax.models import own  # It reads this module.

    return own.as_target(model, params, tokenizer, eos)


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedDrafter:
  """A drafter with its weights, whose draft length is still open.

  A loader is a function `load(target, path='', **options)` that returns one.
  It reads weights once, whatever lengths are made of them; without any it
  declares `path: Literal['']`, and a config that names a path is refused. Where
  it drafts with a model of its own, its module may offer
  `describe(path, **options)`, too: a `checkpoints.Description` of that model,
  from files' headers alone, or None. Its vocabulary, positions and bytes are
  then checked before weights are read.

  Attributes:
    model: the target's model it was loaded for.
    make: (depth) -> Drafter; asked twice it gives the same one, so that
      compiled programs are shared.
    params: its weights; None where it has none.
    draft: where it drafts with a model of its own, token by token, that model
      and its weights.
    pairing: `unverified` where nothing says that it was trained for this
      target, as of published heads.
    passes: where it drafts with weights of the target, token by token, what of
      the target each token takes.
  """

  model: 'Model'
  make: Callable[[int], Drafter]
  params: Weights = None
  draft: 'tuple[Model, Weights] | None' = None
  pairing: str = ''
  passes: 'Model | None' = None

  def __post_init__(self):
    object.__setattr__(self, 'make', functools.cache(self.make))


class Rule(NamedTuple):
  """A verification rule of one sequence; `vmap` outside.

  accept(draft, scores) -> [N]: the probability that node i is accepted, given
    that its parent was reached and its earlier siblings were rejected.
  rest(draft, scores, row) -> [V]: the distribution of the next token after
    `row` was the last one accepted.
  lossless: whether the output keeps the target's distribution exactly.
  placed: whether the target draws the token behind every row first, by a coin
    of its place in the text, and a node is accepted where it is that token.
    `accept` and `rest` say how likely that is, for a draft that knows nothing
    of the coins. A text is then that of plain decoding under the same rule.
  refuses(drafter) -> str: why the rule cannot take a drafter's kind of draft,
    and the remedy; empty where it can.
  """

  accept: Callable[..., jax.Array]
  rest: Callable[..., jax.Array]
  lossless: bool
  refuses: Callable[[Drafter], str] = lambda drafter: ''
  placed: bool = False


class Scores(NamedTuple):
  """Scores that a rule judges a draft by, rows as in `Draft`."""

  probs: jax.Array  # [N+1, V] after the sampling pipeline
  logits: jax.Array  # [N+1, V] in it, before the temperature


class Counts(NamedTuple):
  """Statistics of each row; everything reported derives from these."""

  histogram: jax.Array  # [B, K+1] whole steps (`counting`) by accepted length
  tried: jax.Array  # [B, K] steps in which position k was judged
  accepted: jax.Array  # [B, K]
  drafted: jax.Array  # [B] nodes proposed in whole steps
  tokens: jax.Array  # [B] new tokens
  target_calls: jax.Array  # [B]
  overlap: jax.Array  # [B] sum over first positions of sum(min(p, q))
  misses: jax.Array  # [B] steps without any proposal


class Logprobs(NamedTuple):
  """Log-probabilities of new tokens and of the n most probable ones."""

  own: jax.Array  # [B, S]
  ids: jax.Array  # [B, S, n]
  top: jax.Array  # [B, S, n]


class Records(NamedTuple):
  """Records of new tokens, the first one first; None: not recorded."""

  origins: jax.Array | None  # [B, S] see `token_records.ORIGINS`
  logprobs: Logprobs | None
  sampled: jax.Array | None  # [B, S] see `token_records.Recording`


class SpecState(NamedTuple):
  """Everything that moves. `generate.start` is its one constructor."""

  tokens: jax.Array  # [B, S]
  length: jax.Array  # [B] committed tokens
  start: jax.Array  # [B] length of the prompt
  limit: jax.Array  # [B] length at which a row ends
  done: jax.Array  # [B]
  finite: jax.Array  # [B] false once p or q was no number, see `scoring.finite`
  cache: Cache
  drafter: DrafterState
  key: jax.Array  # [B] one key a row
  sampling: Sampling
  history: History
  counts: Counts
  source: Source | None = None  # of an encoder-decoder target
  records: Records | None = None  # see `token_records.Recording`


@dataclasses.dataclass(frozen=True)
class Spec:
  """The one static argument: build it once, since jit compares it.

  Attributes:
    target: the target model.
    drafter: how to draft.
    rule: how to verify.
    eos: token ids that end a row.
  """

  target: 'Model'
  drafter: Drafter
  rule: Rule
  eos: tuple[int, ...] = ()
