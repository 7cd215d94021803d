"""DFlash: its losses, and what is refused.

Its module is compared with numpy in `test_published_blocks`, and training with
drafting in `test_corrections`.
"""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.certify import laws
from specjax.drafters import dflash
from specjax.drafters.dflash import training
from specjax.drafters.dflash.module import Head, Places, Sizes, near
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import Seen
from specjax.models.rotary import Llama3
from specjax.types import Params, Target, Verdict
from tests.library import test_drafter_promises as promises
from tests.support import models

TARGET, HEAD, BLOCK = models.TARGET, models.DFLASH_HEAD, 5
WIDTH = TARGET.config.width
OWN = models.head_of(models.DFLASH, 0.3)


def features_of(text, taps=models.DFLASH.taps):
  """The target's features [T, len(taps), E] of a text, without a cache."""
  padded = np.zeros((1, 64), np.int32)  # One program for all lengths.
  padded[0, : len(text)] = text
  out = models.see(TARGET, models.target_weights(), padded, taps)
  return np.asarray(out.taps)[0, : len(text)]


def read(walker, tokens, length, own):
  """Weights, a context of texts, and what a walker knows after reading them."""
  params = Params(models.target_weights(), own)
  values = promises.sampling.make(len(tokens))
  given = tokens, length, values
  ctx, hidden = jax.device_put(
    laws._context(walker, params, *given, target=TARGET)
  )
  made = jax.jit(walker.init, static_argnums=3)(params, ctx, hidden, 1)
  return params, ctx, made


def check_along_a_text(walker, own, expected):
  """And after rejections: each step keeps what was accepted and no more.

  Args:
    walker: that says three places at once.
    own: its weights.
    expected: (text) -> logits [3, V].
  """
  random = np.random.default_rng(0)
  tokens = random.integers(0, models.VOCAB, (4, 128)).astype(np.int32)
  length = np.array([1, 2, 9, 30], np.int32)
  params, ctx, (state, block) = read(walker, tokens, length, own)
  start, commit = jax.jit(walker.start), jax.jit(walker.commit)
  for accepted in ([0, 3, 1, 2], [2, 0, 0, 3], [1, 1, 3, 0]):
    step = start(params, state, block, ctx)
    said = np.asarray(step.block.logits)
    for row, text in enumerate(tokens):
      wanted = expected(text[: ctx.length[row]])
      np.testing.assert_allclose(said[row], wanted, atol=1e-5)
    # What was rejected is seen by the target, and must leave no trace.
    hidden = []
    for row, text in enumerate(tokens):
      at, n = int(ctx.length[row]), accepted[row]
      fed = (*text[: at + n], *random.integers(0, models.VOCAB, 4 - n))
      hidden.append(features_of(fed, walker.taps)[at - 1 : at + 3])
    new = np.array(accepted, np.int32)
    path = np.minimum(np.arange(4), new[:, None])
    ctx = ctx._replace(length=np.asarray(ctx.length) + new + 1)
    verdict, hidden = Verdict(path, new, new), np.stack(hidden)
    state = commit(params, state, step.block, ctx, verdict, hidden)


def test_a_mask_may_be_a_token_of_the_target():
  sizes = Sizes(models.DFLASH.taps, **models.DFLASH_SIZES, mask_token=3)
  own = {name: x for name, x in OWN().items() if name != 'mask'}
  weights = models.target_weights()
  params = Params(weights, own)
  assert {*Head(TARGET, sizes).shapes()} == {*own}
  table, tokens = np.asarray(weights['embedding']), np.array([5])
  embed = jax.jit(Head.embed, static_argnums=(0, 3))
  ours = embed(Head(TARGET, sizes), params, tokens, 3)
  np.testing.assert_array_equal(ours[0], table[[5, 3, 3]])
  learned = embed(HEAD, Params(weights, OWN()), tokens, 3)[0]
  expected = [table[5], OWN()['mask'], OWN()['mask']]
  np.testing.assert_array_equal(learned, np.stack(expected))


# Training


def test_the_loss_weighs_near_places_more(monkeypatch):
  """Place k of a block at token a is judged by p after token a + k - 1."""
  chances = (0.5, 0.25, 0.75, 0.125, 0.5)  # of the target, after each token
  said = (0.5, 0.75)  # of the two places of every block

  def law(*chances):
    return np.log([[p, 1 - p] for p in chances]).astype(np.float32)

  seen = Seen(
    np.array([[0, 1, 1, 0, 1]]),
    np.zeros((1, 5, 2, WIDTH), np.float32),
    law(*chances)[None],
  )
  asked = []

  def say_many(self, params, tokens, hidden, first):
    asked.append(first)
    return Places(jnp.tile(law(*said), (1, first.shape[1], 1, 1)), None)

  def judged(anchors):
    sizes = models.DFLASH_SIZES | {'block': 3}
    trained = dflash.trainable(TARGET, **sizes, anchors=anchors)
    loss = functools.partial(trained.loss, None)
    with_places = jax.jit(lambda *x: (loss(*x), asked.pop()))
    return functools.partial(with_places, seen)

  monkeypatch.setattr(Head, 'say_many', say_many)
  found, first = judged(9)(jax.random.key(0))
  assert sorted(first[0].tolist()) == [0, 1, 2]
  weight = 1 / (1 + math.exp(-1 / 1.5))
  for k, share in ((0, weight), (1, 1 - weight)):
    terms = [
      -p * math.log(said[k]) - (1 - p) * math.log(1 - said[k])
      for p in chances[k : k + 3]
    ]
    assert found[f'place{k + 1}'] == pytest.approx(share * sum(terms) / 3)
  _, firsts = jax.vmap(judged(2))(jax.random.split(jax.random.key(0), 9))
  places = [*map(tuple, firsts[:, 0].tolist())]
  assert all(a != b for a, b in places)
  assert len({*places}) > 3


def test_a_place_learns_to_choose_and_how_sure_it_is(monkeypatch):
  p, plain, q = np.log([
    [[[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]],
    [[[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]],
    [[[0.25, 0.5, 0.25], [0.6, 0.3, 0.1]]],
  ])  # fmt: skip
  sure, ids = np.log([[3.0, 1.0]]), np.array([[[0, 1], [2, 0]]])
  given = q, p, np.array([[1.0, 3.0]]), sure, plain, ids
  made = training.Judged(*map(jnp.asarray, given))
  monkeypatch.setattr(training, '_judge', lambda *_: [made])
  head = types.SimpleNamespace(sizes=types.SimpleNamespace(block=2, depth=1))
  seen = Seen(np.zeros((1, 2), int), None, None)

  @jax.jit
  def learn(said):
    slope = jax.grad(lambda x: training._misjudged(made._replace(said=x)))
    terms = training.loss(head, 2, 1.0, None, seen, jax.random.key(0))
    return terms, slope(said)

  found, slope = learn(made.said)
  thirds = np.array([2, 1]) / 3
  chosen = np.log([[1 / 3, 2 / 3], [1 / 7, 6 / 7]]) @ -thirds
  body = -(np.exp(p[0]) * plain[0]).sum(1)
  odds = math.log(4) - 0.75 * math.log(3), math.log(2)
  terms = {'choice1': chosen, 'place1': body, 'sure1': odds}
  for name, (one, other) in terms.items():
    assert found.pop(name) == pytest.approx((one + 3 * other) / 4, rel=1e-5)
  assert not found
  assert not slope.any()  # What is judged does not learn of how sure it is.


def test_guesses_are_counted_behind_the_prompt():
  tokens = promises.texts(3)[0][:, :16]
  params = Params(models.target_weights(), OWN())
  logits = models.score(TARGET, params.target, tokens)
  hidden = np.stack([features_of(row) for row in tokens])
  seen = Seen(tokens, hidden, logits)
  found = jax.jit(models.DFLASH.measure, static_argnums=2)(params, seen, 6)
  first = np.tile(np.arange(6, 12), (3, 1))
  said = jax.jit(HEAD.say_many)(params, tokens, hidden, first).logits
  found, said = jax.device_get((found, said))
  for k in range(BLOCK - 1):
    goal = np.asarray(logits)[:, 6 + k : 12 + k].argmax(-1)
    assert found['hits'][k, 0] == (said[:, :, k].argmax(-1) == goal).sum()
    assert found['hits'][k].sum() <= found['counted'][k] == 18


# What is refused


def test_drafts_and_windows_must_hold_a_block(tmp_path):
  files.save(tmp_path / 'head', models.DFLASH.config, OWN())
  loaded = dflash.load(Target(TARGET), tmp_path / 'head')
  assert loaded.make(4).depth == 4
  with pytest.raises(ValueError, match='choose a gamma of at most 4'):
    loaded.make(5)
  seen = Seen(np.zeros((1, 4), int), np.zeros((1, 4, 2, 8)), None)
  with pytest.raises(
    ValueError, match='windows of 4 tokens hold no block of 5'
  ):
    models.DFLASH.loss(None, seen, jax.random.key(0))


def test_sizes_have_borders_and_defaults():
  assert tuple(vars(Sizes((0,))).values()) == (
    (0,), 8, 2, 8, 4, 32, 512, None, 1e4, None, 1e-5, True, *[False] * 4, 0,
    False, '', 64, 64, 0, 16, '', 0, 16, (),
  )  # fmt: skip
  ones = dict.fromkeys(('layers', 'rank', 'recalled', 'candidates'), 1)
  assert Sizes((0,), 2, **ones, conv_group=1, windows=(2,)).depth == 1


def test_near_readings_are_one_mistake_away():
  sizes = Sizes((0,), correction='gru', causal=True, windows=(8, None))
  changes = {'rope_theta': 5e3, 'rope_scaling': Llama3(8.0, 1.0, 4.0, 64)}
  target = dataclasses.replace(TARGET.config, **changes)
  found = near(sizes, target)
  names = 'no window', 'masks see later ones'
  assert {*names, 'the last token says the first place'} <= {*found}
  assert [*found.values()] == [
    {'taps': (1,)}, *({'rope_theta': x} for x in (5e5, 1e6, 5e3)),
    {'rope_scaling': changes['rope_scaling']}, {'causal': False},
    {'anchored': True}, {'windows': ()}, {'plain': 1},
  ]  # fmt: skip
  other = dataclasses.replace(sizes, plain=1, windows=())
  plain = [x.get('plain') for x in near(other, target).values()]
  assert plain == [None] * 7 + [0, 2]
