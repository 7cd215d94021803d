"""A row depends on nothing around it, and no key is consumed twice.

Batches and single rows are compared in float64, where they may differ in
nothing; `test_pair` compares them in float32, where differences must be ties.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.loop import generate
from tests.support import keys, models

EXACT = 'lm with a stop'
OTHER = 'another vocabulary'
SLOTS = 128
FULL = SLOTS - models.DEPTH - 1  # the longest text of so many slots
# Few shapes, since each is a program to compile.
SIZES = {EXACT: (SLOTS, 2 * SLOTS), OTHER: (SLOTS,)}
# Rows of every kind, each with its temperature and its key.
ROWS = (
  *zip(models.PROMPTS, models.TEMPERATURES, strict=True),
  ((0,), 0.0),
  ((3, 3, 3), 1.0),
  (tuple(range(9, 0, -1)) * 5, 0.7),
  ((8, 2) * 50, 1.0),
)


def litter(state, seed):
  """The state with rubbish wherever nothing was written yet."""
  random = np.random.default_rng(seed)
  slots = state.tokens.shape[1]
  unused = np.arange(slots) >= np.asarray(state.length)[:, None]
  rubbish = random.integers(0, models.VOCAB, unused.shape)
  tokens = jnp.where(unused, rubbish.astype(np.int32), state.tokens)

  def spoil(leaf):
    if leaf.ndim != 4 or slots not in leaf.shape[2:]:
      return leaf
    # The last committed token is in no cache yet.
    free = np.roll(unused, -1, 1) | (np.arange(slots) == slots - 1)
    values = random.normal(size=leaf.shape).astype(leaf.dtype)
    # Slots come last in keys, and before the width in values.
    last = leaf.shape[3] == slots
    unread = free[:, None, None] if last else free[:, None, :, None]
    return jnp.where(unread, values, leaf)

  cache, memory = jax.tree.map(spoil, (state.cache, state.drafter))
  return state._replace(tokens=tokens, cache=cache, drafter=memory)


def decode(name, rows, slots=SLOTS, new=None, seed=None):
  """New tokens of rows, by their numbers in `ROWS`; as many as fit."""
  prompts, temperature = zip(*(ROWS[i] for i in rows), strict=True)
  room = [FULL - len(prompt) for prompt in prompts]
  new = room if new is None else np.minimum(new, room)
  state = models.begin(
    name, temperature, prompts, eos=(), new_tokens=new, slots=slots,
    indices=rows,
  )  # fmt: skip
  assert state.tokens.shape[1] == slots
  if seed is not None:
    state = litter(state, seed)
  return models.new_tokens(models.go(name, state, eos=()))


@functools.cache
def alone(name, row):
  """The text of a row in a batch of its own, to the last slot of a buffer."""
  (text,) = decode(name, [row])
  assert len(text) == FULL - len(ROWS[row][0])
  return text


@pytest.mark.parametrize('name', models.slow_unless([EXACT], SIZES))
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_a_row_in_any_batch_is_the_row_alone(name, data):
  """Any rows, in any order, with any limits, in any buffer, on any rubbish.

  The longest texts end where the last step may write to the last slot: a write
  that is clamped would spoil earlier ones.
  """
  size = len(models.PROMPTS)

  def draw(strategy):
    return data.draw(st.lists(strategy, min_size=size, max_size=size))

  rows = draw(st.integers(0, len(ROWS) - 1))
  new = draw(st.sampled_from([1, 2, 17, SLOTS]))
  slots = data.draw(st.sampled_from(SIZES[name]))
  seed = data.draw(st.none() | st.integers(0, 99))
  with jax.enable_x64(True):
    found = decode(name, rows, slots, new, seed)
    for row, limit, text in zip(rows, new, found, strict=True):
      assert text == alone(name, row)[:limit]


def test_a_buffer_has_room_for_a_whole_step():
  spec = models.spec_of(EXACT)
  assert generate.slots_for(spec, FULL) == SLOTS
  assert generate.slots_for(spec, FULL + 1) > SLOTS


def test_keys_belong_to_prompts():
  keys = jax.random.key_data(generate.row_keys(3, [5, 0, 7]))
  alone = jax.random.key_data(generate.row_keys(3, [7]))
  np.testing.assert_array_equal(keys[2:], alone)
  with jax.default_prng_impl('rbg'):
    same = jax.random.key_data(generate.row_keys(3, [7]))
  np.testing.assert_array_equal(same, alone)
  other = jax.random.key_data(generate.row_keys(4, [7]))
  assert (alone != other).any()
  assert len({tuple(key) for key in keys.tolist()}) == 3


def consumed(spec, params, state, steps):
  step = functools.partial(generate.step, spec=spec, parts=generate.PARTS)
  return keys.consumed(step, params, state, steps)


# One of each way to draw a draft.
DRAWING = (
  'tree', 'cascade', 'lm with a stop', 'chains in eight bits', 'counts',
  'eagle 3, dynamic tree',
)  # fmt: skip


@pytest.mark.parametrize('name', models.slow_unless(DRAWING[:2], DRAWING))
def test_no_key_is_consumed_twice(name):
  steps, state = 4, models.begin(name)
  used = consumed(models.spec_of(name), models.params_of(name), state, steps)
  assert not list(keys.repeated(used))
  # It is no wonder that nothing repeats where nothing is seen.
  turns = steps * len(models.PROMPTS)
  first = {tuple(key) for key in jax.random.key_data(state.key).tolist()}
  split = {x.key for x in used if x.kind == 'split'}
  assert first < split
  assert len(split) >= turns
  assert len({x.key for x in used if x.kind == 'bits'}) >= turns


def draws_everywhere(params, key):
  """Keys consumed in a scan, a branch, a loop and by a number folded in."""
  del params  # Unused.

  def turn(key, number):
    key, one = jax.random.split(key)
    return key, jax.random.bits(jax.random.fold_in(one, number))

  key, _ = jax.lax.scan(turn, key, jnp.arange(2, dtype=jnp.uint32))
  some = jax.random.key_data(key)[0] >= 0
  key, _ = jax.lax.cond(some, turn, lambda *x: x, key, jnp.uint32(5))
  return jax.lax.while_loop(
    lambda carry: carry[1] < 2,
    lambda carry: (turn(carry[0], 9)[0], carry[1] + 1),
    (key, 0),
  )[0]


def test_every_key_is_recorded_with_its_value():
  def names(key):
    return tuple(jax.random.key_data(key).tolist())

  key, expected = jax.random.key(3), []
  used = keys.consumed(draws_everywhere, None, key, steps=1)
  for number in (0, 1, 5, 9, 9):
    expected.append(keys.Used('split', names(key)))
    key, one = jax.random.split(key)
    expected.append(keys.Used('fold', names(one), number))
    folded = jax.random.fold_in(one, number)
    expected.append(keys.Used('bits', names(folded)))
  assert sorted(map(str, used)) == sorted(map(str, expected))
  assert not list(keys.repeated(used))
  # For two draws, for a draw and for others, and in two turns of a loop.
  bits, split = (keys.Used(kind, (1, 2)) for kind in ('bits', 'split'))
  fold, other = (keys.Used('fold', (1, 2), number) for number in (7, 8))
  for twice in ((bits, bits), (bits, split), (fold, fold), (fold, bits)):
    assert list(keys.repeated(twice))
  assert not list(keys.repeated([fold, other]))
