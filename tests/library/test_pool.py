"""Requests that come and go: each text is the one that it has alone."""

import dataclasses
import functools
import json
import os
import sys

import jax
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.certify import tiny_models
from specjax.drafters import lm, plain
from specjax.loop import generate
from specjax.loop.token_records import Recording, read
from specjax.models import table
from specjax.requests import pool, request_sampling
from specjax.types import Params, Spec
from tests.support import models, processes

pytestmark = pytest.mark.usefixtures('float64')
SLOTS, ROWS = 256, 3
SMALL, TABLE = models.DRAFT, table.build(models.VOCAB)
SPEC = Spec(SMALL, lm.make(SMALL, 2), verify.token, (10,))
NAMES = 'top_p', 'frequency_penalty', 'min_new_tokens', 'forbidden'
ASKED = (
  {},
  {'temperature': 1.0},
  {'temperature': 0.7, 'top_p': 0.8},
  {'frequency_penalty': 1.5, 'min_new_tokens': 3},
  {'temperature': 1.3, 'forbidden': (1, 2)},
)


@functools.cache
def params_of(target=SMALL):
  return models.double(
    Params(models.weights(target, 5), models.near(target, 5))
  )


def request(number, **changes):
  random = np.random.default_rng(number)
  size = int(random.choice([1, 3, 20, 40, 70, 150]))
  new, least = int(random.integers(0, 40)), 3  # of `ASKED`
  given = {
    'prompt': random.integers(0, 10, size).tolist(),
    'new_tokens': max(new, least) if new else 0,
    'key': generate.row_keys(7, [number]),
    'values': request_sampling.of(SPEC, *NAMES).values(
      **ASKED[number % len(ASKED)]
    ),
  }
  return pool.Request(**given | changes)


def opened(**changes):
  options = {
    'spec': SPEC,
    'values': request_sampling.of(SPEC, *NAMES).values(),
    'rows': ROWS,
    'slots': SLOTS,
    'reads': (64,),
    'recording': Recording(origins=True),
  }
  return pool.Pool(params_of(), **options | changes)


def started(asked, **options):
  """A request in a state of its own."""
  given = asked._asdict()
  prompt = given.pop('prompt')
  given |= {'spec': SPEC, 'slots': SLOTS} | options
  return generate.start(params_of(), [prompt], **given)


def alone(asked):
  """Tokens, counts and origins of a request in a state of its own."""
  state = started(request(asked), recording=Recording(origins=True))
  state = generate.generate(params_of(), state, 99, spec=SPEC)
  (new,) = read(state)
  return new.tokens, new.counts, new.origins


def whole(parts):
  return models.joined(parts), models.joined(parts, 'origins')


def test_a_text_depends_on_nothing_that_comes_or_goes_beside_it():
  random = np.random.default_rng(0)
  held, told, asked, cancelled = opened(group=2), {}, {}, set()
  for number in range(32):
    asked[held.submit(request(number))] = number
    if random.random() < 0.2:
      victim = int(random.choice([*asked]))
      if held.cancel(victim):
        cancelled.add(victim)
    if random.random() < 0.5:
      continue  # Several come at once, and are read together.
    for _ in range(random.integers(0, 8)):
      for one in held.turn(steps=int(random.integers(1, 4))):
        told.setdefault(one.id, []).append(one)
  models.finish(held, 2, told)
  assert 0 < len(cancelled) < 10
  for number, seed in asked.items():
    tokens, counts, names = alone(seed)
    mine = told.get(number, [])
    if number in cancelled:
      said, _ = whole(mine)
      assert said == tokens[: len(said)]
      continue
    assert whole(mine) == (tokens, names)
    assert [one.done for one in mine] == [False] * (len(mine) - 1) + [True]
    for a, b in zip(mine[-1].counts, counts, strict=True):
      np.testing.assert_array_equal(a, b)


def test_a_turn_ends_where_a_row_is_free_for_another():
  spec = Spec(TABLE, plain.make(), verify.token)
  given = {'spec': spec, 'values': sampling.make(1), 'slots': 128}
  held = pool.Pool(params_of(TABLE), rows=2, **given)

  def submit(new_tokens):
    key = generate.row_keys(0, [new_tokens])
    return held.submit(pool.Request([1], new_tokens, key, sampling.make(1)))

  def turn():
    return {one.id: (len(one.tokens), one.done) for one in held.turn(8)}

  first, second, third, last = (submit(n) for n in (3, 20, 5, 6))
  assert turn() == {first: (3, True), second: (3, False)}
  assert turn() == {second: (5, False), third: (5, True)}
  assert turn() == {second: (8, False), last: (6, True)}
  assert turn() == {second: (4, True)}


@pytest.mark.slow
def test_stages_that_a_request_does_not_ask_for_change_nothing():
  """Neutral values draw what the pipeline without these stages draws."""
  spec = Spec(TABLE, lm.make(TABLE, 2), verify.token, (10,))
  names = set(request_sampling.NEUTRAL) - {'temperature'}
  kinds = request_sampling.of(spec, *names, prediction=8)
  prompts = [[number, 3] for number in range(8)]

  def texts(values):
    params = params_of(TABLE)
    state = models.decoded(spec, params, prompts, values, new_tokens=20)
    return models.new_tokens(state)

  neutral = kinds.values(temperature=0.8)
  assert all(x is not None for x in neutral)
  rows = jax.tree.map(lambda x: np.repeat(x, 8, 0), neutral)
  assert texts(rows) == texts(sampling.make(8, 0.8))


def test_a_constrained_request_is_beside_free_ones():
  language = tiny_models.LANGUAGE
  model = table.build(4)
  params = Params(models.weights(model, 1), models.weights(model, 2))
  spec = Spec(model, lm.make(model, 2), verify.token, (3,))
  kinds = request_sampling.of(spec, 'constraint')
  held = pool.Pool(params, spec=spec, values=kinds.values(), rows=2, slots=128)
  for number in range(12):
    constraint = language if number % 2 else None
    values = kinds.values(temperature=1.0, constraint=constraint)
    key = generate.row_keys(0, [number])
    held.submit(pool.Request([0, 1], 12, key, values))
  texts = {n: whole(one)[0] for n, one in models.finish(held).items()}
  inside = [language.follow(text) >= 0 for text in texts.values()]
  assert all(language.follow(texts[n]) >= 0 for n in range(1, 12, 2))
  assert not all(inside)


def test_tables_of_a_constraint_have_the_size_of_the_pool():
  kinds = request_sampling.Stages(
    ('constraint',), 4, (3,), constraint=(128, 32)
  )
  made = kinds.values(constraint=tiny_models.LANGUAGE).constraint
  free = kinds.values().constraint
  assert [x.shape for x in made] == [x.shape for x in free]
  assert made.next.shape == (1, 128, 32)
  tight = request_sampling.Stages(('constraint',), 4, (3,), constraint=(32, 32))
  with pytest.raises(ValueError, match='64 states and 32 classes, but'):
    tight.values(constraint=tiny_models.LANGUAGE)
  # Other stages count, as they do without a pool.
  beside = ('constraint', 'min_new_tokens', 'forbidden')
  kinds = request_sampling.Stages(beside, 4, (3,))
  given = {'constraint': tiny_models.LANGUAGE, 'min_new_tokens': 5}
  alone = sampling.make(1, **given, vocab_size=4, eos=(3,)).constraint
  made = kinds.values(**given).constraint
  assert made.least == alone.least == [6]
  assert made.next.shape == (1, 256, 64)
  one, other = (
    request_sampling.Stages(('constraint',), 4, (3,), constraint=(states, 32))
    for states in (64, 128)
  )
  assert pool._layout(one.values()) != pool._layout(other.values())
  with pytest.raises(ValueError, match='forbidden and min_new_tokens must'):
    kinds.values(**given, forbidden=(0,))


@pytest.mark.slow
def test_texts_on_a_mesh_are_those_of_one_device(tmp_path):
  """Rows over two devices, or heads; nothing is compiled for a request.

  Drafts of a constant length, and by load.
  """
  two = '--xla_force_host_platform_device_count=2'
  done = processes.run(
    'tests.support.pool_on_devices',
    tmp_path,
    JAX_PLATFORMS='cpu',
    XLA_FLAGS=f'{os.environ.get("XLA_FLAGS", "")} {two}',
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  assert len(found) == 6
  for name, x in found.items():
    one = found[f'{name[:-3]}1x1']
    assert len(one['tokens']) == 6
    assert sum(map(len, one['tokens'])) > 40
    assert x['tokens'] == one['tokens']
    assert x['top'] == one['top']
    for mine, own in zip(x['logprobs'], one['logprobs'], strict=True):
      np.testing.assert_allclose(mine, own, atol=1e-6)
    assert x['compiled'] == []


def test_values_by_default_change_nothing():
  kinds = request_sampling.of(
    SPEC, *{*request_sampling.NEUTRAL} - {'constraint'}
  )
  expected = {
    'temperature': 0, 'top_k': 0, 'top_p': 1, 'min_p': 0, 'repetition': 1,
    'presence': 0, 'frequency': 0, 'min_new_tokens': 0,
  }  # fmt: skip
  made = kinds.values()._asdict()
  assert {name: float(made[name][0]) for name in expected} == expected
  assert not made['forbidden'].any()


@pytest.mark.parametrize(
  ('group', 'rows', 'sizes'),
  [(1, 3, [1]), (3, 3, [1, 2]), (4, 4, [1, 2, 4]), (4, 2, [1, 2])],
)
def test_groups_of_every_size_are_read_to_warm_up(
  group, rows, sizes, monkeypatch
):
  held, read, steps = opened(group=group, rows=rows), [], []

  def place(chosen, at):
    read.append((len(chosen), chosen[0].slots, *at))

  monkeypatch.setattr(held, '_place', place)
  monkeypatch.setattr(held, '_advance', steps.append)
  monkeypatch.setattr(pool, 'stop', lambda state, rows: rows)
  held._state = 'a state'
  held.warm_up()
  found = [(n, slots, *range(n)) for n in sizes for slots in (64, 256)]
  assert sorted(read) == found
  assert held._state.tolist() == [True] * rows
  assert steps == [0]


def test_a_hundred_requests_compile_nothing(caplog):
  held = opened(group=2)
  held.warm_up()
  programs = (
    generate.read_prompts, generate._begin, generate.loop, pool.place,
    pool.empty,
  )  # fmt: skip
  before = [program._cache_size() for program in programs]
  request(0)  # What the host makes of values compiles, too.
  told = {}
  with jax.log_compiles():
    for number in range(100):
      held.submit(request(number))
      if number % 3 == 0:
        for one in held.turn(steps=1 + number % 4):
          told.setdefault(one.id, []).append(one)
      if number % 10 == 0:
        held.cancel(number)
    models.finish(held, 1, told)
  assert len(told) > 80
  assert [program._cache_size() for program in programs] == before
  assert 'Compiling jit(loop)' not in caplog.text
  assert 'Compiling jit(read_prompts)' not in caplog.text
  assert 'Compiling' not in caplog.text


def test_prompts_are_read_at_the_price_of_their_size(monkeypatch):
  assert pool.read_sizes(128) == (32, 64, 128)
  assert pool.read_sizes(384) == (32, 64, 128, 256, 384)
  assert pool.read_sizes(512) == (32, 64, 128, 256, 512)
  assert pool.read_sizes(4096) == (32, 64, 128, 256, 512, 4096)
  seen, start = [], generate.start

  def read(*args, read_slots, **options):
    seen.append((len(args[1]), read_slots))
    return start(*args, read_slots=read_slots, **options)

  monkeypatch.setattr(generate, 'start', read)
  held = opened(reads=(32, 128), group=2)
  for size in (32, 5, 33, 128, 129):
    held.submit(request(0, prompt=[1] * size, new_tokens=1))
  models.finish(held)
  # A group is of one size, and nobody is overtaken.
  assert seen == [(2, 32), (1, 128), (1, 128), (1, None)]
  seen.clear()
  for size in (5, 33, 6):
    held.submit(request(0, prompt=[1] * size, new_tokens=1))
  models.finish(held)
  assert seen == [(1, 32), (1, 128), (1, 32)]


def test_requests_that_repeat_one_before_them_are_not_read(monkeypatch):
  seen, start = [], generate.start
  monkeypatch.setattr(
    generate, 'start', lambda *x, **y: seen.append(len(x[1])) or start(*x, **y)
  )
  first, other = request(1, new_tokens=9), request(3, new_tokens=5)
  samples = [first._replace(key=generate.row_keys(7, [n])) for n in range(3)]
  # Equal to the first, and no part of it: an object of its own.
  alike = first._replace(prompt=[*first.prompt])
  fewer = first._replace(new_tokens=4)
  asked = [*samples, fewer, alike, other, fewer]
  held = opened(group=2)
  numbers = [held.submit(one) for one in asked]
  texts = models.texts_of(held)
  assert sum(seen) == 5
  for number, one in zip(numbers, asked, strict=True):
    held = opened()
    (text,) = (held.submit(one), models.texts_of(held))[1].values()
    assert texts[number] == text
  assert len({tuple(texts[n]) for n in numbers[:3]}) == 3
  # Nor is a group kept for one that repeats its first.
  held = opened(group=2)
  again = [held.submit(one) for one in (fewer, alike, fewer)]
  found = models.texts_of(held)
  assert [found[n] for n in again] == [texts[numbers[n]] for n in (3, 4, 3)]
  # What was kept for one that was cancelled is for no other.
  held = opened(rows=1)
  for one in (first, other):
    held.submit(one)
  held.turn()
  assert held._kept is None
  held = opened(rows=1)
  _, gone, last = (held.submit(one) for one in (*samples[:2], other))
  held.turn()
  held.cancel(gone)
  assert models.texts_of(held)[last] == texts[numbers[5]]


@pytest.mark.parametrize(
  ('name', 'read'),
  [('lm', 32), ('eagle 3, tree', 32), ('another vocabulary', 256)],
)
def test_a_draft_reads_no_more_than_the_prompt_is_read_into(name, read):
  """But for one whose memory has other sizes than the buffer's.

  Shapes are all that is asked for: nothing is compiled.
  """
  spec, seen = models.spec_of(name), []

  def init(params, ctx, hidden):
    seen.append((ctx.tokens.shape[1], hidden.shape[1]))
    return spec.drafter.init(params, ctx, hidden)

  own = dataclasses.replace(spec, drafter=spec.drafter._replace(init=init))
  values = sampling.make(1)

  def begin(params):
    return models.run(
      own, params, [[1, 2, 3]], values, slots=256, read_slots=32
    )

  jax.eval_shape(begin, models.params_of(name))
  assert seen[-1] == (read, read)


@pytest.mark.parametrize('slots', [16, 200, 512])
def test_slots_to_read_into_must_hold_the_prompt_in_blocks(slots):
  found = request(0, prompt=[1] * 20)
  with pytest.raises(ValueError, match=f'read_slots is {slots}: .* 20 tokens'):
    started(found, new_tokens=5, read_slots=slots)


# Requests that end early, or never begin


def test_cancelling_frees_the_row_for_the_next():
  held = opened(rows=1)
  long, waits, short = (
    held.submit(request(0, new_tokens=size)) for size in (39, 39, 2)
  )
  assert (long, waits, short) == (0, 1, 2)
  assert [one.id for one in held.turn()] == [long]
  assert (held.live, held.waiting) == (1, 2)
  assert held.cancel(long)
  assert held.cancel(waits)
  assert (held.live, held.waiting) == (0, 1)
  assert [one.id for one in held.turn(steps=2)] == [short]
  assert not any(map(held.cancel, (long, waits, short, 99)))
  assert held.turn() == []


def test_a_cancelled_row_computes_no_more():
  held = opened()
  first, other = (held.submit(request(0, new_tokens=39)) for _ in range(2))
  held.turn()
  held.cancel(first)
  (one,) = held.turn()
  assert one.id == other
  assert held._state.done.tolist() == [True, False, True]
  assert held._state.counts.target_calls.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
  'changes',
  [
    {'prompt': []},
    {'prompt': [99]},
    {'new_tokens': SLOTS},
    {'new_tokens': sys.maxsize},
    {'prompt': [1] * 500, 'new_tokens': 40},
    {'values': sampling.make(2)},
    {'key': generate.row_keys(0, [1, 2])},
  ],
)
def test_what_cannot_be_decoded_is_refused_as_it_is_anywhere(changes):
  found = request(0, **changes)
  with pytest.raises(ValueError, match=r'\w') as expected:
    started(found)
  held = opened()
  with pytest.raises(ValueError, match=r'\w') as refused:
    held.submit(found)
  assert str(refused.value) == str(expected.value)
  assert not held.waiting


def test_a_queue_that_is_full_says_so():
  held = opened(rows=1, limit=2)
  held.submit(request(0))
  held.submit(request(1))
  with pytest.raises(pool.Full, match='2 requests wait, which is the limit'):
    held.submit(request(2))
  held.turn()
  held.submit(request(2))


def test_mistakes_of_whoever_opens_a_pool_are_named():
  for changes, message in (
    ({'rows': 0}, 'rows must be a whole number'),
    ({'limit': 0}, 'limit must be a whole number'),
    ({'values': 3}, 'values must be what specjax.sampling.make returns'),
    ({'recording': Recording(logprobs=20)}, 'logprobs is 20'),
    ({'reads': (0,)}, 'reads must be from 1 to the 256 slots'),
    ({'reads': (512,)}, 'reads must be from 1 to the 256 slots'),
    ({'reads': (32, 200)}, 'reads has 200, .* a block of 128 tok'),
  ):
    with pytest.raises(ValueError, match=message):
      opened(**changes)
  assert opened(limit=1, reads=(1,)).reads == [1, 256]
  assert opened().group == 1
  with pytest.raises(ValueError, match='constraint must be integers of at le'):
    request_sampling.of(SPEC, constraint=(0, 64))
  assert request_sampling.of(SPEC, constraint=(1, 1)).constraint == (1, 1)
  for steps, bound in ((0, 'a whole number'), (2**31, '.* below 2147483648')):
    with pytest.raises(ValueError, match=f'steps must be {bound}'):
      opened().turn(steps)
  with pytest.raises(ValueError, match="stages has no 'topp'"):
    request_sampling.of(SPEC, 'topp')
  kinds = request_sampling.of(SPEC, 'top_p')
  with pytest.raises(ValueError, match='min_p is no stage here'):
    kinds.values(min_p=0.1)
  with pytest.raises(ValueError, match='top_p must be in'):
    kinds.values(top_p=2.0)
  held = opened()
  with pytest.raises(ValueError, match='values must have the stages'):
    held.submit(request(0, values=kinds.values()))
  held.submit(request(0, new_tokens=20))
  held.turn()
  with pytest.raises(ValueError, match='1 requests are live'):
    held.warm_up()
