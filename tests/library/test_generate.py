"""The loop: whose tokens come out, what is counted, what is left alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.loop import buffers, generate, scoring
from specjax.models import table
from specjax.types import Params, Spec
from tests.support import models

# The loop sees the shape of a draft, its coins, and what is read of the target.
# One drafter stands for all that are alike in these.
FAST = 'lm with a stop', 'tree', 'ngram', 'eagle 3, dynamic tree'
SPECULATIVE = models.slow_unless(
  FAST, (*FAST, 'lm', 'chains in eight bits', 'some tokens')
)
IN_LOOPS = ['plain', *SPECULATIVE]
GREEDY = (0.0,) * len(models.PROMPTS)


def leaves(state):
  """Arrays of a state; keys as numbers."""
  state = state._replace(key=jax.random.key_data(state.key))
  return jax.tree.leaves(jax.device_get(state))


def assert_same(a, b):
  for x, y in zip(leaves(a), leaves(b), strict=True):
    np.testing.assert_array_equal(x, y)


@functools.cache
def greedy(name):
  return models.new_tokens(models.go(name, models.begin(name, GREEDY)))


@functools.cache
def sampled(name):
  return models.go(name, models.begin(name))


# Greedy


@pytest.mark.parametrize('name', SPECULATIVE)
def test_greedy_text_is_that_of_plain_decoding(name):
  assert greedy(name) == greedy('plain')


def test_greedy_text_is_that_of_full_passes():
  """What all drafters agree on is right, too: there is no cache in this."""
  texts = [
    (*prompt, *text)
    for prompt, text in zip(models.PROMPTS, greedy('plain'), strict=True)
  ]
  padded = np.zeros((len(texts), 128), np.int32)
  for row, text in zip(padded, texts, strict=True):
    row[: len(text)] = text
  best = models.score(models.TARGET, models.target_weights(), padded).argmax(-1)
  for row, prompt, text in zip(best, models.PROMPTS, texts, strict=True):
    first = len(prompt)
    assert tuple(row[first - 1 : len(text) - 1].tolist()) == text[first:]
  texts = greedy('plain')  # Which are worth comparing.
  assert len(set(texts)) == len(texts)
  assert any(text[-1] == 10 and len(text) < 40 for text in texts)
  assert any(len(text) == 40 for text in texts)


@pytest.mark.parametrize('name', IN_LOOPS)
def test_greedy_rows_do_not_mind_sampled_rows(name):
  texts = models.new_tokens(sampled(name))
  assert texts[:2] == greedy(name)[:2]
  assert texts[2:] != greedy(name)[2:]


# Counts


@pytest.mark.parametrize('name', IN_LOOPS)
def test_counts_agree_with_one_another(name):
  state = sampled(name)
  counts = jax.device_get(state.counts)
  depth = counts.tried.shape[1]
  steps = counts.histogram.sum(1)
  new = [len(text) for text in models.new_tokens(state)]
  assert counts.tokens.tolist() == new
  # Steps that begin too near the limit are not counted: K at most.
  near = counts.target_calls - steps
  assert ((near >= 0) & (near <= depth)).all()
  # Position k was accepted in the steps that accepted more than k.
  longer = counts.histogram[:, ::-1].cumsum(1)[:, ::-1][:, 1:]
  np.testing.assert_array_equal(counts.accepted, longer)
  assert (counts.accepted <= counts.tried).all()
  assert (counts.tried[:, 1:] <= counts.accepted[:, :-1]).all()
  assert (counts.tried.sum(1) <= counts.drafted).all()
  if depth:
    np.testing.assert_array_equal(counts.tried[:, 0], steps - counts.misses)
  nodes = models.spec_of(name).drafter.nodes
  assert (counts.drafted <= nodes * (steps - counts.misses)).all()
  assert (counts.overlap >= 0).all()
  assert (counts.overlap <= (steps - counts.misses) * (1 + 1e-5)).all()
  # Drafts are accepted neither always nor never.
  if depth:
    assert 0 < counts.accepted.sum() < counts.tried.sum()
  if name == 'lm with a stop':
    assert counts.drafted.sum() < depth * steps.sum()


# A loop that can be worked out by hand: tables of logits, at temperature 0.
#
#   target  0 > 1 > 2 > 3 > 4 > 5 > 6 > 0    9 > 8 > 7 > not a number
#   draft   0 > 1 > 2 > 0   3 > 4 > 5 > 0    6, 7, 9 > 0    8 > 7
#
# 4 and 6 end a text, and three tokens are drafted.

TABLE = table.build(10)
HAND = Spec(TABLE, lm.make(TABLE, 3), verify.token, (4, 6))


def arrows(*successors):
  return 10 * np.eye(10, dtype=np.float32)[list(successors)]


def hand_params():
  target = arrows(1, 2, 3, 4, 5, 6, 0, 0, 7, 8)
  target[7] = np.nan
  return jax.device_put(Params(target, arrows(1, 2, 0, 4, 5, 0, 0, 0, 7, 0)))


def hand_start(prompts, new, temperature=0.0):
  values = sampling.make(len(prompts), temperature)
  return models.run(HAND, hand_params(), prompts, values, new_tokens=new)


def hand_go(state):
  return generate.generate(hand_params(), state, jnp.int32(100), spec=HAND)


# prompt, new tokens allowed, text, target calls, histogram, tried, overlap
HAND_ROWS = (
  # 1 2 stay and 3 corrects 0; then 4 5 stay, but 4 has ended the text: that
  # 5 was accepted behind it counts, too.
  ((0,), 20, (1, 2, 3, 4), 2, (0, 0, 2, 0), (2, 2, 2), 2),
  # 0 is corrected to 3; then as above.
  ((2,), 20, (3, 4), 2, (1, 0, 1, 0), (2, 1, 1), 1),
  # A longer prompt: 2 stays and 3 corrects; then as above.
  ((6, 6, 1), 20, (2, 3, 4), 2, (0, 1, 1, 0), (2, 2, 1), 2),
  # The end of the text is the last token of its step: nothing is cut.
  ((5,), 20, (6,), 1, (1, 0, 0, 0), (1, 0, 0), 0),
  # There is no room for four tokens, whether that cuts the step or not.
  ((0,), 2, (1, 2), 1, (0, 0, 0, 0), (0, 0, 0), 0),
  ((0,), 3, (1, 2, 3), 1, (0, 0, 0, 0), (0, 0, 0), 0),
  ((5,), 3, (6,), 1, (0, 0, 0, 0), (0, 0, 0), 0),
  # There just is; then 4 is accepted and there is room for one.
  ((0,), 4, (1, 2, 3, 4), 2, (0, 0, 1, 0), (1, 1, 1), 1),
  # The end of the text is at the limit.
  ((3,), 1, (4,), 1, (0, 0, 0, 0), (0, 0, 0), 0),
  # Nothing is wanted.
  ((0, 1), 0, (), 0, (0, 0, 0, 0), (0, 0, 0), 0),
  # 8 corrects 0; then the logits after the drafted 7 are no numbers.
  ((9,), 20, (8,), 1, (1, 0, 0, 0), (1, 0, 0), 0),
  ((7,), 20, (), 0, (0, 0, 0, 0), (0, 0, 0), 0),
  # The limit ended this one before: what would come next is of no matter.
  ((0, 9), 1, (8,), 1, (0, 0, 0, 0), (0, 0, 0), 0),
)


PROMPTS, NEW, *_ = zip(*HAND_ROWS, strict=True)


@functools.cache
def hand_state():
  return hand_go(hand_start(PROMPTS, NEW))


@pytest.mark.parametrize('row', range(len(HAND_ROWS)))
def test_rows_worked_out_by_hand(row):
  prompt, _, text, calls, histogram, tried, overlap = HAND_ROWS[row]
  state = jax.device_get(hand_state())
  counts = jax.tree.map(lambda x: x[row].tolist(), state.counts)
  assert models.new_tokens(state)[row] == text
  assert state.tokens[row, : len(prompt)].tolist() == list(prompt)
  assert counts.tokens == len(text)
  assert counts.target_calls == calls
  assert tuple(counts.histogram) == histogram
  assert tuple(counts.tried) == tried
  accepted = [sum(histogram[k + 1 :]) for k in range(3)]
  assert counts.accepted == accepted
  assert counts.drafted == 3 * sum(histogram)
  assert counts.overlap == overlap
  assert counts.misses == 0
  assert state.done[row]
  # Rows without finite logits stop and say so.
  assert state.finite[row] == (prompt not in {(9,), (7,)})


@pytest.mark.parametrize('temperature', [0.0, 1e-20])
def test_a_row_without_a_law_stops_whoever_lacks_it(temperature):
  """The target after 8, where no token may come, or the draft after 5."""
  # 7 follows 8 in the draft, and has logits here.
  params = jax.tree.map(np.array, hand_params())
  params.target[8], params.target[7], params.drafter[5] = -np.inf, 0, np.nan
  prompts = [(8,), (5,)] + [(0,)] * (len(HAND_ROWS) - 2)
  state = generate.generate(
    params, hand_start(prompts, 3, temperature), jnp.int32(9), spec=HAND
  )
  assert state.finite.tolist() == [False, False] + [True] * (len(prompts) - 2)
  assert models.new_tokens(state) == [(), ()] + [(1, 2, 3)] * (len(prompts) - 2)


# Steps, and rows that have finished


def test_single_steps_are_the_same_as_one_call():
  name = 'lm with a stop'
  state = models.begin(name)
  assert_same(models.go(name, models.copy(state), steps=0), state)
  for _ in range(100):
    if state.done.all():
      break
    state = models.go(name, state, steps=1)
  assert state.done.all()
  assert_same(state, sampled(name))


# Programs


def test_a_generation_is_one_dispatch():
  """One loop on the device that asks the host nothing."""
  state, steps = hand_start(PROMPTS, NEW), jnp.int32(9)
  params = hand_params()
  run = functools.partial(generate.generate, spec=HAND)
  program = jax.make_jaxpr(run)(params, state, steps)
  assert 'callback' not in str(program)
  (call,) = program.eqns
  names = [eqn.primitive.name for eqn in call.params['jaxpr'].eqns]
  assert names.count('while') == 1
  with jax.transfer_guard('disallow'):
    run(params, state, steps)


@pytest.mark.parametrize(
  ('steps', 'finished', 'calls'),
  [
    (1, 2, (1, 1)), (2, 2, (2, 1)), (9, 1, (1, 1)), (9, 2, (2, 1)),
    (0, 2, (0, 0)),
  ],
)  # fmt: skip
def test_a_chunk_ends_at_its_steps_or_its_finished_rows(steps, finished, calls):
  """The first row needs two steps, the other one."""
  programs = set()
  for number in (jnp.int32, np.int64, int):
    stop = generate.StopWhen(number(steps), number(finished))
    state = hand_start([(0,), (5,)], 20)
    state = generate.generate(hand_params(), state, stop, spec=HAND)
    assert tuple(state.counts.target_calls.tolist()) == calls
    programs.add(generate.count_programs())
  assert len(programs) == 1


def test_a_drafter_is_told_the_text_as_it_is_behind_each_step():
  inner = HAND.drafter

  def seen(ctx):
    return jax.tree.map(jnp.copy, (ctx.tokens, ctx.length, ctx.history))

  def init(params, ctx, hidden):
    return inner.init(params, ctx, hidden), seen(ctx)

  def propose(params, memory, ctx, key):
    draft, own = inner.propose(params, memory[0], ctx, key)
    return draft, (own, memory[1])

  def commit(params, memory, ctx, verdict, hidden):
    return inner.commit(params, memory[0], ctx, verdict, hidden), seen(ctx)

  told = inner._replace(init=init, propose=propose, commit=commit)
  spec, prompts = dataclasses.replace(HAND, drafter=told), [(0,), (2, 3), (5,)]
  values = sampling.make(3, 0.0, frequency_penalty=[0.0, 0.1, 0.2])
  state = models.run(spec, hand_params(), prompts, values, new_tokens=20)
  for _ in range(3):
    now = jax.device_get(seen(generate.context(state)))
    jax.tree.map(np.testing.assert_array_equal, state.drafter[1], now)
    assert now[2].counts.sum() == (state.length - state.start).sum()
    state = generate.generate(hand_params(), state, jnp.int32(1), spec=spec)


@pytest.mark.parametrize(
  'change',
  [
    lambda draft, memory: draft,
    lambda draft, memory: (draft, memory, memory),
    lambda draft, memory: [draft, memory],
    lambda draft, memory: (memory, draft),
  ],
)
def test_what_is_no_draft_is_an_error_of_the_drafter(change):
  def propose(*given):
    return change(*HAND.drafter.propose(*given))

  drafter = HAND.drafter._replace(propose=propose)
  spec = dataclasses.replace(HAND, drafter=drafter)
  run = functools.partial(generate.generate, spec=spec)
  state = hand_start([(0,), (2, 3)], 20)
  with pytest.raises(scoring.DraftError, match='must return'):
    jax.eval_shape(run, hand_params(), state, jnp.int32(9))


def test_buffers_are_planned_by_the_longest_row():
  # Rows that only fill up a batch get none.
  values = sampling.make(2, vocab_size=11, eos=(10,), min_new_tokens=[5, 2])
  spec, key = models.spec_of('lm'), generate.row_keys(0, range(2))
  for new, limit in (([511, 3], [512, 5]), ([5, 0], [6, 2])):
    plan = buffers.plan_buffers(spec, [[1], [2, 3]], new, key, values)
    assert plan.limit.tolist() == limit
  with pytest.raises(ValueError, match='prompt 1 and its new tokens make 513'):
    buffers.plan_buffers(spec, [[1], [2, 3]], [5, 511], key, values)


def test_a_state_is_donated_and_its_sources_are_not():
  values = sampling.make(len(PROMPTS), 0.0)
  key = generate.row_keys(0, range(len(PROMPTS)))
  params = hand_params()
  state = generate.start(
    params, PROMPTS, spec=HAND, new_tokens=NEW, key=key, values=values
  )
  hand_go(state)
  assert all(x.is_deleted() for x in jax.tree.leaves(state))
  assert not any(x.is_deleted() for x in jax.tree.leaves((values, key, params)))
