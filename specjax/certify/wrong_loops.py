"""Planted bugs of the loop, seen in what the compiled program makes."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees, verify
from specjax.certify import constrained, other_vocabulary, rule_cases
from specjax.certify.tiny_models import TinyModels
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.types import Draft, Drafter, Verdict


@dataclasses.dataclass(frozen=True)
class WrongLoop:
  """A loop whose texts should have the distribution of a case, and have not.

  Attributes:
    name: what is wrong.
    case: what it should be.
    drafter: that drafts instead, made for the tiny models.
    parts: that a step is made of instead.
    quick: whether the quick certificate runs it.
  """

  name: str
  case: rule_cases.Case
  drafter: Callable[[TinyModels], Drafter] | None = None
  parts: generate.StepParts = generate.PARTS
  quick: bool = False


# Drafters: a chain from a table, with one thing off


def _fresh(memory, key, length, depth):
  del length  # Unused.
  return sampling.coins(key, depth), memory


def _honest(logits, q):
  del logits  # Unused.
  return q


def _chain(depth, choose=sampling.draw, report=_honest, coins=_fresh):
  """A drafter whose parameters are a table of logits [V, V].

  Args:
    depth: K.
    choose: (coins, q) -> token.
    report: (logits, q) -> what `probs` says.
    coins: (memory, key, length, depth) -> coins [depth, 2] and memory.
  """

  def init(params, ctx, hidden):
    del params, hidden  # Unused.
    batch = len(ctx.length)
    return jax.random.split(jax.random.key(0), batch), jnp.zeros(batch, bool)

  def draft_row(table, memory, token, length, values, history, key):
    tossed, memory = coins(memory, key, length, depth)
    above = jnp.full(depth, -1, jnp.int32)
    probs = []
    for i in range(depth):
      q, _ = sampling.next_distribution(table[token], values, history, above)
      probs.append(report(table[token], q))
      token = choose(tossed[i], q)
      above = above.at[i].set(token)
    return above, jnp.stack(probs), memory

  def propose(params, memory, ctx, key):
    last = jnp.take_along_axis(ctx.tokens, ctx.length[:, None] - 1, 1)[:, 0]
    row = functools.partial(draft_row, params.drafter)
    tokens, probs, memory = jax.vmap(row)(
      memory, last, ctx.length, ctx.sampling, ctx.history, key
    )
    batch = len(last)
    size = jnp.full(batch, depth, jnp.int32)
    return Draft(tokens, trees.chain(batch, depth), size, probs), memory

  def commit(params, memory, ctx, verdict, hidden):
    del params, ctx, verdict, hidden  # Unused.
    return memory

  return Drafter(depth, depth, init, propose, commit)


def _raw(logits, q):
  return jax.nn.softmax(logits).astype(q.dtype)


def _of_one_token(logits, q):
  """Two tokens have the string of token 1, and q is that of one of them."""
  del logits  # Unused.
  one = q.at[1].multiply(0.5)
  return one / one.sum()


def _best(coins, q):
  del coins  # Unused.
  return jnp.argmax(q).astype(jnp.int32)


def _tied_to_positions(memory, key, length, depth):
  """Coins of a position are the same whenever it is drafted."""
  first, started = memory
  first = jnp.where(started, first, key)
  at = jax.vmap(lambda i: jax.random.fold_in(first, length + i))
  coins = jax.vmap(sampling.coins)(at(jnp.arange(depth)))
  return coins, (first, jnp.ones_like(started))


# Parts of the step


def _one_key(keys):
  """Drafting and judging share a key."""
  keep, to_draft, _ = generate.PARTS.split(keys)
  return keep, to_draft, to_draft


def _temperature_last(logits, values, history, above):
  """Cuts at temperature 1, and the temperature after them."""
  one = jnp.ones_like(values.temperature)
  cut = sampling.distributions(
    logits, values._replace(temperature=one), history, above
  )
  masked = jnp.where(cut.probs > 0, cut.logits, -jnp.inf)
  only = sampling.Sampling(values.temperature)
  block = jax.vmap(sampling.distribution, in_axes=(0, None))
  return cut._replace(probs=jax.vmap(block)(masked, only))


def _hottest_for_all(logits, values, history, above):
  """Greedy rows are sampled as their neighbours are."""
  hot = jnp.full_like(values.temperature, values.temperature.max())
  return sampling.distributions(
    logits, values._replace(temperature=hot), history, above
  )


def _blind_to_drafted(logits, values, history, above):
  return sampling.distributions(
    logits, values, history, jnp.full_like(above, -1)
  )


def _coin_used_twice(key, draft, scores, rule, depth):
  """The coin that rejects a token also draws the one in its place."""
  nodes = draft.tokens.shape[0]
  bits = jax.random.bits(key, (nodes + 1,), jnp.uint32)
  u = sampling.uniform(bits[1:], scores.probs.dtype)
  path, count = verify.walk(draft, rule.accept(draft, scores), u, depth)
  rest = rule.rest(draft, scores, path[-1])
  coin = bits[jnp.where(count < nodes, count + 1, 0)]
  return Verdict(path, count, sampling.draw(jnp.stack([coin, coin]), rest))


def _ends_only_last(state, draft, verdict, eos):
  """An end of text counts only as the last token of a step."""
  emitted, _, whole, stopped = generate.PARTS.emit(state, draft, verdict, eos)
  full = verdict.num_accepted + 1
  last = jnp.take_along_axis(emitted, verdict.num_accepted[:, None], 1)
  stopped &= (last == jnp.asarray(eos)).any(1)
  count = jnp.minimum(full, state.limit - state.length)
  return emitted, count, whole, stopped


def _one_slot_off(cache, flight, path, start):
  return caches.commit(cache, flight, path, start + 1)


def _counts_the_finished(counts, draft, verdict, emitted, room, live, beta):
  live = jnp.ones_like(live)
  return generate.PARTS.tally(counts, draft, verdict, emitted, room, live, beta)


def _target_masked(logits, values, history, above):
  return other_vocabulary.masked(
    logits, values, history, above, distributions=sampling.distributions
  )


def _unprocessed_block(choose):
  """DFlash whose q is of raw logits; choose(draft, logits) gives its tokens."""

  def drafter(tiny: TinyModels) -> Drafter:
    right = rule_cases.DFLASH.drafter(tiny)

    def propose(params, memory, ctx, key):
      draft, memory = right.propose(params, memory, ctx, key)
      logits = memory.block.logits
      probs = jax.nn.softmax(logits).astype(draft.probs.dtype)
      tokens = choose(draft, logits).astype(jnp.int32)
      return draft._replace(tokens=tokens, probs=probs), memory

    return right._replace(propose=propose)

  return drafter


_TOKEN = rule_cases.find('token', rule_cases.CHAIN)
_TREE = rule_cases.find('recursive', rule_cases.TREE)
_OTHER = rule_cases.find('token', rule_cases.OTHER, 'other transformer')
_PARTS = generate.PARTS

WRONG_LOOPS = (
  WrongLoop(
    'draft: reports q before temperature and cuts',
    _TOKEN,
    lambda tiny: _chain(3, report=_raw),
  ),
  WrongLoop(
    'draft: takes the argmax, reports q',
    _TOKEN,
    lambda tiny: _chain(3, choose=_best),
  ),
  WrongLoop(
    'a block is drawn from q, and raw logits are reported',
    rule_cases.find('token', rule_cases.DFLASH, 'transformer'),
    _unprocessed_block(lambda draft, logits: draft.tokens),
  ),
  WrongLoop(
    'a block is the argmax, and raw logits are reported',
    rule_cases.find('token', rule_cases.DFLASH, 'transformer'),
    _unprocessed_block(lambda draft, logits: logits.argmax(-1)),
  ),
  WrongLoop(
    'draft: keys tied to positions, under block verification',
    rule_cases.find('block', rule_cases.LONG, 'poor draft'),
    lambda tiny: _chain(4, coins=_tied_to_positions),
  ),
  WrongLoop(
    'draft: two tokens of one string, and q is that of one',
    _TOKEN,
    lambda tiny: _chain(3, report=_of_one_token),
  ),
  WrongLoop(
    "draft: its end of text is not the target's",
    _OTHER,
    lambda tiny: other_vocabulary.drafter(tiny, other_vocabulary.without_end),
  ),
  WrongLoop(
    'the target is cut to the tokens that its draft has',
    _OTHER,
    parts=_PARTS._replace(distributions=_target_masked),
  ),
  WrongLoop(
    'one key for drafting and judging',
    _TOKEN,
    parts=_PARTS._replace(split=_one_key),
  ),
  WrongLoop(
    'verification: temperature after top-p',
    _TOKEN,
    parts=_PARTS._replace(distributions=_temperature_last),
  ),
  WrongLoop(
    'verification: one temperature for the batch',
    _TOKEN,
    parts=_PARTS._replace(distributions=_hottest_for_all),
  ),
  WrongLoop(
    'verification: penalties blind to drafted tokens',
    _TOKEN,
    parts=_PARTS._replace(distributions=_blind_to_drafted),
    quick=True,
  ),
  WrongLoop(
    'constraint: its mask after the cuts',
    _TOKEN,
    parts=_PARTS._replace(distributions=constrained.masked_last),
  ),
  WrongLoop(
    'constraint: a node of a tree has the state of its sibling',
    _TREE,
    parts=_PARTS._replace(
      distributions=constrained.state_of(np.array([0, 2, 1, 4, 3, 5]))
    ),
  ),
  WrongLoop(
    'constraint: only the first drafted token is masked',
    _TOKEN,
    parts=_PARTS._replace(distributions=constrained.state_of(np.zeros(4, int))),
  ),
  WrongLoop(
    'constraint: the state is stale after a rejection',
    _TOKEN,
    parts=_PARTS._replace(remember=constrained.forgets_the_last),
    quick=True,
  ),
  WrongLoop(
    'constraint: a text ends in a state that does not accept it',
    _TOKEN,
    parts=_PARTS._replace(distributions=constrained.ends_anywhere),
  ),
  WrongLoop(
    'the coin that rejects draws the residual, too',
    _TOKEN,
    parts=_PARTS._replace(judge=_coin_used_twice),
  ),
  WrongLoop(
    'an end of text inside a block is ignored',
    _TOKEN,
    parts=_PARTS._replace(emit=_ends_only_last),
  ),
  WrongLoop(
    'the cache is written one slot off',
    rule_cases.find('token', rule_cases.CHAIN, 'transformer'),
    parts=_PARTS._replace(write=_one_slot_off),
  ),
  WrongLoop(
    'statistics count finished rows',
    _TOKEN,
    parts=_PARTS._replace(tally=_counts_the_finished),
  ),
)
