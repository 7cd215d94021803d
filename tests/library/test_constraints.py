"""The stage that keeps texts within a language, on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, trees, verify
from specjax.drafters import cascade, counts, forced, lm, ngram, plain
from specjax.loop import buffers, generate
from specjax.requests import continuous
from specjax.sampling import constrained
from specjax.types import Context, Params, Spec
from tests.support import automata, models

VOCAB, ENDS = models.VOCAB, (10,)
FIRST = automata.drawn(VOCAB, 9, 1, ENDS)
SECOND = automata.drawn(VOCAB, 21, 2, ENDS)
ROWS = (FIRST, None, SECOND, FIRST)
PROMPTS = ((1,), (2, 3), (4, 5, 6, 4, 5, 6, 4, 5), (7, 7))
NEW = 24
SMALL = models.DRAFT
CHAIN = lm.make(SMALL, 3)
SPECS = {
  'plain': Spec(SMALL, plain.make(), verify.token, ENDS),
  'chain': Spec(SMALL, CHAIN, verify.token, ENDS),
  'tree': Spec(SMALL, lm.make_tree(SMALL, (0, 0, 1)), verify.recursive, ENDS),
  'lookup': Spec(SMALL, ngram.make(3), verify.token, ENDS),
  'forced': Spec(SMALL, forced.make(4), verify.token, ENDS),
  'cascade': Spec(
    SMALL, cascade.make(SMALL, forced.make(3), 2), verify.token, ENDS
  ),
}

distributions = jax.jit(sampling.distributions)


def automaton_of(states, moves, ends=ENDS):
  """One that goes on by {(state, token): next state} alone."""
  after = np.full((states, VOCAB), -1, np.int16)
  for here, there in moves.items():
    after[here] = there
  kinds = np.arange(VOCAB, dtype=np.int16)
  return sampling.Automaton('one', kinds, after, ends, '')


def params_of(name):
  own = models.near(SMALL, 5)
  if name == 'cascade':
    own = Params(own, None)
  return models.double(Params(models.weights(SMALL, 5), own))


def values_of(rows, temperature=1.0, **stages):
  given = {'vocab_size': VOCAB, 'eos': ENDS, 'constraint': list(rows)}
  return sampling.make(len(rows), temperature, **given, **stages)


def options(name, rows, indices, temperature=1.0):
  return {
    'prompts': [PROMPTS[i] for i in indices],
    'spec': SPECS[name],
    'new_tokens': NEW,
    'key': generate.row_keys(3, indices),
    'values': values_of(rows, temperature),
    'slots': 128,
  }


def decode(name, rows=ROWS, indices=(0, 1, 2, 3), temperature=1.0):
  """New tokens of each row, and the final state."""
  params = params_of(name)
  state = generate.start(params, **options(name, rows, indices, temperature))
  state = generate.generate(params, state, NEW, spec=SPECS[name])
  return [*map(list, models.new_tokens(state))], state


def masks(automaton, state, above):
  """Allowed tokens [V] after drafted ones, on the host."""
  after = automaton.follow([t for t in above if t >= 0], state)
  return np.ones(VOCAB, bool) if after < 0 else automaton.allowed(after)


def test_every_row_of_a_block_is_masked_by_the_state_of_its_own_path(float64):
  random = np.random.default_rng(0)
  parents, count = (0, 0, 1, 1, 3, 5, 2), 40
  above = functools.partial(trees.above, depth=4)
  above = jax.jit(jax.vmap(above, (None, 0)))(
    np.array(parents), random.integers(0, VOCAB, (count, 7))
  )
  rows = [ROWS[i % len(ROWS)] for i in range(count)]
  states = random.integers(0, 9, count)
  logits = random.normal(size=(count, 8, VOCAB))
  history = sampling.History(state=states)
  probs = distributions(logits, values_of(rows, 0.5), history, above).probs
  probs, above, dead = np.asarray(probs), np.asarray(above), 0
  for i, one in enumerate(rows):
    for row in range(8):
      allowed = np.ones(VOCAB, bool)
      if one is not None:
        allowed = masks(one, int(states[i]), above[i, row])
        dead += allowed.all()
      weights = np.where(allowed, np.exp(2 * logits[i, row]), 0)
      np.testing.assert_allclose(
        probs[i, row], weights / weights.sum(), atol=1e-12
      )
  assert dead > 10  # Behind tokens that are not allowed nothing is asked.


def test_the_mask_comes_before_the_cuts(float64):
  logits = np.random.default_rng(2).normal(size=(1, 1, VOCAB))
  state = sampling.History(state=np.zeros(1, int))
  best = np.where(FIRST.allowed(0), logits[0, 0], -np.inf).argmax()
  for cut in ({'top_k': 1}, {'top_p': 0.3}, {'min_p': 0.9}):
    values = values_of([FIRST], 1.0, **cut)
    found = distributions(logits, values, state, np.full((1, 1, 0), -1))
    probs = np.asarray(found.probs)[0, 0]
    assert probs[best] > 0
    assert not probs[~FIRST.allowed(0)].any()


def test_a_draft_without_an_allowed_token_draws_any_of_them(float64):
  allowed = FIRST.allowed(0)
  none = np.where(allowed, -np.inf, 1.0)
  row = jax.tree.map(lambda x: np.asarray(x)[0], values_of([FIRST]))
  history, above = sampling.History(state=np.zeros((), int)), np.zeros(0, int)
  q, _ = jax.jit(sampling.next_distribution)(none, row, history, above)
  np.testing.assert_allclose(q, allowed / allowed.sum())
  # Of a target it is no distribution: a row that ends with an error.
  spread = jax.tree.map(lambda x: x[None], (none[None], row, history, above))
  block = distributions(*spread[:3], spread[3][None])
  assert not np.isfinite(block.logits.max())


@pytest.mark.parametrize(
  'name',
  models.slow_unless(['chain'], ['chain', 'tree', 'forced', 'cascade']),
)
def test_texts_are_of_their_language_and_free_rows_are_free(name, float64):
  """And greedy ones are those of plain decoding."""
  greedy, _ = decode(name, temperature=0.0)
  assert greedy == decode('plain', temperature=0.0)[0]
  texts, state = decode(name)
  final = state.history.state.tolist()
  for i, one in enumerate(ROWS):
    if one is not None:
      assert one.follow(texts[i]) == final[i] >= 0
      assert len(texts[i]) == NEW or texts[i][-1] in ENDS
      assert one.follow(greedy[i]) >= 0
  if name == 'chain':
    free, _ = decode(name, (None, None), (0, 1))
    assert texts[1] == free[1]
    assert FIRST.follow(free[0]) < 0


@pytest.mark.slow
def test_a_row_is_the_row_alone_also_where_rows_are_refilled(float64):
  together, _ = decode('tree')
  alone = [
    decode('tree', (ROWS[i], SECOND), (i, 2))[0][0] for i in range(len(ROWS))
  ]
  assert together == alone
  given = options('tree', ROWS, range(len(ROWS))) | {'rows': 2, 'group': 2}
  refilled = continuous.decode(params_of('tree'), **given, chunk=3)
  assert {one.prompt: one.tokens for one in refilled} == dict(enumerate(alone))


def test_another_language_of_the_same_size_compiles_nothing(float64):
  decode('chain')
  begun = generate.count_programs()
  other = automata.drawn(VOCAB, 15, 3, ENDS)
  decode('chain', (SECOND, None, other, other))
  assert generate.count_programs() == begun


@pytest.mark.parametrize(
  'name', models.slow_unless(['lookup'], ['lookup', 'tree'])
)
def test_tokens_that_other_stages_close_do_not_end_a_row(name, float64):
  """Behind a drafted one that may not come all may be closed."""
  # After 1 or 2 comes one 3, again and again, and the end after any 1 or 2.
  moves = {(0, 1): 1, (0, 2): 1, (1, 3): 0, (1, ENDS[0]): 2, (2, ENDS[0]): 2}
  language = automaton_of(3, moves)
  params = params_of(name)
  rows = [language] * len(PROMPTS)
  given = options(name, rows, (0, 1, 2, 3))
  stages = {'min_new_tokens': 8, 'forbidden': (2,)}
  given['values'] = values_of(rows, 1.0, **stages)
  state = generate.start(params, **given)
  state = generate.generate(params, state, NEW, spec=SPECS[name])
  assert state.finite.all()
  assert (state.length - state.start > 8).all()


def test_numbers_of_classes_beyond_half_of_their_type_are_no_matter():
  vocab, ends = 20_000, (0,)
  kinds = np.minimum(np.arange(vocab), 17_000).astype(np.int16)
  moves = np.full((2, 17_001), -1, np.int16)
  moves[0, 16_999], moves[:, 0] = 0, 1
  one = sampling.Automaton('many', kinds, moves, ends, '')
  values = sampling.make(1, vocab_size=vocab, eos=ends, constraint=one)
  history = sampling.History(state=np.zeros(1, np.int32))
  logits, above = np.zeros((1, 1, vocab), np.float32), np.full((1, 1, 0), -1)
  probs = distributions(logits, values, history, above).probs
  assert np.flatnonzero(probs).tolist() == [0, 16_999]


def only(automaton, state):
  allowed = np.flatnonzero(automaton.allowed(state))
  return int(allowed[0]) if len(allowed) == 1 else -1


def test_forced_tokens_are_drafted_until_there_is_a_choice():
  depth, states = 5, range(len(SECOND.next))
  batch = len(states)
  tokens, length = np.zeros((batch, 8), np.int32), np.ones(batch, np.int32)
  history = sampling.History(state=np.arange(batch))
  values = values_of([SECOND] * batch)
  ctx = Context(tokens, length, (), values, history)
  propose = jax.jit(forced.make(depth).propose)
  draft = jax.device_get(propose(None, (), ctx, None)[0])
  lengths = []
  for state in states:
    wanted, here = [], state
    while len(wanted) < depth and here < len(SECOND.next) - 1:
      token = only(SECOND, here)
      if token < 0:
        break
      wanted.append(token)
      here = SECOND.follow([token], here)
    assert draft.tokens[state, : draft.size[state]].tolist() == wanted
    lengths.append(len(wanted))
  assert {0, 1, 2} <= set(lengths)
  # Without a constraint nothing is forced.
  free = ctx._replace(sampling=sampling.make(batch), history=sampling.History())
  assert not propose(None, (), free, None)[0].size.any()


def test_forced_tokens_are_always_accepted(float64):
  _, state = decode('forced')
  counts = jax.device_get(state.counts)
  assert counts.drafted[1] == 0 < counts.drafted[2]
  assert counts.target_calls[1] == counts.tokens[1] > 0
  whole = (counts.histogram * np.arange(5)).sum(1)
  np.testing.assert_array_equal(whole, counts.drafted)


def test_counts_draft_other_tokens_where_all_that_follow_are_forbidden():
  """Every token was followed by token 0, which the language has not."""
  others = automaton_of(1, {(0, token): 0 for token in range(1, VOCAB)})
  tables = counts.Tables(
    jnp.full(VOCAB, 1 / VOCAB),
    jnp.zeros((VOCAB, 1), jnp.int32),
    jnp.ones((VOCAB, 1)),
  )
  spec = Spec(SMALL, counts.make(2), verify.token, ENDS)
  params = Params(models.weights(SMALL, 5), tables)
  state = models.decoded(spec, params, [[1]], values_of([others]))
  counted = jax.device_get(state.counts)
  assert counted.drafted.sum() > counted.accepted.sum() > 0


def chain_of(tokens, loops=()):
  """An automaton that allows one text, and tokens that stay where they are."""
  end = len(tokens) + 1
  moves = {(state, token): state + 1 for state, token in enumerate(tokens)}
  moves |= {(state, token): state for state, token in loops}
  moves |= dict.fromkeys([(end - 1, ENDS[0]), (end, ENDS[0])], end)
  return automaton_of(end + 1, moves)


@pytest.mark.parametrize(
  ('automaton', 'stages', 'reason'),
  [
    (chain_of([1, 2]), {'forbidden': (2,)}, 'cannot be brought to their end'),
    (chain_of([1]), {'min_new_tokens': 2}, 'text of 1 tokens cannot go on'),
    (chain_of([1, 2], [(1, 3)]), {'forbidden': (2, 10)}, 'to their end'),
    (chain_of([1, 2], [(1, 3)]), {'forbidden': (3,)}, ''),
    (chain_of([1], [(1, 3)]), {'min_new_tokens': 30}, ''),
    (chain_of([1], [(0, 3)]), {'min_new_tokens': 3}, 'text of 1 tokens'),
    (chain_of([1]), {'min_new_tokens': 1}, ''),
    (chain_of([]), {'forbidden': (3,)}, ''),  # The empty text alone.
  ],
)
def test_other_stages_leave_every_text_a_way_to_its_end(
  automaton, stages, reason
):
  if not reason:
    values_of([automaton, None], **stages)
    return
  with pytest.raises(ValueError, match=f'way to its end: .*{reason}'):
    values_of([None, automaton], **stages)


@pytest.mark.parametrize(
  ('moves', 'ends', 'closed'),
  [
    # (12)*, or the end 10, which only the first state allows.
    ({(0, 1): 1, (1, 2): 0, (0, 10): 2}, (10,), 2),
    # A text may end by any of its ends, of which 9 ends none of these.
    ({(0, 1): 1, (1, 10): 2, (2, 10): 2}, (9, 10), 10),
  ],
)
def test_texts_without_a_way_to_an_end_are_stuck(moves, ends, closed):
  one = automaton_of(3, moves, ends)
  assert constrained.stuck(one, (), 0) == ''
  assert 'to their end' in constrained.stuck(one, (closed,), 0)


def can_end(automaton, count):
  """Whether some text has so many tokens before its end."""
  here = {0}
  for _ in range(count):
    moves = automaton.next[[*here]][:, automaton.classes[: ENDS[0]]]
    here = {*moves.ravel().tolist()} - {-1}
  kind = automaton.classes[ENDS[0]]
  return any(automaton.next[state, kind] >= 0 for state in here)


@pytest.mark.parametrize(
  ('automaton', 'least', 'count'),
  [
    (chain_of([1, 2]), 0, 3),
    (chain_of([1, 2]), 2, 3),
    (chain_of([1], [(1, 3)]), 30, 31),
    (chain_of([1, 2], [(1, 3)]), 2, 3),
    (chain_of([1, 2], [(1, 3)]), 2**31 - 1, 2**31),
    # Back and forth: it ends after an even number of tokens, here four.
    (automaton_of(3, {(0, 1): 1, (1, 2): 0, (0, 10): 2, (2, 10): 2}), 3, 5),
    (FIRST, 7, 1 + min(n for n in range(7, 99) if can_end(FIRST, n))),
  ],
)
def test_the_shortest_text_has_as_many_tokens_as_are_asked_for(
  automaton, least, count
):
  assert constrained.shortest(automaton, least) == count


def test_a_text_has_room_for_the_tokens_that_are_asked_for():
  spec, key = SPECS['forced'], generate.row_keys(0, range(2))

  def fit(new_tokens, constraint):
    values = values_of([constraint, None], min_new_tokens=4)
    buffers.plan_buffers(spec, [[1], [2]], new_tokens, key, values)

  loop = chain_of([1], [(1, 3)])
  fit([5, 4], loop)
  with pytest.raises(ValueError, match='is 4 for prompt 0, but the shortest'):
    fit([4, 4], loop)
  with pytest.raises(ValueError, match='1, but min_new_tokens asks for 4'):
    fit([5, 3], loop)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'constraint': [FIRST]}, 'constraint has 1 rows instead of 2'),
    ({'constraint': 'a+'}, 'made by specjax.constraints, such as'),
    ({'constraint': FIRST, 'eos': ()}, 'needs a token that ends the text'),
    ({'constraint': FIRST, 'eos': (3,)}, 'constraint: automaton 1 was made'),
    ({'constraint': FIRST, 'vocab_size': 7}, 'was made for 11 tokens and eos'),
  ],
)
def test_a_wrong_constraint_is_named(change, message):
  with pytest.raises(ValueError, match=message):
    sampling.make(2, **{'vocab_size': VOCAB, 'eos': ENDS} | change)


def test_values_for_other_tokens_are_refused():
  values = values_of([FIRST])
  assert values.constraint.next.shape == (1, 64, 32)
  sizes = [constrained._next_size(n, 4) for n in (1, 4, 5, 7, 8, 9)]
  assert sizes == [4, 4, 8, 8, 8, 16]
  for size, ends, message in (
    (7, ENDS, 'constraint was made for 11 tokens, but the target has 7'),
    (VOCAB, (3,), r'values were made for eos \[10\], but'),
  ):
    with pytest.raises(ValueError, match=message):
      sampling.check(values, size, ends)


def test_distances_are_those_of_the_shortest_texts():
  # The last one may end with one of its two ends alone.
  moves = np.array([[1, -1, -1], [0, -1, 2], [-1, 2, 2]], np.int16)
  two = sampling.Automaton(
    'two', np.arange(3, dtype=np.int16), moves, (1, 2), ''
  )
  for automaton in (FIRST, SECOND, chain_of([1, 2, 3]), two):
    ends = list(automaton.eos)
    for state, distance in enumerate(automaton.distance.tolist()):
      reached, steps = {state}, 0
      while not any(automaton.allowed(s)[ends].any() for s in reached):
        reached = {
          automaton.follow([t], s)
          for s in reached
          for t in np.flatnonzero(automaton.allowed(s))
        }
        steps += 1
      assert distance == steps + 1


def test_the_loop_asks_nothing_of_the_host(float64):
  params = params_of('chain')
  state = generate.start(params, **options('chain', ROWS, (0, 1, 2, 3)))
  loop = generate.loop.lower(params, state, jnp.int32(1), spec=SPECS['chain'])
  assert 'callback' not in loop.as_text()
