"""Rows that are refilled: every text is the one its prompt has alone.

Compared in float64, where they may differ in nothing.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import lm, ngram, plain, windowed
from specjax.drafters.shapes import chain
from specjax.loop import generate
from specjax.models import cache_attention, table, variants
from specjax.models.config import Encoder
from specjax.requests import continuous, pool
from specjax.types import Params, Spec
from tests.support import models

pytestmark = pytest.mark.usefixtures('float64')
ROWS = GROUP = 2
# prompt, new tokens, temperature; more of them than rows, of every length.
TEXTS = (
  ((1,), 40, 0.0),
  ((2, 3), 0, 0.0),
  ((7,), 3, 1.0),
  ((4, 5, 6, 4, 5, 6, 4, 5), 25, 0.7),
  (tuple(range(10)) * 2, 1, 1.0),
  ((9, 8) * 30, 17, 1.3),
  ((3, 3, 3), 30, 1.0),
)
ALL = tuple(range(len(TEXTS)))

# Few programs, of models that are small: compiling is what these tests cost.
# Drafters on the usual pair are slow.
SMALL, TABLE = models.DRAFT, table.build(models.VOCAB)
WALKED = variants.with_cache_attention(SMALL, cache_attention.walk(32, 8))
SPECS = {
  'lm': Spec(SMALL, lm.make(SMALL, 2), verify.token, (10,)),
  'ngram': Spec(TABLE, ngram.make(3), verify.token, (10,)),
  # Rows of different lengths read their own blocks.
  'windowed': Spec(
    WALKED, chain.make(windowed.walk(WALKED, 6, 2), 2), verify.token, (10,)
  ),
  'tree': Spec(TABLE, lm.make_tree(TABLE, (0, 0)), verify.recursive, (10,)),
}
ENDLESS = Spec(TABLE, ngram.make(3), verify.token)
# Memories of every kind, which are moved between rows and buffers.
USUAL = {
  f'usual {name}': name
  for name in (
    'recycling', 'lm, bandit', 'eagle 3, tree', 'dflash', 'pard over states',
    'another vocabulary', 'cascade over a window',
  )
}  # fmt: skip


def spec_of(name):
  return models.spec_of(USUAL[name]) if name in USUAL else SPECS[name]


def params_of(name):
  if name in USUAL:
    return models.params_of(USUAL[name])
  target = spec_of(name).target
  own = None if name == 'windowed' else models.near(target, 5)
  return models.double(Params(models.weights(target, 5), own))


def options(name, indices):
  """Arguments of `decode`, and of `start`, for some of the texts."""
  prompts, new, temperature = zip(*(TEXTS[i] for i in indices), strict=True)
  return {
    'prompts': prompts,
    'spec': spec_of(name),
    'new_tokens': list(new),
    'key': generate.row_keys(0, indices),
    'values': sampling.make(len(prompts), np.asarray(temperature)),
    'slots': 128,
  }


def decode(name, indices=ALL, **more):
  """Results by the number of their text, in the order they came in.

  Of usual drafters short prompts are read into a part of the buffer.
  """
  sizes = {'params': params_of(name), 'rows': ROWS, 'group': GROUP}
  sizes |= {'reads': (32,)} if name in USUAL else {}
  found = continuous.decode(**options(name, indices) | sizes | more)
  return [(indices[result.prompt], result) for result in found]


@functools.cache
def together(name):
  return decode(name)


def alone(name, index):
  """The state of one text in a batch of its own, beside itself."""
  given, params = options(name, [index, index]), params_of(name)
  state = generate.start(params, **given)
  return generate.generate(params, state, 99, spec=given['spec'])


def assert_equal(one, other):
  assert one.tokens == other.tokens
  assert one.finite == other.finite
  for a, b in zip(one.counts, other.counts, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  'name', models.slow_unless(['lm', 'ngram'], [*SPECS, *USUAL])
)
def test_a_text_is_the_one_its_prompt_has_alone(name):
  found = together(name)
  assert sorted(i for i, _ in found) == list(ALL)
  for i, result in found:
    state = alone(name, i)
    assert tuple(result.tokens) == models.new_tokens(state)[0]
    assert result.finite
    own = jax.device_get(state.counts)
    for mine, both in zip(result.counts, own, strict=True):
      np.testing.assert_array_equal(mine, both[0])


def test_keys_may_be_of_another_generator():
  """One that draws other numbers for a row beside others than alone."""
  keys = jax.random.split(jax.random.key(0, impl='rbg'), 2)
  params, indices = params_of('ngram'), (0, 3)
  given = options('ngram', indices) | {'key': keys, 'spec': ENDLESS}
  found = continuous.decode(params, rows=1, **given)
  texts = {one.prompt: tuple(one.tokens) for one in found}
  for i, index in enumerate(indices):
    given = options('ngram', [index]) | {'key': keys[i : i + 1]}
    given['spec'] = ENDLESS
    state = generate.start(params, **given)
    state = generate.generate(params, state, 99, spec=given['spec'])
    assert texts[i] == models.new_tokens(state)[0]


def test_those_that_may_grow_longest_begin_first():
  """So that few rows are idle at the end; of equals, the longest prompts."""
  new, keys = [2, 9, 5, 9], jax.random.split(jax.random.key(0, impl='rbg'), 4)
  given = options('ngram', [0, 2, 3, 5]) | {'spec': ENDLESS, 'key': keys}
  given['new_tokens'] = new
  found = list(continuous.decode(params_of('ngram'), rows=1, **given))
  assert [result.prompt for result in found] == [3, 1, 2, 0]
  assert [len(result.tokens) for result in found] == [9, 9, 5, 2]


def test_texts_are_worth_comparing():
  """Some end by themselves, some at their limit, and no two are alike.

  Nor do rows wait for the longest text.
  """
  texts = {i: tuple(result.tokens) for i, result in together('lm')}
  assert len({*texts.values()}) == len(TEXTS)
  ended = {i for i in texts if len(texts[i]) < TEXTS[i][1]}
  assert all(texts[i][-1] == 10 for i in ended)
  assert 0 < len(ended) < len(TEXTS) - 2
  assert texts[1] == ()
  assert [*texts].index(4) < [*texts].index(0)


def test_a_row_without_finite_logits_harms_nobody():
  """Nor does it harm the next text in its row, where it left its cache."""
  params = params_of('lm')
  target = params.target | {'embedding': params.target['embedding'].copy()}
  target['embedding'][5] = np.nan
  prompts = [(5,) * 20, *((token,) for token in range(10))]

  def texts(indices):
    """With nobody else in the batch where there is a single index."""
    chosen = [prompts[i] for i in indices]
    found = continuous.decode(
      params._replace(target=target), chosen, spec=spec_of('lm'), new_tokens=6,
      key=generate.row_keys(0, indices), values=sampling.make(len(chosen), 0.0),
      rows=ROWS, group=GROUP, slots=128,
    )  # fmt: skip
    return {indices[result.prompt]: result for result in found}

  found = texts(range(len(prompts)))
  for i, result in found.items():
    assert_equal(result, texts([i])[i])
  assert not found[0].finite
  assert found[0].tokens == []
  assert sum(result.finite for result in found.values()) > ROWS


class _Read(Exception):
  """Ends a decoding with what its first group was read into."""


def test_every_group_is_read_into_buffers_that_hold_any(monkeypatch):
  """Also into those of sources: one program serves all rows."""
  model = table.build(5, 512)
  config = dataclasses.replace(model.config, encoder=Encoder(1, start=2))

  def read(params, prompts, *, slots, source_slots, **options):
    del params, options  # Unused.
    raise _Read(slots, source_slots, len(prompts))

  monkeypatch.setattr(generate, 'start', read)
  found = continuous.decode(
    None, [[1] * 3, [1] * 200, [1] * 3],
    spec=Spec(model._replace(config=config), plain.make(), verify.token),
    new_tokens=[1, 5, 300], key=generate.row_keys(0, range(3)),
    values=sampling.make(3), rows=3,
  )  # fmt: skip
  with pytest.raises(_Read) as stopped:
    next(found)
  assert stopped.value.args == (384, 256, 2)


# Programs


def test_groups_are_powers_of_two():
  assert pool.split(13, 4) == [4, 4, 4, 1]
  assert pool.split(7, 7) == [4, 2, 1]
  assert pool.split(3, 1) == [1, 1, 1]
  assert pool.split(0, 4) == []


def test_a_refill_copies_no_cache():
  """What is placed goes into the very buffers of the state."""
  params, lm = params_of('lm'), options('lm', [0, 3])
  fresh = generate.start(params, **lm)
  state = pool.empty(fresh, ROWS + 1)
  assert state.done.all()
  before = state.cache[0].k.unsafe_buffer_pointer()
  placed = pool.place(state, fresh, np.array([2, 0]))
  assert placed.cache[0].k.unsafe_buffer_pointer() == before
  assert all(x.is_deleted() for x in jax.tree.leaves(state))
  assert not any(x.is_deleted() for x in jax.tree.leaves(fresh))
  assert placed.done.tolist() == [False, True, False]
  for mine, own in zip(
    *(jax.tree.leaves(x._replace(key=None)) for x in (placed, fresh)),
    strict=True,
  ):
    np.testing.assert_array_equal(np.asarray(mine)[[2, 0]], own)


# Mistakes of the caller


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rows': 0}, '^rows'),
    ({'chunk': 0}, '^chunk'),
    ({'group': -1}, '^group'),
    ({'prompts': [(1,), ()]}, 'prompt 1 is empty'),
    ({'key': jnp.zeros((2, 2), jnp.uint32)}, 'key must be'),
    ({'new_tokens': [1, 200], 'slots': 128}, '128, but prompt 1 needs 256'),
    ({'new_tokens': [1, 2, 3]}, 'new_tokens must be one number or 2'),
  ],
)
def test_mistakes_are_found_before_any_work(changes, message):
  """At the call, before a result is asked for."""
  with pytest.raises(ValueError, match=message):
    continuous.decode(None, **options('lm', [0, 3]) | {'rows': 2} | changes)
