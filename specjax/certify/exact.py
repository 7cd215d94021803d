"""Exact distributions of whole texts, by enumeration over a tiny vocabulary.

A rule's own two functions are multiplied out over every draft, every outcome
of its coins and every step, in the precision of the given distributions
(float64 where that is enabled). Nothing is sampled. The result has the number
of target calls beside every text, so what is counted is certified, too.

  texts over {a, b}    ''  a  b  aa  ab  ba  bb  aaa ...
  number                0  1  2   3   4   5   6    7
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.drafters.shapes import chain, static_tree
from specjax.drafters.shapes.policies import Last, Policy
from specjax.types import Draft, Rule, Scores


class Texts:
  """The numbered texts of up to `longest` tokens of a vocabulary."""

  def __init__(self, vocab: int, longest: int):
    self.vocab = vocab
    self.longest = longest
    # offset[n]: number of the first text of n tokens.
    self.offset = np.cumsum([0, *(vocab**n for n in range(longest + 1))])

  def __len__(self) -> int:
    return int(self.offset[-1])

  def length(self, number):
    return np.searchsorted(self.offset, number, 'right') - 1

  def after(self, number, token):
    """Number of a text with one more token."""
    length = self.length(number)
    code = (number - self.offset[length]) * self.vocab + token
    return self.offset[length + 1] + code

  def tokens(self, number: int) -> tuple[int, ...]:
    length = int(self.length(number))
    code = int(number - self.offset[length])
    return tuple(
      code // self.vocab**i % self.vocab for i in range(length - 1, -1, -1)
    )

  def cut(self, limit: int, eos: tuple[int, ...]):
    """Number of every text after it was cut, and whether that ended it.

    A text is cut after its first end-of-text token, or to `limit` tokens.
    """
    numbers, ended = np.arange(len(self)), np.zeros(len(self), bool)
    for length in range(self.longest):
      above = np.arange(self.offset[length], self.offset[length + 1])
      for token in range(self.vocab):
        here = self.after(above, token)
        numbers[here] = np.where(ended[above], numbers[above], here)
        ended[here] = ended[above] | (token in eos) | (length + 1 >= limit)
    return numbers, ended


class Distributions(NamedTuple):
  """The distribution of the token after every text, as numpy arrays."""

  probs: np.ndarray  # [texts, V] after the sampling pipeline
  logits: np.ndarray  # [texts, V] before temperature and cuts
  temperature: float = 1.0


class Drafts(NamedTuple):
  """Every draft that may be made after the texts of interest; M of them."""

  draft: Draft  # [M, ...]
  weight: np.ndarray  # [M] probability of the draft, given its text
  context: np.ndarray  # [M] which of the texts it comes after
  rows: np.ndarray  # [M, N+1] number of the text that ends at each row


@functools.partial(jax.jit, static_argnums=0)
def _later(law, *args):
  return jax.vmap(law, in_axes=(0, 0, 0, None))(*args)


_look = jax.jit(chain.look)
# (texts, q, contexts) -> Drafts
DraftSource = Callable[[Texts, Distributions, np.ndarray], Drafts]
# (text a draft began after [M], text of its row [M]) -> probs, logits [M, V]
After = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _anywhere(q: Distributions) -> After:
  return lambda context, above: (q.probs[above], q.logits[above])


def tree(
  parents: tuple[int, ...],
  replacement: bool = False,
  size: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
  after: Callable[[Texts, Distributions, np.ndarray], After] | None = None,
  law: Callable = static_tree.remaining,
) -> DraftSource:
  """All drafts of `shapes.chain` and `shapes.static_tree`.

  Args:
    parents: the static tree, by level.
    replacement: whether siblings are independent, and equal texts merged.
    size: confidence [M, N] in the drawn tokens, and entropy [M, N], see
      `shapes.policies`, -> nodes that exist [M].
    after: distributions that depend on where a draft began; by default q.
    law: of later siblings, where they are no independent draws.
  """
  nodes = len(parents)
  levels = static_tree.levels_of(parents)
  merge = jax.jit(
    jax.vmap(functools.partial(static_tree.merge, parents, levels))
  )

  def source(texts, q, contexts):
    drawn = np.indices((texts.vocab,) * nodes).reshape(nodes, -1).T
    tokens = np.tile(drawn, (len(contexts), 1))
    context = np.repeat(np.arange(len(contexts)), len(drawn))
    rows = np.zeros((len(tokens), nodes + 1), int)
    rows[:, 0] = contexts[context]
    distributions, seen = [], []
    find = after(texts, q, contexts) if after else _anywhere(q)
    for node, parent in enumerate(parents):
      above = rows[:, parent]
      chance, logits = find(rows[:, 0], above)
      if size is not None:
        seen.append(_look(logits, tokens[:, node]))
      earlier = [i for i in range(node) if parents[i] == parent]
      if earlier and not replacement:
        drawn = np.zeros(chance.shape, bool)
        np.put_along_axis(drawn, tokens[:, earlier], True, 1)
        args = chance, drawn, logits, q.temperature
        chance = np.asarray(_later(law, *args))
      distributions.append(chance)
      rows[:, node + 1] = texts.after(above, tokens[:, node])
    probs = np.stack(distributions, 1)
    wide = probs.astype(np.float64)
    chances = np.take_along_axis(wide, tokens[..., None], 2)[..., 0]
    # Low precision does not add up to 1, and is drawn from as if it did.
    chances = chances / wide.sum(-1)
    exist = np.full(len(tokens), nodes)
    if size is not None:
      exist = size(*(np.stack(x, 1) for x in zip(*seen, strict=True)))
    hung = np.broadcast_to(parents, tokens.shape)
    if replacement:
      hung = merge(tokens)
    draft = Draft(tokens, hung, exist, probs)
    return Drafts(draft, chances.prod(1), context, rows)

  return source


def stopping(policy: Policy) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
  """Sizes of the first draft under a policy."""

  def size(confidence, entropy):
    sizes, reach = np.zeros(len(confidence), int), np.ones(len(confidence))
    going = np.ones(len(confidence), bool)
    for i, seen in enumerate(zip(confidence.T, entropy.T, strict=True), 1):
      sizes, reach = sizes + going, reach * policy.chance(i, *seen)
      going &= np.asarray(policy.goes_on(policy.start(), Last(i, *seen, reach)))
    return sizes

  return size


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def judged(rule, draft, scores):
  """accept [M, N], rest [M, N+1, V], and where a walk stands at each node."""
  nodes = draft.tokens.shape[0]
  rest = jax.vmap(lambda row: rule.rest(draft, scores, row))
  accept = rule.accept(draft, scores)
  stand = trees.first(draft.parents, draft.tokens) + 1
  return accept, rest(jnp.arange(nodes + 1)), stand


def ends_of(parents, exists, accept, stand):
  """[M, N+1]: chance that the walk through a draft ends at each row."""
  every = np.arange(len(parents))
  accept = np.clip(accept, 0, 1)  # Coins are from 0 to 1.
  ends = np.zeros((len(parents), parents.shape[1] + 1))
  ends[:, 0] = 1
  for node in range(parents.shape[1]):
    above = parents[:, node]
    moves = ends[every, above] * accept[:, node] * exists[:, node]
    ends[every, above] -= moves
    ends[every, stand[:, node]] += moves
  return ends


def multiplied_out(
  rule: Rule, made: Drafts, p: Distributions
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Evaluates a rule on drafts: accept [M, N], rest [M, N+1, V] and ends.

  The ends [M, N+1] are the chances that the walk through a draft ends at each
  row; 0 of drafts that never come, whatever the rule says of them: p / q is no
  number there.
  """
  scores = Scores(p.probs[made.rows], p.logits[made.rows])
  accept, rest, stand = (
    np.asarray(x, np.float64 if x.dtype.kind != 'i' else int)
    for x in judged(rule, made.draft, scores)
  )
  parents = np.asarray(made.draft.parents)
  exists = np.arange(parents.shape[1]) < np.asarray(made.draft.size)[:, None]
  ends = ends_of(parents, exists, accept, stand)
  return accept, rest, np.where(made.weight[:, None] > 0, ends, 0)


def step(
  rule: Rule,
  source: DraftSource,
  texts: Texts,
  p: Distributions,
  q: Distributions,
  contexts,
) -> np.ndarray:
  """Returns the chance [len(contexts), texts] of every text after one step.

  Args:
    rule: how drafts are judged; its functions are what is evaluated.
    source: all drafts.
    texts: the numbered texts.
    p: distributions of the target.
    q: distributions of the draft.
    contexts: numbers of the texts that the step starts from.
  """
  made = source(texts, q, np.asarray(contexts))
  _, rest, ends = multiplied_out(rule, made, p)
  ends = made.weight[:, None] * ends
  # What is drawn from need not add up to 1 in low precision, and where no walk
  # ends nothing is drawn.
  rest = np.where(ends[..., None] > 0, rest, 1)
  rest = rest / rest.sum(-1, keepdims=True)
  chance = np.zeros((len(contexts), len(texts)))
  for token in range(texts.vocab):
    emitted = texts.after(made.rows, token)
    np.add.at(
      chance, (made.context[:, None], emitted), ends * rest[:, :, token]
    )
  return chance


def plain(texts: Texts, p: Distributions, contexts) -> np.ndarray:
  """Returns these chances for a step of plain decoding."""
  chance = np.zeros((len(contexts), len(texts)))
  probs = np.asarray(p.probs, np.float64)[contexts]
  probs = probs / probs.sum(-1, keepdims=True)
  for token in range(texts.vocab):
    emitted = texts.after(np.asarray(contexts), token)
    chance[np.arange(len(contexts)), emitted] = probs[:, token]
  return chance


def unfinished(texts: Texts, limit: int, eos: tuple[int, ...]) -> np.ndarray:
  """Returns numbers of texts that a step may start from, shorter ones first."""
  _, ended = texts.cut(limit, eos)
  return np.flatnonzero(~ended)


def sequence(
  chance: np.ndarray, texts: Texts, contexts, limit: int, eos: tuple[int, ...]
) -> np.ndarray:
  """Returns the chance [texts, limit + 1] of finished texts after some steps.

  Args:
    chance: chances of one step after each of `contexts`.
    texts: the numbered texts.
    contexts: what `unfinished` lists.
    limit: tokens at which a text ends.
    eos: tokens that end a text before.
  """
  cut, ended = texts.cut(limit, eos)
  reached = np.zeros((len(texts), limit + 1))
  reached[0, 0] = 1
  for context, after in zip(contexts, chance, strict=True):
    new = np.flatnonzero(after)
    weight = reached[context]
    longer = after[new, None] * np.roll(weight, 1)
    np.add.at(reached, cut[new], longer)
  return np.where(ended[:, None], reached, 0)


def constant(p, texts: Texts) -> Distributions:
  """The distribution p [V] after every text."""
  probs = np.broadcast_to(np.asarray(p, float), (len(texts), len(p)))
  with np.errstate(divide='ignore'):
    return Distributions(probs, np.log(probs))


def efficiency(
  rule: Rule,
  source: DraftSource,
  texts: Texts,
  p: Distributions,
  q: Distributions,
) -> float:
  """tau of a rule's step from the empty text, without limit or end of text.

  Texts must be at least one token longer than drafts; see `step`.
  """
  chance = step(rule, source, texts, p, q, [0])[0]
  return float(chance @ texts.length(np.arange(len(texts))))


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
  return float(np.abs(a - b).sum() / 2)
