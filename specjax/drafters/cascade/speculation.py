"""Speculation within a step: a model and what drafts for it.

They go on from a text until it has K more tokens: exact draws from the model's
own distribution. Tokens beyond K are dropped for their place alone.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import sampling, verify
from specjax.loop import scoring
from specjax.models import cache as caches
from specjax.models.transformer import Model
from specjax.types import Cache, Context, Drafter, Rule, Verdict


class Drafted(NamedTuple):
  """A text with what is drafted so far."""

  ctx: Context  # as the inner drafter sees it
  block: Cache | None  # of what is drafted, where the model reads another's
  inner: Any
  key: jax.Array  # [B]
  probs: jax.Array  # [B, K + room, V]
  fed: jax.Array  # [B]
  passes: jax.Array  # [B]


def rule_for(drafter: Drafter) -> Rule:
  """The exact rule for a drafter's kind of draft."""
  chain = drafter.nodes == drafter.depth
  return verify.token if chain else verify.recursive


def wrong(inner: Drafter, depth: int, rule: Rule) -> str:
  """Why there is no such cascade, and the remedy; empty where there is."""
  if depth < 1:
    return f'depth must be at least 1, got {depth}'
  if inner.depth < 1:
    return 'the inner drafter proposes nothing: choose one of depth 1 or more'
  if inner.taps:
    return (
      f'the inner drafter reads layers {inner.taps} of the model, which are '
      'gone where text is taken back: choose one without taps'
    )
  if inner.learns:
    # Rows stand still here while others draft on, and would learn from that.
    return (
      'the inner drafter learns from its verdicts, which depend on the batch '
      'around a row here: choose a policy that does not, such as '
      'specjax.drafters.shapes.policies.confidence'
    )
  if inner.at_once:
    return (
      'the inner drafter reads the masks of its next draft with the text '
      'before it, which is taken back: choose one that drafts token after token'
    )
  if not rule.lossless:
    return 'the inner rule is lossy: choose an exact one, which keeps q'
  return rule.refuses(inner)


@dataclasses.dataclass(frozen=True)
class Speculation:
  """A model, a drafter for it, an exact rule, and K.

  A model may read the cache of the text that it is given, in part, as a target
  that drafts for itself does: it writes none, and what it drafts is in a block
  beside it until the step ends. The inner drafter sees no cache then.

  Raises:
    ValueError: there is no such speculation; see `wrong`.
  """

  model: Model
  inner: Drafter
  rule: Rule
  depth: int
  shares: bool = False  # whether the cache is the text's own

  def __post_init__(self):
    if reason := wrong(self.inner, self.depth, self.rule):
      raise ValueError(reason)

  def run(self, params, memory, ctx, key) -> Drafted:
    """Drafts K tokens behind the text of every row.

    Args:
      params: `Params` of the model and of what drafts for it.
      memory: `cache`, `inner` and `fed` as in `Drafted`, by position; of a
        model that shares the text's, `cache` is empty.
      ctx: the text.
      key: [B].
    """
    drafted, first = self._begin(params.target, memory, ctx, key)
    goal = ctx.length + self.depth
    return jax.lax.while_loop(
      lambda drafted: (drafted.ctx.length < goal).any(),
      lambda drafted: scoring.same_types(
        self._turn(params, ctx, first, drafted), drafted
      ),
      drafted,
    )

  def _begin(self, weights, memory, ctx, key):
    # After a whole draft was accepted its last token may never have been fed.
    # Such a row starts one token back, where what follows is known:
    #
    #   text  ... x1 x2 | y    x2 was not fed: it is the first root, and
    #                          whatever is drafted there, y comes next
    #
    # That turn has a key of its own, so that the draft behind y is the same
    # as of a row without it.
    late = memory.fed < ctx.length - 1
    keys = jax.vmap(jax.random.split)(key)
    room = len(key), self.depth + self.inner.depth + 1
    dtype = caches.dtype_of(memory.cache or ctx.cache)
    block = None
    if self.shares:
      block = caches.empty(self.model.config, *room, dtype)
    drafted = Drafted(
      ctx._replace(length=ctx.length - late, cache=memory.cache),
      block,
      memory.inner,
      jnp.where(late, keys[:, 1], keys[:, 0]),
      scoring.no_probs(self.model, weights, room, dtype),
      memory.fed,
      jnp.zeros_like(memory.fed),
    )
    return drafted, keys[:, 0]

  def _turn(self, params, ctx, first, drafted: Drafted) -> Drafted:
    """One pass of the model; rows that have all K tokens stand still."""
    here, goal = drafted.ctx, ctx.length + self.depth
    live, known = here.length < goal, here.length < ctx.length
    keep, to_draft, to_judge = scoring.split(drafted.key)
    draft, state = scoring.propose(
      self.inner, params, drafted.inner, here, to_draft
    )
    read, block, beside = here, drafted.block, None
    if block is not None:
      read = here._replace(cache=ctx.cache)
      beside = block, ctx.length - 1
    # The root of a row that stands still is fed: its slot is written again, and
    # `fed` may count it.
    out, logits = scoring.feed(
      self.model,
      params.target,
      read,
      draft._replace(size=jnp.where(live, draft.size, 0)),
      beside=beside,
    )
    scores, verdict = scoring.decide(
      to_judge, logits, here, draft, rule=self.rule, depth=self.inner.depth
    )
    token = jnp.take_along_axis(here.tokens, here.length[:, None], 1)[:, 0]
    verdict = Verdict(
      jnp.where(known[:, None], 0, verdict.path),
      jnp.where(known | ~live, 0, verdict.num_accepted),
      jnp.where(known, token, verdict.next_token),
    )
    new = scoring.emitted(draft, verdict)
    count = jnp.minimum(verdict.num_accepted + 1, goal - here.length)
    cache = here.cache
    if block is not None:
      place = here.length - ctx.length
      block = caches.commit(block, out.flight, verdict.path, place)
    else:
      cache = scoring.write(cache, out.flight, verdict, here.length)
    after = here._replace(
      tokens=scoring.append(here.tokens, new, count, here.length),
      length=here.length + count,
      cache=cache,
      history=sampling.remember(
        here.history, here.sampling, new, jnp.where(known, 0, count)
      ),
    )
    q = scoring.along(scores.probs, verdict.path)
    features = scoring.along(out.taps, verdict.path)
    fed = here.length + verdict.num_accepted
    return Drafted(
      after,
      block,
      self.inner.commit(params, state, after, verdict, features),
      jnp.where(known, first, keep),
      # A known token's q goes to place 0, which the next turn overwrites.
      scoring.put(drafted.probs, q, jnp.maximum(here.length - ctx.length, 0)),
      jnp.where(live, fed, drafted.fed),
      drafted.passes + live,
    )
