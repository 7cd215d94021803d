"""Rollouts: one read a prompt, a key a text, and weights that are arguments."""

import dataclasses
import functools
import operator

import jax
import numpy as np
import pytest

from specjax import Rollouts, sampling, verify
from specjax.drafters import lm
from specjax.loop import generate, token_records
from specjax.loop.token_records import Recording
from specjax.requests import pool, rollouts
from specjax.types import LoadedDrafter, Params, Spec, Target
from tests.support import models

pytestmark = pytest.mark.usefixtures('float64')
SMALL, END, NEW = models.DRAFT, 10, 12
PROMPTS = [[1, 2], [3] * 9, [4, 5, 6], [7]]
STAGES = {'temperature': 1.3, 'min_p': 0.05}


@functools.cache
def pair():
  weights = models.weights(SMALL, 5), models.near(SMALL, 5, 0.6)
  params, own = models.double(weights)
  target = Target(SMALL, params, eos=(END,))
  return target, LoadedDrafter(SMALL, functools.partial(lm.make, SMALL), own)


def made(drafts=True, **changes):
  target, draft = pair()
  options = {'longest_prompt': 9, 'samples': 3, 'new_tokens': NEW, 'rows': 4}
  options |= {'gamma': 3} | STAGES | changes
  target = options.pop('target', target)
  return Rollouts(target, options.pop('draft', draft) if drafts else None,
                  **options)  # fmt: skip


ENCODES = Target(SMALL._replace(encode=len), models.target_weights())
arrays = operator.attrgetter(
  'tokens', 'length', 'ended', 'logprobs', 'raw_logprobs'
)


def test_samples_share_one_read_and_are_those_of_reads_of_their_own(
  monkeypatch,
):
  reads, start = [], generate.start

  def begin(params, prompts, **options):
    reads.append((prompts, options['read_slots']))
    return start(params, prompts, **options)

  monkeypatch.setattr(generate, 'start', begin)
  shared = made()(PROMPTS, 5)
  # All into a buffer for the longest prompt that there may be.
  assert reads == [([prompt], 32) for prompt in PROMPTS]
  monkeypatch.setattr(pool, '_repeats', lambda one, other: False)
  alone = made()(PROMPTS, 5)
  assert len(reads) == len(PROMPTS) + shared.length.size
  for mine, own in zip(arrays(shared), arrays(alone), strict=True):
    np.testing.assert_array_equal(mine, own)
  for mine, own in zip(shared.counts, alone.counts, strict=True):
    np.testing.assert_array_equal(mine, own)
  assert len({text.tobytes() for text in shared.tokens[1]}) == 3


@pytest.mark.parametrize(
  'drafts', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_text_is_that_of_its_key_alone(drafts):
  """Rows, neighbours and their order change neither texts nor records."""
  whole, other = made(drafts)(PROMPTS, (5, 2)), made(drafts, rows=1)
  back = other(PROMPTS[:0:-1], (5, 2), indices=[3, 2, 1])
  for mine, own in zip(arrays(whole), arrays(back), strict=True):
    np.testing.assert_allclose(mine[:0:-1], own, atol=1e-6)
  np.testing.assert_array_equal(whole.tokens[:0:-1], back.tokens)
  target, draft = pair()
  method = draft.make(3) if drafts else rollouts.plain.make()
  spec = Spec(target.model, method, verify.token, (END,))
  params = Params(target.params, draft.params if drafts else None)
  for sample, bits in enumerate(rollouts._bits(rollouts._root((5, 2)), 1, 3)):
    state = generate.start(
      params, PROMPTS[1:2], spec=spec, new_tokens=np.array([NEW]),
      key=jax.random.wrap_key_data(bits, impl='threefry2x32'),
      values=sampling.make(1, vocab_size=models.VOCAB, **STAGES), slots=128,
      read_slots=32, recording=Recording(logprobs=0, sampled=True),
    )  # fmt: skip
    end = generate.StopWhen(99, 1)
    (row,) = token_records.read(
      generate.generate(params, state, end, spec=spec)
    )
    size = whole.length[1, sample]
    assert whole.tokens[1, sample, :size].tolist() == row.tokens
    assert not whole.tokens[1, sample, size:].any()
    assert whole.ended[1, sample] == (row.tokens[-1] == END)
    raw = [one.value for one in row.logprobs]
    for name, values in (('logprobs', row.sampled), ('raw_logprobs', raw)):
      found = getattr(whole, name)[1, sample]
      np.testing.assert_allclose(found[:size], values, atol=1e-6)
      assert not found[size:].any()
  assert {*whole.ended.ravel().tolist()} == {True, False}
  assert whole.counts.tokens.tolist() == whole.length.tolist()
  assert (whole.tau > 1) == drafts
  assert np.isnan(whole.acceptance_rate) != drafts


def test_every_part_of_a_seed_makes_other_texts():
  rolled = made(samples=1)
  seeds = 5, 6, (5, 0), (5, 1), (5, 0, 0)
  texts = {rolled(PROMPTS[:1], seed).tokens.tobytes() for seed in seeds}
  assert len(texts) == 5


def test_weights_of_other_updates_compile_nothing(caplog):
  """And texts are those of the weights that were given last."""
  target, draft = pair()
  rolled = made(samples=2, new_tokens=3, rows=1)
  scaled = jax.jit(lambda x, by: jax.tree.map(lambda w: w * by, x))
  for one in target.params, draft.params:
    weights = scaled(one, 1.0)
  rolled(PROMPTS[:1], (0, 0), target_params=weights)
  programs = generate.count_programs()
  with jax.log_compiles():
    for update in range(4):
      weights = scaled(target.params, 1 + update / 4)
      own = scaled(draft.params, 1 - update / 8)
      given = {'target_params': weights, 'draft_params': own}
      last = rolled(PROMPTS[update % 4 :][:1], (0, update), **given)
  assert generate.count_programs() == programs
  assert 'Compiling' not in caplog.text
  target = dataclasses.replace(target, params=weights)
  draft = dataclasses.replace(draft, params=own)
  new = made(target=target, draft=draft, samples=2, new_tokens=3, rows=1)
  for mine, other in zip(
    arrays(last), arrays(new(PROMPTS[3:], (0, 99))), strict=True
  ):
    np.testing.assert_array_equal(mine, other)
  old = rolled(PROMPTS[3:], (0, 99))
  assert np.abs(old.raw_logprobs - last.raw_logprobs).max() > 0.01


def test_seeds_are_the_same_keys_whatever_generator_jax_is_set_to(monkeypatch):
  keys = []
  monkeypatch.setattr(
    pool.Pool, 'submit', lambda self, request: keys.append(request.key)
  )
  monkeypatch.setattr(Rollouts, '_batch', lambda *_: None)
  for generator in 'rbg', 'threefry2x32':
    with jax.default_prng_impl(generator):
      made()(PROMPTS, (0, 7))
  assert {str(jax.random.key_impl(key)) for key in keys} == {'threefry2x32'}
  words = np.array([jax.random.key_data(key) for key in keys])
  assert len(words) == 2 * 3 * len(PROMPTS)
  np.testing.assert_array_equal(*words.reshape(2, -1))


def test_a_rollout_by_default():
  target, draft = pair()
  rolled = Rollouts(target, draft, longest_prompt=9)
  assert (rolled.samples, rolled.new_tokens, rolled.width) == (8, 64, 73)
  given = rolled._pool.keywords
  assert (given['rows'], given['spec'].drafter.depth) == (16, 4)
  assert given['recording'] == Recording(logprobs=0, sampled=True)
  assert given['values'].temperature == [1]
  assert Rollouts.__call__.__defaults__ == (0,)
  rolled = made(longest_prompt=32, temperature=0.5)
  assert rolled._pool.keywords['reads'] == [32]


def test_windows_are_whole_texts_with_what_was_drawn_of_them():
  batch = made()(PROMPTS, 1)
  assert repr(batch).startswith('<4 prompts, 3 texts of each, tau ')
  counts = {k: int(x.sum()) for k, x in batch.counts._asdict().items()}
  assert batch.tau == pytest.approx(batch.length.sum() / counts['target_calls'])
  share = counts['accepted'] / counts['drafted']
  assert batch.acceptance_rate == pytest.approx(share)
  found = batch.windows()
  assert found['tokens'].shape == (12, 9 + NEW)
  for row in range(12):
    prompt, size = PROMPTS[row // 3], batch.length[row // 3, row % 3]
    tokens, counts, logprobs = (
      found[name][row] for name in ('tokens', 'counts', 'logprobs')
    )
    new = batch.tokens[row // 3, row % 3, :size].tolist()
    text = prompt + new
    assert tokens.tolist() == text + [0] * (len(tokens) - len(text))
    places = np.flatnonzero(counts)
    assert tokens[places + 1].tolist() == new
    assert counts.sum() == size
    own = batch.logprobs[row // 3, row % 3, :size]
    np.testing.assert_array_equal(logprobs[places], own)
    assert not logprobs[counts == 0].any()


@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('temperature', {'temperature': 0}),
    ('temperature', {'temperature': 'hot'}),
    ('rows', {'rows': 0}),
    ('samples', {'samples': 0}),
    ('gamma', {'gamma': 0}),
    ('longest_prompt', {'longest_prompt': 501}),
    ('rule', {'rule': verify.lenience(0.5)}),
    ('rule', {'rule': 3}),
    ('eos', {'target': Target(SMALL, models.target_weights(), eos=(99,))}),
    ('target has an encoder', {'target': ENCODES, 'draft': None}),
    ('topp', {'topp': 0.9}),
    ('top_p', {'top_p': 2.0}),
    ('target.eos', {'target': Target(SMALL, models.target_weights())}),
    ('target', {'target': SMALL}),
    ('drafter', {'draft': LoadedDrafter(models.TARGET, int)}),
    ('drafter', {'draft': lm.make(SMALL, 3)}),
  ],
)
def test_wrong_sizes_are_named_before_anything_runs(field, changes):
  with pytest.raises(ValueError, match=rf'^{field}\b|no .{field}'):
    made(**changes)


@pytest.mark.parametrize(('drafts', 'most'), [(False, 512), (True, 40)])
def test_texts_take_all_positions_of_target_and_draft(drafts, most):
  _, draft = pair()
  short = dataclasses.replace(
    draft, make=lambda depth: lm.make(SMALL, depth)._replace(positions=40)
  )
  given = {'draft': short} if drafts else {}
  assert made(drafts, **given, longest_prompt=most - NEW).width == most
  with pytest.raises(ValueError, match=rf'^longest_prompt .* {most} positions'):
    made(drafts, **given, longest_prompt=most - NEW + 1)


@pytest.mark.parametrize(
  ('field', 'changes'),
  [
    ('prompt 1', {'prompts': [[1], [2] * 10]}),
    ('prompt 0', {'prompts': [[]]}),
    ('prompts', {'prompts': []}),
    ('seed', {'seed': -1}),
    ('seed', {'seed': ()}),
    ('seed', {'seed': (0, 2**32)}),
    ('indices', {'indices': [0]}),
    ('indices', {'indices': [1, 1, 2, 3]}),
    ('target_params', {'target_params': models.target_weights()}),
    ('draft_params', {'draft_params': models.target_weights()}),
    (r'^target_params\[.*float64', {'target_params': models.draft_weights()}),
  ],
)
def test_wrong_arguments_of_a_call_are_named(field, changes):
  with pytest.raises(ValueError, match=rf'^{field}\b'):
    made()(**{'prompts': PROMPTS} | changes)


def test_weights_without_numbers_end_the_call():
  weights = jax.tree.map(lambda x: x * np.nan, pair()[0].params)
  with pytest.raises(FloatingPointError, match='prompt 0'):
    made()(PROMPTS, target_params=weights)
