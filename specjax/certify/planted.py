"""Planted bugs, each of which a test of the certificate must find."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees, verify
from specjax.certify import cases, exact, tiny_models
from specjax.certify.tiny_models import TinyModels
from specjax.checkpoints.vocabularies import reading, tables
from specjax.drafters import lm, ngram
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.types import Draft, Drafter, Rule, Verdict
from specjax.verify import chains
from specjax.verify.importance import rule_of as judged_with
from specjax.verify.importance import select
from specjax.verify.judge import at_tokens
from specjax.verify.multi_path import law_of_best, rule_of

# Changes of any rule


def eager(rule: Rule, factor: float) -> Rule:
  """Accepts too readily. Powers of tests are stated for this bug."""

  def accept(draft, scores):
    return jnp.minimum(factor * rule.accept(draft, scores), 1)

  return rule._replace(accept=accept)


def _accepts_all(rule: Rule) -> Rule:
  def accept(draft, scores):
    return jnp.ones_like(rule.accept(draft, scores))

  return rule._replace(accept=accept)


def _rest_of_p(rule: Rule) -> Rule:
  return rule._replace(rest=lambda draft, scores, row: scores.probs[row])


def _one_row_off(rule: Rule) -> Rule:
  def rest(draft, scores, row):
    return rule.rest(draft, scores, jnp.maximum(row - 1, 0))

  return rule._replace(rest=rest)


def _bonus(rule: Rule, of: Callable) -> Rule:
  """Another bonus token; of(draft, rest) is its distribution."""

  def rest(draft, scores, row):
    right = rule.rest(draft, scores, row)
    return jnp.where(row < draft.size, right, of(draft, right))

  return rule._replace(rest=rest)


def _likeliest(draft, rest):
  del draft  # Unused.
  return (jnp.arange(len(rest)) == rest.argmax()).astype(rest.dtype)


# Planted in a rule on trial.
IN_RULES: dict[str, Callable[[Rule], Rule]] = {
  'a token is accepted a tenth too readily': functools.partial(
    eager, factor=1.1
  ),
  'every token is accepted': _accepts_all,
  'after a rejection a token comes from p': _rest_of_p,
  'rest is that of the row above': _one_row_off,
  'the bonus token is the likeliest': lambda rule: _bonus(rule, _likeliest),
}


def in_drafts(draft: Draft, rows: int) -> dict[str, Draft]:
  """Drafts of a drafter on trial, with bugs.

  Args:
    draft: drafts of `rows` texts, at four temperatures in turns, under one key
      after the other.
    rows: number of texts.
  """
  q = np.take_along_axis(draft.probs, draft.tokens[..., None], 2)[..., 0]
  kept = np.cumprod(q > 0.4, 1).sum(1)
  first = np.tile(np.arange(rows), len(draft.tokens) // rows)
  return {
    'a drawn token is dropped for being unlikely': draft._replace(
      size=np.minimum(draft.size, kept).astype(draft.size.dtype)
    ),
    'the likeliest token is drafted, q is reported': draft._replace(
      tokens=draft.probs.argmax(2).astype(draft.tokens.dtype)
    ),
    'the probabilities are those of another text': draft._replace(
      probs=np.roll(draft.probs, 4, 0)
    ),
    'every draft has the same coins': jax.tree.map(lambda x: x[first], draft),
  }


# Rules, and drafts that are not what they promise: seen by enumeration


@dataclasses.dataclass(frozen=True)
class WrongRule:
  name: str
  rule: Rule
  source: Callable[[TinyModels], exact.DraftSource] = cases.CHAIN.source


def _judged_by(ratio: Callable) -> Callable:
  """accept = min(1, ratio(p(x), q(x))), with p at the row above, untouched."""

  def accept(draft, scores):
    p = at_tokens(scores.probs[draft.parents], draft.tokens)
    q = at_tokens(draft.probs, draft.tokens)
    return jnp.minimum(ratio(p, q), 1)

  return accept


_quotient = _judged_by(chains.quotient)


def _cut_before_unlikely(chances, entropy):
  """Tokens before the first unlikely one, which was drawn, too."""
  del entropy  # Unused.
  unlikely = np.pad(chances < 0.4, ((0, 0), (0, 1)), constant_values=True)
  return unlikely.argmax(1)


def _unconditional(source: exact.DraftSource) -> exact.DraftSource:
  """Siblings are drawn without replacement and reported as if with it."""

  def wrong(texts, q, contexts):
    made = source(texts, q, contexts)
    every = np.arange(len(made.rows))[:, None]
    above = made.rows[every, np.asarray(made.draft.parents)]
    return made._replace(draft=made.draft._replace(probs=q.probs[above]))

  return wrong


WRONG_RULES = (
  WrongRule('residual is p: q is not subtracted', _rest_of_p(verify.token)),
  WrongRule(
    'a token is accepted with q / p',
    verify.token._replace(
      accept=_judged_by(lambda p, q: chains.quotient(q, p))
    ),
  ),
  WrongRule('the bonus token is the argmax', _bonus(verify.token, _likeliest)),
  WrongRule(
    'the bonus token comes from the draft',
    _bonus(verify.token, lambda draft, rest: draft.probs[-1]),
  ),
  WrongRule(
    'a drawn token is dropped for being unlikely',
    verify.token,
    lambda tiny: exact.tree((0, 1, 2), size=_cut_before_unlikely),
  ),
  WrongRule(
    'block: the residual of token verification',
    verify.block._replace(rest=chains.token_rest),
  ),
  WrongRule(
    'block: the first failed coin ends it',
    verify.block._replace(
      accept=lambda draft, scores: chains.block_weights(draft, scores)[1:]
    ),
  ),
  WrongRule(
    'tree: later siblings are judged by p, not by what is left',
    verify.recursive._replace(accept=_quotient),
    cases.TREE.source,
  ),
  WrongRule(
    'tree: drawn without replacement, reported as with it',
    verify.recursive,
    lambda tiny: _unconditional(exact.tree((0, 0, 1, 1, 2))),
  ),
  WrongRule(
    'k-SEQ: every candidate is tested as if alone',
    verify.k_seq._replace(accept=_quotient),
    cases.CHAINS.source,
  ),
  WrongRule(
    'hub: the residual of recursive rejection',
    verify.hub._replace(rest=verify.recursive.rest),
    cases.HUB.source,
  ),
  WrongRule(
    'hub: pairs that are drawn without replacement',
    verify.hub,
    cases.TREE.source,
  ),
  WrongRule(
    'importance: the selected candidate is judged by q',
    judged_with(lambda p, q: select(p, q)._replace(law=q)),
    cases.CHAINS.source,
  ),
  WrongRule(
    'importance: the earlier candidate always comes first',
    judged_with(
      lambda p, q: select(p, q)._replace(
        gives=jnp.zeros_like(q), takes=jnp.zeros_like(q)
      )
    ),
    cases.CHAINS.source,
  ),
  WrongRule(
    'multi-path: the best of two paths is judged as if alone',
    rule_of(lambda q, *_: q),
    cases.CHAINS.source,
  ),
  WrongRule(
    'multi-path: every chain passes through every row',
    rule_of(
      lambda q, lower, through, below, paths: law_of_best(
        q, (lower - below) / through, 1.0, jnp.zeros_like(below), paths
      )
    ),
    cases.CHAINS.source,
  ),
  WrongRule(
    'naive: later siblings are judged as if alone',
    verify.naive._replace(accept=_judged_by(lambda p, q: p)),
    cases.TREE.source,
  ),
  WrongRule(
    'cascade: the inner rule accepts everything',
    verify.token,
    lambda tiny: cases.of_cascade(
      _accepts_all(verify.token), cases.of_chosen(tiny, ngram.make(2)), 2
    ),
  ),
)

# Memories: seen where the text is read again


@dataclasses.dataclass(frozen=True)
class WrongMemory:
  """A drafter that remembers wrongly, and the same one without the bug."""

  name: str
  right: Callable[[TinyModels], Drafter]
  wrong: Callable[[TinyModels], Drafter]


def _keeps_features(drafter: Drafter) -> Drafter:
  """Heads go on with the feature of before a step that rejects a token."""

  def commit(*args):
    _, old, _, verdict, _ = args
    new = drafter.commit(*args)
    whole = verdict.num_accepted[:, None] == drafter.depth
    feature = jnp.where(whole, new.state.feature, old.state.feature)
    return new._replace(state=new.state._replace(feature=feature))

  return drafter._replace(commit=commit)


def _cache_one_off(drafter: Drafter) -> Drafter:
  def commit(*args):
    memory = drafter.commit(*args)
    moved = jax.tree.map(lambda x: jnp.roll(x, 1, axis=2), memory.state)
    return memory._replace(state=moved)

  return drafter._replace(commit=commit)


def _loses_pieces() -> reading.Reading:
  """Feeds the last piece of a token and takes the rest as read."""
  right = tiny_models.other_reading()

  def last(own, ends, ctx):
    found = right.last(own, ends, ctx)
    return found._replace(known=found.base + right.width - 1)

  return right._replace(last=last)


WRONG_MEMORIES = (
  WrongMemory(
    'draft: features of before the last rejection',
    cases.MEDUSA.drafter,
    lambda tiny: _keeps_features(cases.MEDUSA.drafter(tiny)),
  ),
  WrongMemory(
    'draft: its cache is written one slot off',
    lambda tiny: lm.make(tiny.draft, 3),
    lambda tiny: _cache_one_off(lm.make(tiny.draft, 3)),
  ),
  WrongMemory(
    'draft: of a token in its own tokens only the last is read',
    cases.OTHER.drafter,
    cases.other(how=_loses_pieces).drafter,
  ),
)

# Loops: seen in the texts that the compiled program makes


@dataclasses.dataclass(frozen=True)
class WrongLoop:
  """A loop whose texts have not the distribution of a case."""

  name: str
  case: cases.Case
  drafter: Callable[[TinyModels], Drafter] | None = None  # instead of its own
  parts: generate.StepParts = generate.PARTS  # that a step is made of instead
  quick: bool = False  # whether the quick certificate runs it


def _fresh(memory, key, length, depth):
  del length  # Unused.
  return sampling.coins(key, depth), memory


def table_chain(
  depth, choose=sampling.draw, report=lambda logits, q: q, coins=_fresh
):
  """Returns the chain of a table of logits [V, V], which are its parameters.

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


def _tied_to_positions(memory, key, length, depth):
  """Coins of a position are the same whenever it is drafted."""
  first, started = memory
  first = jnp.where(started, first, key)
  at = jax.vmap(lambda i: jax.random.fold_in(first, length + i))
  coins = jax.vmap(sampling.coins)(at(jnp.arange(depth)))
  return coins, (first, jnp.ones_like(started))


def _unprocessed_block(choose: Callable) -> Callable[[TinyModels], Drafter]:
  """DFlash whose q is of raw logits; choose(draft, logits) gives its tokens."""

  def drafter(tiny: TinyModels) -> Drafter:
    right = cases.DFLASH.drafter(tiny)

    def propose(params, memory, ctx, key):
      draft, memory = right.propose(params, memory, ctx, key)
      logits = memory.block.logits
      probs = jax.nn.softmax(logits).astype(draft.probs.dtype)
      tokens = choose(draft, logits).astype(jnp.int32)
      return draft._replace(tokens=tokens, probs=probs), memory

    return right._replace(propose=propose)

  return drafter


def _without_end(tiny: TinyModels) -> reading.Spelled:
  """Weights of a draft whose end of text is nothing to the target."""
  made = tiny_models.spelled(tiny)
  places = made.tables.places.at[3].set(tiny_models.DRAFT_TOKENS.size)
  return made._replace(tables=made.tables._replace(places=places))


def _one_key(keys):
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


def _target_masked(logits, *rest):
  """The target is cut to the tokens that both vocabularies have."""
  target, draft = tiny_models.TARGET_TOKENS, tiny_models.DRAFT_TOKENS
  both = tables.match(target, draft)
  common = np.array([token in both for token in range(target.size)])
  return sampling.distributions(jnp.where(common, logits, -jnp.inf), *rest)


def _allowed(logits, values, history, above):
  """The tokens that the constraint allows."""
  only = sampling.Sampling(jnp.ones_like(values.temperature))
  only = only._replace(constraint=values.constraint)
  zeros = jnp.zeros_like(logits)
  return sampling.distributions(zeros, only, history, above).probs > 0


def _masked_last(logits, values, history, above):
  """Tokens that are not allowed are left out of what the cuts have left."""
  free = values._replace(constraint=None)
  cut = sampling.distributions(logits, free, history, above)
  kept = jnp.where(_allowed(logits, values, history, above), cut.probs, 0)
  total = kept.sum(-1, keepdims=True)
  return cut._replace(probs=kept / jnp.where(total > 0, total, 1))


def _state_of(rows: np.ndarray) -> Callable:
  """Rows of the block have the constraint's states of other rows."""

  def distributions(logits, values, history, above):
    allowed = _allowed(logits, values, history, above[:, rows])
    free = values._replace(constraint=None)
    return sampling.distributions(
      jnp.where(allowed, logits, -jnp.inf), free, history, above
    )

  return distributions


def _ends_anywhere(logits, values, history, above):
  """A text may end in every state of the constraint."""
  constraint = values.constraint
  end = constraint.classes[:, 3]
  leads = jax.vmap(lambda next_, kind: next_.at[:, kind].set(0))
  wrong = constraint._replace(next=leads(constraint.next, end))
  return sampling.distributions(
    logits, values._replace(constraint=wrong), history, above
  )


def _forgets_the_last(history, values, emitted, size):
  """The token behind the accepted ones does not move the state."""
  right = sampling.remember(history, values, emitted, size)
  stale = sampling.remember(history, values, emitted, size - 1)
  return right._replace(state=stale.state)


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


def _counts_the_finished(counts, draft, verdict, emitted, room, live, beta):
  live = jnp.ones_like(live)
  return generate.PARTS.tally(counts, draft, verdict, emitted, room, live, beta)


_TOKEN = cases.find('token', cases.CHAIN)
_OTHER = cases.find('token', cases.OTHER, 'other transformer')
_DFLASH = cases.find('token', cases.DFLASH, 'transformer')


def _in_step(name: str, case=_TOKEN, quick: bool = False, **parts) -> WrongLoop:
  return WrongLoop(name, case, None, generate.PARTS._replace(**parts), quick)


WRONG_LOOPS = (
  WrongLoop(
    'draft: reports q before temperature and cuts',
    _TOKEN,
    lambda tiny: table_chain(3, report=_raw),
  ),
  WrongLoop(
    'draft: takes the argmax, reports q',
    _TOKEN,
    lambda tiny: table_chain(
      3, choose=lambda coins, q: jnp.argmax(q).astype(jnp.int32)
    ),
  ),
  WrongLoop(
    'a block is drawn from q, and raw logits are reported',
    _DFLASH,
    _unprocessed_block(lambda draft, logits: draft.tokens),
  ),
  WrongLoop(
    'a block is the argmax, and raw logits are reported',
    _DFLASH,
    _unprocessed_block(lambda draft, logits: logits.argmax(-1)),
  ),
  WrongLoop(
    'draft: keys tied to positions, under block verification',
    cases.find('block', cases.LONG, 'poor draft'),
    lambda tiny: table_chain(4, coins=_tied_to_positions),
  ),
  WrongLoop(
    'draft: two tokens of one string, and q is that of one',
    _TOKEN,
    lambda tiny: table_chain(3, report=_of_one_token),
  ),
  WrongLoop(
    "draft: its end of text is not the target's",
    _OTHER,
    cases.other(_without_end).drafter,
  ),
  _in_step(
    'the target is cut to the tokens that its draft has',
    _OTHER,
    distributions=_target_masked,
  ),
  _in_step('one key for drafting and judging', split=_one_key),
  _in_step(
    'verification: temperature after top-p', distributions=_temperature_last
  ),
  _in_step(
    'verification: one temperature for the batch',
    distributions=_hottest_for_all,
  ),
  _in_step(
    'verification: penalties blind to drafted tokens',
    quick=True,
    distributions=lambda *given: sampling.distributions(
      *given[:-1], jnp.full_like(given[-1], -1)
    ),
  ),
  _in_step('constraint: its mask after the cuts', distributions=_masked_last),
  _in_step(
    'constraint: a node of a tree has the state of its sibling',
    cases.find('recursive', cases.TREE),
    distributions=_state_of(np.array([0, 2, 1, 4, 3, 5])),
  ),
  _in_step(
    'constraint: only the first drafted token is masked',
    distributions=_state_of(np.zeros(4, int)),
  ),
  _in_step(
    'constraint: the state is stale after a rejection',
    quick=True,
    remember=_forgets_the_last,
  ),
  _in_step(
    'constraint: a text ends in a state that does not accept it',
    distributions=_ends_anywhere,
  ),
  _in_step(
    'the coin that rejects draws the residual, too', judge=_coin_used_twice
  ),
  _in_step(
    'naive: places of a step share their coins',
    cases.find('naive', cases.TREE),
    judge=lambda key, *rest, **options: verify.judge(
      jnp.broadcast_to(key[:1], key.shape), *rest, **options
    ),
  ),
  _in_step('an end of text inside a block is ignored', emit=_ends_only_last),
  _in_step(
    'the cache is written one slot off',
    cases.find('token', cases.CHAIN, 'transformer'),
    write=lambda cache, flight, path, start, count: caches.commit(
      cache, flight, path, start + 1, count
    ),
  ),
  _in_step('statistics count finished rows', tally=_counts_the_finished),
)
