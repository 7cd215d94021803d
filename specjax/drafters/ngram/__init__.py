"""Lookup: copies what followed the last tokens elsewhere, without a model.

Elsewhere is earlier in the text (Saxena 2023, "Prompt lookup decoding") and,
where one is given, in a reference text (He et al. 2023, REST,
arXiv:2311.08252). Places vote for what they go on with: one where more of the
last tokens agree has more votes, and one in the text itself more than all
those of the reference text with as many agreeing. The draft is a chain of the
tokens with the most votes, or the nodes with the most votes of the tree that
all continuations make: equal beginnings are one path there, as in REST, so
nothing is scored twice. A single place and no reference text is prompt lookup.

In replays of texts of the embedded target (results/tried.md) places that vote
raise tau by up to a tenth, a second candidate by 4 to 7%, and a reference text
of the same kind by 9 to 26%; at temperature 1, where the text itself hardly
helps, by 10 to 18%. `configs/embedded_tables.py:lookup` measures it.

A row that has a prediction of its own (`types.Prediction`) copies from that
alone (`predicted`), a chain whatever the shape of other drafts.

Copied tokens are chosen, not drawn, so `probs` is None. Without a match none
is proposed. Nothing is remembered but the text.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from specjax.arguments import check_no_path, check_number, check_target
from specjax.drafters.ngram import predicted, retrieval
from specjax.drafters.ngram.copies import Copies, count_agreeing, merge
from specjax.drafters.ngram.retrieval import Corpus
from specjax.drafters.shapes import stateless
from specjax.types import Draft, Drafter, LoadedDrafter, Target

# Votes of a place for each further token that agrees. With 2 to 8 tau is the
# same within 2%, on texts of the embedded target: see results/tried.md.
_PER_TOKEN = 4.0
_PLACES = 16  # With 8 tau is up to 4% less, with 32 up to 2% more.


def look_up(tokens, length, depth: int, longest: int, places: int = 1):
  """Copies what follows the best earlier matches in a text, of one sequence.

  A match of more tokens is better; among equals the more recent.

    tokens  a b c a b | longest 2     match "a b" at 0    ->    c a b

  Args:
    tokens: [S].
    length: committed tokens.
    depth: K, tokens to copy.
    longest: longest suffix that is looked for; shorter ones are tried too.
    places: how many matches; S where these are fewer.

  Returns:
    Copies of so many places.
  """
  slots = tokens.shape[0]
  place = jnp.arange(slots)
  matched = count_agreeing(tokens, tokens, length, longest)
  earlier = place < length - 1
  rank = jnp.where(earlier & (matched > 0), matched * slots + place, -1)
  # A compiler leaves a maximum on the device that has the row, and no top_k.
  few = min(places, slots)
  best = rank.max()[None] if few == 1 else jax.lax.top_k(rank, few)[0]
  begin = jnp.where(best >= 0, best % slots + 1, length)
  index = jnp.minimum(begin[:, None] + jnp.arange(depth), slots - 1)
  return Copies(
    tokens[index],
    jnp.minimum(length - begin, depth).astype(jnp.int32),
    jnp.where(best >= 0, best // slots, 0).astype(jnp.int32),
  )


def _drop(copies: Copies, shortest: int) -> Copies:
  """Empties the continuations of matches of fewer than `shortest` tokens."""
  kept = copies.matched >= shortest
  return copies._replace(size=jnp.where(kept, copies.size, 0))


def copy_prediction(prediction, tokens, length, own, depth: int):
  """The draft of one sequence with its prediction, see `make`.

  Args:
    prediction: of the sequence.
    tokens: [S].
    length: committed tokens.
    own: its draft where nothing is predicted.
    depth: K.
  """
  copied, size = predicted.look_up(prediction, tokens, length, depth)
  spare = (0, own[0].shape[0] - depth)
  parents = jnp.arange(depth, dtype=jnp.int32)
  chain = jnp.pad(copied, spare), jnp.pad(parents, spare), size
  has = prediction.length > 0
  return tuple(jnp.where(has, x, y) for x, y in zip(chain, own, strict=True))


def _check(longest: int, shortest: int, candidates: int, places: int | None):
  """Raises a ValueError where no draft length would make the options right."""
  sizes = {'longest': longest, 'shortest': shortest, 'candidates': candidates}
  for name, value in sizes.items():
    check_number(name, value, 1)
  if places is not None:
    check_number('places', places, 1)
  if shortest > longest:
    raise ValueError(
      f'shortest is {shortest}, but longest is {longest}: choose a smaller '
      'shortest'
    )
  if longest > retrieval.SORTED:
    raise ValueError(
      f'longest is {longest}, but a corpus is sorted by {retrieval.SORTED} '
      'tokens: choose less'
    )


@functools.cache
def make(
  depth: int,
  longest: int = 3,
  candidates: int = 1,
  places: int | None = None,
  reference: bool = False,
  shortest: int = 1,
) -> Drafter:
  """Returns the drafter.

  Args:
    depth: K, tokens copied at most.
    longest: longest suffix of the text that is looked up.
    candidates: 1 makes chains of K tokens, k trees of k K nodes, for
      `verify.recursive`.
    places: matches that vote, of the text and for every length of a match in
      the reference text. By default 16, but for a chain from the text alone
      1, the longest match and the most recent of several: prompt lookup.
    reference: look also in a reference text: the drafter's parameters, a
      `retrieval.Corpus`. It has none otherwise.
    shortest: tokens that must agree before a continuation is copied, at most
      `longest`. With 1 nearly every step of a long text has a draft.

  Raises:
    ValueError: one is below 1, `shortest` is above `longest`, or more is
      looked up than a corpus is sorted by.
  """
  check_number('depth', depth, 1)
  _check(longest, shortest, candidates, places)

  chain = candidates == 1
  alone = chain and not reference
  votes = places or (1 if alone else _PLACES)

  def draft_row(corpus: Corpus, tokens, length):
    """The draft of one sequence: tokens [N], parents [N] and how many."""
    copies = _drop(look_up(tokens, length, depth, longest, votes), shortest)
    if votes == 1 and alone:
      parents = jnp.arange(depth, dtype=jnp.int32)
      return copies.tokens[0], parents, copies.size[0]
    weight = _PER_TOKEN ** (copies.matched - longest).astype(jnp.float32)
    if reference:
      more = retrieval.look_up(corpus, tokens, length, depth, longest, votes)
      more = _drop(more, shortest)
      other = _PER_TOKEN ** (more.matched - longest).astype(jnp.float32)
      weight = jnp.concatenate([2 * votes * weight, other])
      copies = Copies(*map(jnp.concatenate, zip(copies, more, strict=True)))
    return merge(copies, weight, depth * candidates, chain)

  def draft(params, ctx, key):
    row = functools.partial(draft_row, params.drafter)
    made = jax.vmap(row)(ctx.tokens, ctx.length)
    if ctx.sampling.prediction is not None:
      copy = jax.vmap(functools.partial(copy_prediction, depth=depth))
      made = copy(ctx.sampling.prediction, ctx.tokens, ctx.length, made)
    return Draft(*made, None)

  return stateless.make(depth, depth * candidates, draft, predicts=True)


def load(
  target: Target,
  path: Literal[''] = '',
  longest: int = 3,
  candidates: int = 1,
  places: int | None = None,
  corpus: str = '',
  shortest: int = 1,
) -> LoadedDrafter:
  """The drafter for a target.

  Args:
    target: what is drafted for.
    path: empty: there are no weights.
    longest: see `make`, also for `candidates` and `places`.
    corpus: a file of reference text, see `retrieval.read`; empty for none.
    shortest: see `make`.

  Raises:
    ValueError: `corpus` is no such file, or has tokens beyond the target's.
  """
  check_no_path(path)
  check_target(target)
  _check(longest, shortest, candidates, places)
  model, text = target.model, None
  if corpus:
    text = retrieval.read(corpus, model.config.vocab_size)

  def of_length(depth: int) -> Drafter:
    return make(depth, longest, candidates, places, text is not None, shortest)

  return LoadedDrafter(model, of_length, text)
