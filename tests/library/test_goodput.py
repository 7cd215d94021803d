"""Draft lengths by load: the choice, the loop, and what it keeps."""

import collections
import dataclasses
import functools
import itertools
import types

import jax
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm
from specjax.drafters import plain as alone
from specjax.loop import generate, scoring
from specjax.loop.token_records import Recording
from specjax.models import variants
from specjax.requests import (
  goodput,
  mixed_lengths,
  pool,
  request_sampling,
)
from specjax.requests.goodput import Goodput, Table
from specjax.stats import fit_tests
from specjax.types import Counts, LoadedDrafter, Params, Spec
from tests.support import models

TARGET, DRAFT, SLOTS = models.TARGET, models.DRAFT, 256
LENGTHS = 0, 1, 2, 4
LOADED = LoadedDrafter(TARGET, functools.partial(lm.make, DRAFT))
SPEC = Spec(TARGET, LOADED.make(4), verify.token, (10,))


def table(seconds, reach=(64, 256), reading=0.0, begin=0.0):
  """Costs of lengths, the same for short and for long texts."""
  return Table(
    reach, {n: (s,) * len(reach) for n, s in seconds.items()},
    (reading,) * len(reach), (begin,) * len(reach),
  )  # fmt: skip


FREE = table({0: 1.0, 1: 1.0, 2: 1.0, 4: 1.0})


def params():
  return Params(models.weights(TARGET, 5), models.weights(DRAFT, 5))


# The choice.


def choose(policy, longest):
  """The length of the next chunk, as a loop asks for it."""
  policy.choices.append(policy._decide(longest, 4))
  return policy.choices[-1]


def simulate(policy, alpha, chunks, rng, longest=50):
  """Chunks of a loop whose drafts are accepted with a chance of alpha.

  A chunk has four steps of four rows.
  """
  deepest = policy.lengths[-1]
  for _ in range(chunks):
    length = choose(policy, longest)
    tried, accepted = np.zeros(deepest, int), np.zeros(deepest, int)
    for _ in range(4 * 4):
      taken = rng.random(length) < alpha
      many = int(np.argmin([*taken, False]))
      tried[: min(many + 1, length)] += 1
      accepted[:many] += 1
    policy.learn(tried, accepted)


SMALL = {0: 1.0, 1: 1.15, 2: 1.3, 4: 1.6}  # of a small batch
LARGE = {0: 1.0, 1: 1.7, 2: 2.3, 4: 3.5}  # where scoring costs


def test_rates_and_worth_by_hand():
  """Four drafts of which 0.7 were accepted are there before the first one."""
  costs = table({0: 1.0, 1: 1.5, 2: 2.0}, reading=64.0, begin=0.5)
  policy = Goodput(LOADED, (0, 1, 2), table=costs)
  policy.learn([6, 2], [4, 1])
  # (2.8 + 4) / (4 + 6); of the second (2.8 + 1) / (4 + 2) counts half.
  first, second = 0.68, 0.5 * 3.8 / 6 + 0.5 * 0.68
  np.testing.assert_allclose(policy.rates(), [first, second])
  assert policy.tau(2) == pytest.approx(1 + first + first * second)
  assert policy.tau(1) == pytest.approx(1 + first)
  assert policy.worth(2, 9, 4) == pytest.approx(policy.tau(2) / (2 + 0.5 / 4))
  for steps in (0, 1):
    assert policy.worth(2, 9, steps) == pytest.approx(policy.tau(2) / 2.5)
  # Older counts weigh less: 0.95 of them are kept where the place was tried,
  # and 0.995 elsewhere.
  policy.learn([10, 0], [0, 0])
  tried, accepted = 4 + 0.95 * 6 + 10, 2.8 + 0.95 * 4
  assert policy.rates()[0] == pytest.approx(accepted / tried)
  seen = 0.995 * 2 / 4
  own = (2.8 + 0.995 * 1) / (4 + 0.995 * 2)
  expected = seen * own + (1 - seen) * accepted / tried
  assert policy.rates()[1] == pytest.approx(expected)
  # Reading again is spread over 32 chunks.
  policy._behind = True
  again = 1.5 + 0.5 / 4 + 64 / (32 * 4)
  assert policy.worth(1, 9, 4) == pytest.approx(policy.tau(1) / again)
  assert policy.worth(0, 9, 4) == pytest.approx(1 / (1 + 0.5 / 4))
  # What was tried once fades as fast, and what was seen enough stands alone.
  policy.learn([1, 40], [1, 20])
  tried, accepted = (
    4 + 0.95 * (tried - 4) + 1,
    2.8 + 0.95 * (accepted - 2.8) + 1,
  )
  rest = 0.995 * 0.95
  own = (2.8 + rest + 20) / (4 + 2 * rest + 40)
  np.testing.assert_allclose(policy.rates(), [accepted / tried, own])


def test_typical_seconds_are_compared_within_their_turns():
  """Two that take 2 and 2 in the median turn; each is slow once by itself."""
  found = goodput.typical({'a': [1, 4, 100], 'b': [4, 1, 100]})
  assert found == pytest.approx({'a': 2, 'b': 2})
  found = goodput.typical({'a': [1, 2, 4], 'b': [4, 8, 16]})
  assert found == pytest.approx({'a': 2, 'b': 8})


def test_features_of_who_reads_the_text_alone_are_zeros():
  state = types.SimpleNamespace(tokens=np.zeros((3, 128), np.int32))
  found = mixed_lengths.features(params(), state, SPEC)
  assert found.shape == (3, 128, 0, TARGET.config.width)
  drafter = SPEC.drafter._replace(taps=(1,))
  spec = dataclasses.replace(SPEC, drafter=drafter)
  found = mixed_lengths.features(params(), state, spec)
  assert found.shape[2] == 1
  assert not found.any()


@pytest.mark.parametrize('seconds', [SMALL, LARGE])
@pytest.mark.parametrize('alpha', [0.1, 0.3, 0.5, 0.7, 0.9])
def test_it_finds_the_best_constant_length(seconds, alpha):
  policy = Goodput(LOADED, LENGTHS, table=table(seconds))
  simulate(policy, alpha, 200, np.random.default_rng(0))
  late = policy.choices[100:]
  worth = {
    n: (1 + sum(alpha**k for k in range(1, n + 1))) / s
    for n, s in seconds.items()
  }
  first, second = sorted(worth.values())[:-3:-1]
  reached = np.mean([worth[n] for n in late]) / first
  assert reached > 0.95
  if second < 0.9 * first:
    assert np.mean([worth[n] == first for n in late]) > 0.95


def test_it_follows_a_change_of_acceptance_and_of_length():
  seconds = {0: (1.0, 1.0), 1: (1.1, 2.5), 4: (1.4, 8.0)}
  costs = Table((64, 256), seconds, (0.0, 0.0), (0.0, 0.0))
  policy = Goodput(LOADED, (0, 1, 4), table=costs)
  rng = np.random.default_rng(2)
  simulate(policy, 0.9, 60, rng)
  assert policy.choices[-1] == 4
  simulate(policy, 0.2, 60, rng)
  assert policy.choices[-1] in (0, 1)
  simulate(policy, 0.9, 200, rng)  # A probe sees it.
  assert policy.choices[-1] == 4
  simulate(policy, 0.9, 20, rng, longest=200)  # Long texts cost more.
  assert policy.choices[-1] == 0


@pytest.mark.parametrize('best', [0, 1, 2])
def test_a_try_of_the_longest_draft_is_one_chunk(best, monkeypatch):
  """After so many chunks without it; the choice stays."""
  assert goodput.PROBE == 64
  monkeypatch.setattr(goodput, 'PROBE', 5)
  costly = table({n: 1.0 if n == best else 9.0 for n in LENGTHS})
  policy = Goodput(LOADED, LENGTHS, table=costly)
  found = [(choose(policy, 50), policy._trial) for _ in range(18)]
  assert found == ([(best, False)] * 5 + [(4, True)]) * 3
  # What is replayed is no try, however long it was away.
  policy = Goodput(LOADED, LENGTHS, table=costly, replay=[best] * 9)
  found = [(choose(policy, 50), policy._trial) for _ in range(11)]
  assert found == [(best, False)] * 9 + [(4, True), (best, False)]
  # Where the longest draft is the best one, it needs no try.
  policy = Goodput(LOADED, LENGTHS, table=FREE)
  found = [(choose(policy, 50), policy._trial) for _ in range(18)]
  assert found == [(4, False)] * 18


def test_a_choice_stays_for_four_chunks_and_unless_it_gains(monkeypatch):
  policy = Goodput(LOADED, (1, 2), table=table({1: 1.0, 2: 1.0}))
  worth = {1: 100.0, 2: 99.0}
  monkeypatch.setattr(policy, 'worth', lambda length, *_: worth[length])
  found = [choose(policy, 50)]
  worth[2] = 103.0
  found += [choose(policy, 50) for _ in range(5)]
  assert found == [1] * 4 + [2] * 2
  worth[1] = 106.0  # 103 and 3 percent are more.
  assert [choose(policy, 50) for _ in range(6)] == [2] * 6
  worth[1] = 106.1
  assert choose(policy, 50) == 1


@pytest.mark.parametrize('besides', [0.5, 100.0])
def test_the_table_tells_a_chunk_from_its_steps(besides, monkeypatch):
  """The device works while nobody waits; the first chunks are compiled."""
  clock, works, asked, filled = [0.0], [0.0], collections.Counter(), []
  fill = goodput._fill

  def fill_slowly(*given):
    works[0] += 1000
    return fill(*given)

  def block(tree):
    clock[0] += works[0]
    works[0] = 0.0

  def run(params, state, end, *, spec):
    depth, steps = spec.drafter.depth, int(end.steps)
    works[0] += besides + steps * (1 + depth)
    works[0] += 0 if asked[depth, steps] else 500
    asked[depth, steps] += 1
    names = 'length', 'limit', 'start', 'done', 'finite'
    filled.append([getattr(state, name) for name in names])
    calls = state.counts.target_calls + np.array([steps, 1])
    return state._replace(counts=state.counts._replace(target_calls=calls)), ()

  def read_again(params, state, *, spec):
    works[0] += 7
    return state

  monkeypatch.setattr(goodput, '_fill', fill_slowly)
  monkeypatch.setattr(jax, 'block_until_ready', block)
  ticks = types.SimpleNamespace(perf_counter=lambda: clock[0])
  monkeypatch.setattr(goodput, 'time', ticks)
  monkeypatch.setattr(mixed_lengths, 'run', run)
  monkeypatch.setattr(mixed_lengths, 'read_again', read_again)
  two = [[1, 2]] * 2
  state = models.run(SPEC, params(), two, sampling.make(2), slots=SLOTS)
  counts = state.counts._replace(target_calls=np.array([3, 5]))
  state = state._replace(done=~state.done, finite=~state.finite, counts=counts)
  policy, lengths = Goodput(LOADED, (0, 2, 4)), (0, 2, 4)
  ways = {n: policy._way(params(), SPEC, n) for n in lengths}
  made = goodput.measure(ways, state)
  # Of 256 slots ten steps of five tokens are left free.
  assert made.reach == (51, 103, 206)
  begin = min(besides, 0.75 * (besides + 8))  # of eight steps, at most
  for name, expected in (('begin', begin), ('reading', 7.0)):
    assert getattr(made, name) == pytest.approx((expected,) * 3)
  for n in lengths:
    step = (besides + 8 * (1 + n) - begin) / 8
    assert made.seconds[n] == pytest.approx((step,) * 3)
  assert asked == {(n, steps): 3 * 11 for n in lengths for steps in (2, 8)}
  for at, row in enumerate(zip(*filled, strict=True)):
    allowed = ({51, 103, 206}, {256}, {1}, {False}, {True})[at]
    assert {*np.ravel(jax.device_get(row)).tolist()} == allowed
  short = state._replace(tokens=state.tokens[:, :54])
  assert goodput.measure(ways, short).reach == (2, 4)


def test_programs_of_a_length_are_made_once_for_a_spec_and_weights():
  policy, weights = Goodput(LOADED), params()
  assert policy.lengths == (0, 1, 2, 4, 8)
  way = policy._way(weights, SPEC, 2)
  assert way[0] is weights
  assert way[1] == dataclasses.replace(SPEC, drafter=LOADED.make(2))
  assert policy._way(weights, SPEC, 2) is way
  other = dataclasses.replace(SPEC, eos=(9,))
  assert policy._way(weights, other, 2)[1].eos == (9,)
  assert policy._way(params(), other, 2)[0] is not weights
  whole = mixed_lengths.without_drafts(LOADED.make(4))
  assert (whole.depth, whole.nodes) == (0, 0)
  assert Goodput(LOADED, LENGTHS).drafters[0] is whole
  own = Spec(DRAFT, lm.make(TARGET, 2), verify.token)
  policy = Goodput(LOADED, LENGTHS, ways={2: (own, 'other weights')})
  made = dataclasses.replace(SPEC, target=DRAFT, drafter=own.drafter)
  assert policy._way(weights, SPEC, 2) == ('other weights', made)
  assert policy._way(weights, SPEC, 4)[0] is weights


@pytest.mark.parametrize(
  ('live', 'steps'), [(0, 16), (1, 16), (2, 8), (3, 6), (16, 1), (17, 1)]
)
def test_a_try_asks_for_sixteen_verdicts(live, steps, monkeypatch):
  policy = Goodput(LOADED, LENGTHS, table=FREE)
  taken = []

  def take(params, state, end, spec, length):
    taken.append(int(end.steps))
    return state, None

  monkeypatch.setattr(policy, '_steps', take)
  policy._trial, policy._planned = True, 4
  state = types.SimpleNamespace(
    length=np.full(17, 9), done=np.arange(17) >= live
  )
  policy.advance(params(), state, 50, spec=SPEC)
  assert taken == [steps]


@pytest.mark.parametrize('lengths', [LENGTHS, (1, 4)])
def test_texts_are_read_again_where_drafts_return(lengths, monkeypatch):
  """And the verdicts of a chunk are learnt of when the next one runs."""
  seen, asked, found = [], [], np.array([4, 0, 0, 0])

  def run(params, state, steps, *, spec):
    seen.append((spec.drafter.depth, int(steps.steps)))
    return state, (found, found)

  def read_again(params, state, *, spec):
    seen.append('read')
    return state

  def decide(longest, steps):
    asked.append((longest, steps))
    return lengths[-2]

  monkeypatch.setattr(mixed_lengths, 'run', run)
  monkeypatch.setattr(mixed_lengths, 'read_again', read_again)
  monkeypatch.setattr(goodput.sharding, 'laid', lambda target, state: state)
  monkeypatch.setattr(goodput, 'measure', lambda ways, state: FREE)
  policy = Goodput(LOADED, lengths)
  monkeypatch.setattr(policy, '_decide', decide)
  state = types.SimpleNamespace(length=np.array([5, 9]))
  for state.done in map(
    np.array, ([False, True], [True, True], [False, False])
  ):
    policy.advance(None, state, 3, spec=SPEC)
  assert asked == [(5, 3)] * 2 + [(9, 3)] * 2
  first = [(n, 0) for n in lengths]
  if 0 in lengths:
    first.insert(1, 'read')
  assert seen == first + [(lengths[-2], 3)] * 3
  share = (2.8 + 4 + 0.95 * 4) / (4 + 4 + 0.95 * 4)
  assert policy.rates()[0] == pytest.approx(share)
  seen.clear()
  for length in (0, 0, 1, 0, 4) if 0 in lengths else (1, 4):
    steps = generate.stop_when(1, 2)
    policy._steps(None, state, steps, SPEC, length)
  depths = [x if x == 'read' else x[0] for x in seen]
  assert depths == ([0, 0, 'read', 1, 0, 'read', 4] if 0 in lengths else [1, 4])


# The loop.


def opened(policy, rows=3, **changes):
  values = request_sampling.of(SPEC).values()
  options = {'params': params(), 'spec': SPEC, 'values': values, 'rows': rows}
  options |= {'slots': SLOTS, 'policy': policy}
  return pool.Pool(**options | changes)


def texts_with(policy, count, temperature=0.0, **changes):
  """Texts of so many requests that follow a policy."""
  held = opened(policy, **changes)
  for number in range(count):
    held.submit(request(number, temperature))
  texts = models.texts_of(held)
  return [texts[n] for n in range(count)]


def request(number, temperature=0.0):
  rng = np.random.default_rng(number)
  return pool.Request(
    rng.integers(0, 10, int(rng.integers(1, 40))).tolist(),
    int(rng.integers(5, 40)),
    generate.row_keys(7, [number]),
    request_sampling.of(SPEC).values(temperature=temperature),
  )


def plain(number):
  spec = Spec(TARGET, alone.make(), verify.token, (10,))
  asked = request(number)
  state = models.decoded(
    spec, params(), [asked.prompt], asked.values, indices=[number], seed=7,
    new_tokens=asked.new_tokens, slots=SLOTS,
  )  # fmt: skip
  return [*models.new_tokens(state)[0]]


SWITCHING = [0, 4, 1, 0, 0, 2, 4, 4, 0, 1] * 40


def in_layouts():
  """Steps of every length, short ones with whole weights."""
  weights = params()
  ways = {0: (dataclasses.replace(SPEC, drafter=alone.make()), weights)}
  for length in (1, 2, 4):
    target, draft = (TARGET, weights.target), (DRAFT, weights.drafter)
    if length > 1:
      target, draft = variants.to_native(*target), variants.to_native(*draft)
    drafter = lm.make(draft[0], length)
    spec = dataclasses.replace(SPEC, target=target[0], drafter=drafter)
    ways[length] = spec, Params(target[1], draft[1])
  return ways


@pytest.mark.slow
@pytest.mark.usefixtures('float64', 'kernel')
def test_each_length_has_its_layout_of_weights():
  """They differ in layout, and texts are those of one layout."""
  ways = in_layouts()
  policy = Goodput(LOADED, LENGTHS, replay=SWITCHING, ways=ways)
  spec, weights = ways[4]
  texts = texts_with(policy, 6, spec=spec, params=weights)
  assert texts == [plain(n) for n in range(6)]
  assert {*policy.choices} == {*LENGTHS}
  assert {*policy.table.seconds} == {*LENGTHS}


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_a_run_is_replayed_bit_for_bit(monkeypatch):
  """With tries, whose chunks are shorter."""
  monkeypatch.setattr(goodput, 'PROBE', 3)
  monkeypatch.setattr(goodput, 'VERDICTS', 3)

  def run(**more):
    policy = Goodput(LOADED, LENGTHS, table=table(LARGE), **more)
    return texts_with(policy, 6, 1.0), policy.choices

  texts, choices = run()
  again, same = run(replay=choices)
  assert texts == again
  assert choices == same


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_a_draft_that_returns_has_read_the_texts():
  """It drafts what it would, had it never been away."""
  lengths = [0, 0, 4, 1, 2]
  policy = Goodput(LOADED, LENGTHS, table=FREE, replay=lengths)
  values = sampling.make(3, 1.0, eos=(10,), vocab_size=models.VOCAB)
  prompts = [request(n).prompt for n in range(3)]
  state = models.run(SPEC, params(), prompts, values, seed=7, slots=SLOTS)
  propose = jax.jit(SPEC.drafter.propose)
  for length in lengths:
    # Away for more tokens than a step reads.
    steps = np.int32(1 if length else 12)
    state = policy.advance(params(), state, steps, spec=SPEC)
    assert not state.done.all()
    if not length:
      continue
    ctx = generate.context(state)
    hidden = mixed_lengths.features(params(), state, SPEC)
    fresh = SPEC.drafter.init(params(), ctx, hidden)
    keys = scoring.split(state.key)[1]
    drafted, _ = propose(params(), state.drafter, ctx, keys)
    expected, _ = propose(params(), fresh, ctx, keys)
    np.testing.assert_array_equal(drafted.tokens, expected.tokens)
    np.testing.assert_allclose(drafted.probs, expected.probs, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_counts_and_what_is_told_are_those_of_all_lengths():
  policy = Goodput(LOADED, LENGTHS, table=FREE, replay=SWITCHING)
  recording = Recording(origins=True, logprobs=1)
  held = opened(policy, recording=recording)
  numbers = [held.submit(request(n, 1.0)) for n in range(2)]
  greedy = held.submit(request(3))
  found = models.finish(held)
  names = 'origins', 'tokens', 'logprobs'
  origins, tokens, logprobs = (models.joined(found[greedy], n) for n in names)
  assert len(origins) == len(tokens) == len(logprobs)
  assert {'accepted', 'bonus'} <= {*origins}
  # Each token is the most probable one of its place.
  assert [p.top[0][0] for p in logprobs] == tokens
  last = {n: found[n][-1].counts for n in numbers}
  for n in numbers:
    counts = last[n]
    assert counts.tokens == len(models.joined(found[n]))
    assert counts.tried.shape == (4,)
    assert counts.histogram.shape == (5,)
    assert (counts.accepted <= counts.tried).all()
    assert counts.histogram.sum() <= counts.target_calls
  tried, accepted = (
    sum(getattr(last[n], name) for n in numbers)
    for name in ('tried', 'accepted')
  )
  assert tried[0] > tried[1] > 0
  assert accepted[0] >= tried[1]


def test_nothing_is_compiled_after_the_warm_up():
  policy = Goodput(LOADED, (0, 4), replay=[0, 4, 4] * 99)
  held = opened(policy, group=1, slots=128)
  held.warm_up()
  assert policy.table.seconds.keys() == {0, 4}
  assert all(s > 0 for v in policy.table.seconds.values() for s in v)
  used = mixed_lengths.run, mixed_lengths.read_again
  programs = [program._cache_size() for program in used]
  for number in range(5):
    held.submit(request(number))
  models.texts_of(held)
  assert {*policy.choices} == {0, 4}
  assert programs == [program._cache_size() for program in used]


# The law of sampled texts.

_TEXTS = 1500


def frequencies(seed, lengths=(1, 0, 2, 4, 1, 2)):
  """Counts [V, V, V] of the first three tokens of many rows.

  Each step has another draft length, and rows of other temperatures stand
  beside them.
  """
  policy = Goodput(LOADED, LENGTHS, table=FREE, replay=list(lengths) * 9)
  rows = 2 * _TEXTS
  values, prompts = sampling.make(rows, [1.0, 0.0] * _TEXTS), [[1, 2]] * rows
  state = models.run(NO_END, params(), prompts, values, seed=seed, new_tokens=3)
  for _ in range(3):
    state = policy.advance(params(), state, np.int32(1), spec=NO_END)
  assert policy.choices == list(lengths[:3])
  texts = np.asarray(state.tokens[::2, 2:5])
  counts = np.zeros((models.VOCAB,) * 3, int)
  np.add.at(counts, tuple(texts.T), 1)
  return counts


NO_END = Spec(TARGET, LOADED.make(4), verify.token)


@functools.cache
def law():
  """The target's own distribution [V, V, V] of three tokens."""
  vocab = models.VOCAB
  texts = [[1, 2, *more] for more in itertools.product(range(vocab), repeat=2)]
  logits = models.score(TARGET, params().target, np.array(texts))
  probs = np.asarray(jax.nn.softmax(logits), float)
  probs = probs.reshape(vocab, vocab, 4, vocab)
  first, second, third = probs[0, 0, 1], probs[:, 0, 2], probs[:, :, 3]
  return first[:, None, None] * second[:, :, None] * third


def fits(counts):
  return fit_tests.fit(counts, law() / law().sum()).p_value


@pytest.mark.slow
def test_sampled_texts_have_the_targets_law_whatever_is_chosen():
  assert fits(frequencies(0)) > 1e-3
  assert fits(frequencies(1, (2, 4, 0))) > 1e-3


# What is refused.


HEAD = LoadedDrafter(TARGET, lambda depth: models.DRAFTERS['eagle 1'][0])
FIXED = LoadedDrafter(TARGET, lambda depth: lm.make(DRAFT, min(depth, 2)))
COSTS = table({0: 1.0, 4: 1.5}, (8, 16))


@pytest.mark.parametrize(
  ('drafter', 'lengths', 'more', 'message'),
  [
    (LOADED, (), {}, '^lengths must be whole numbers'),
    (LOADED, (0,), {}, '^lengths must be .* at least 1'),
    (LOADED, (1, 2.5), {}, '^lengths must be whole numbers'),
    (LOADED, (-1, 1), {}, '^lengths must be whole numbers'),
    (LOADED.make(2), LENGTHS, {}, '^drafter must be what a loader returns'),
    # Plain steps lose the features that a head reads.
    (HEAD, (0, 3), {}, '^lengths: 0 .* leave 0 out'),
    (FIXED, (1, 2, 4), {}, '^lengths: the drafter drafts 2 tokens where 4'),
    (LOADED, (0, 2, 4), {'table': COSTS}, '^table has no costs of length 2'),
    (LOADED, (0, 4), {'table': COSTS, 'replay': [3]}, '^replay has the leng'),
  ],
)
def test_what_cannot_be_chosen_is_refused(drafter, lengths, more, message):
  with pytest.raises(ValueError, match=message):
    Goodput(drafter, lengths, **more)


@pytest.mark.parametrize(
  ('tried', 'accepted'),
  [(1, 2), (1, -1), (1, np.nan), (np.nan, 0), (np.inf, 0)],
)
def test_counts_that_cannot_be_teach_nothing(tried, accepted):
  policy = Goodput(LOADED, LENGTHS, table=FREE)
  before = policy.rates()
  with pytest.raises(ValueError, match='accepted must be counts of at least 0'):
    policy.learn([tried, 1, 0, 0], [accepted, 0, 0, 0])
  np.testing.assert_array_equal(policy.rates(), before)


def test_a_spec_of_another_length_is_refused():
  policy = Goodput(LOADED, LENGTHS, table=FREE)
  spec = Spec(TARGET, LOADED.make(2), verify.token, (10,))
  with pytest.raises(ValueError, match=r'drafter\.make\(4\)'):
    opened(policy, spec=spec)
  assert opened(policy).live == 0
  for drafter, lengths in ((LOADED, (1,)), (HEAD, (4,))):
    assert Goodput(drafter, lengths).lengths == lengths


def test_counts_of_a_shorter_draft_are_the_first_places():
  jnp = jax.numpy
  sizes = {'histogram': 5, 'tried': 4, 'accepted': 4}
  arrays = {k: jnp.arange(2 * n).reshape(2, n) for k, n in sizes.items()}
  whole = Counts(**dict.fromkeys(Counts._fields, jnp.zeros(2)) | arrays)
  part = mixed_lengths._cut(whole, 2)
  back = mixed_lengths._put_back(whole, jax.tree.map(lambda x: x + 1, part))
  for name, size in sizes.items():
    first = size - 2
    old, cut, new = (np.array(getattr(x, name)) for x in (whole, part, back))
    np.testing.assert_array_equal(cut, old[:, :first])
    old[:, :first] += 1
    np.testing.assert_array_equal(new, old)


def test_a_text_has_the_costs_of_the_next_longer_one():
  assert [COSTS.place(n) for n in (1, 8, 9, 16, 99)] == [0, 0, 1, 1, 1]
