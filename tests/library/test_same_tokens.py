"""Tokens stay the same, bit for bit, in every way that decodes them.

Models are tables of logits, so that no token depends on how a machine rounds a
sum. The texts were written down once; a change of the loop, the pool or the
door must not change them.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import sampling, verify
from specjax.drafters import lm, ngram
from specjax.loop import generate
from specjax.loop.token_records import Recording
from specjax.models import table
from specjax.requests import pool, request_sampling
from specjax.types import LoadedDrafter, Params, Spec, Target
from tests.support import models

LETTERS, END, SEED = 'abcdefghijk', 10, 5
MODEL = table.build(len(LETTERS))
SPECS = {
  'chain': Spec(MODEL, lm.make(MODEL, 2), verify.token, (END,)),
  'block': Spec(MODEL, lm.make(MODEL, 3), verify.block, (END,)),
  'tree': Spec(
    MODEL, lm.make_tree(MODEL, (0, 0, 1, 1)), verify.recursive, (END,)
  ),
  'lookup': Spec(MODEL, ngram.make(3), verify.token, (END,)),
}
PROMPTS = [[1], [2, 3, 4], [4, 5] * 9, [7, 8], [3, 1, 3, 1]]
NEW, TEMPERATURES = [20, 17, 5, 20, 20], [0.0, 1.0, 1.0, 0.7, 1.3]
TEXTS = {
  'chain': (
    'ibibibibibibibibibib fadjccccibididjk hcbk dibk cahcjcdgagihdgidggih'
  ),
  'block': ('ibibibibibibibibibib fabhcihcccgibbk hcecc dibk cahk'),
  'tree': (
    'ibibibibibibibibibib fcchccccdjcbk hdccb dibhcdgididgagibidji ccjbk'
  ),
  'lookup': ('ibibibibibibibibibib dgbibchcfcccgidib bk bjfhihcbibibk k'),
}
# Of the chain: a accepted, c corrected, b bonus; the most probable tokens.
ORIGINS = 'aabaabaabaabaabaabaa aabaccccacacccaa aabc acaa aabcacaabaabaabaabac'
LIKELY = (
  'ikbdikbdikbdikbdikbdikbdikbdikbdikbdikbd '
  'dehcghigcfcbcbcbcbbdikbdigbdigcf hccacbik bdigbdik '
  'ikcbghcacbcfcbigiaghiabdcaigiabdigiaiabd'
)


@functools.cache
def params():
  size = len(LETTERS)
  p, other = 1.5 * np.random.default_rng(0).normal(size=(2, size, size))
  p[:, END] -= 1  # Few texts end.
  p, q = (x.astype(np.float32) for x in (p, 0.6 * p + 0.4 * other))
  return Params(jnp.asarray(p), jnp.asarray(q))


def words(texts):
  return ' '.join(''.join(LETTERS[x] for x in text) for text in texts)


def by_generate(name):
  given = SPECS[name], params(), PROMPTS, sampling.make(5, TEMPERATURES)
  state = models.decoded(*given, new_tokens=NEW, seed=SEED, slots=128)
  return models.new_tokens(state)


def by_pool(name, **options):
  """Requests that come while others are decoded, with their records."""
  kinds = request_sampling.of(SPECS[name])
  held = pool.Pool(
    params(), spec=SPECS[name], values=kinds.values(), rows=2, slots=128,
    group=2, **options,
  )  # fmt: skip
  found, ids = {}, []
  for i, prompt in enumerate(PROMPTS):
    key, values = generate.row_keys(SEED, [i]), kinds.values(TEMPERATURES[i])
    ids.append(held.submit(pool.Request(prompt, NEW[i], key, values)))
    for one in held.turn(1 + i % 2) if i > 1 else ():
      found.setdefault(one.id, []).append(one)
  models.finish(held, 3, found)
  return [found[i] for i in ids]


def joined(rows, name):
  return [models.joined(row, name) for row in rows]


@pytest.mark.parametrize('name', ['block', 'tree', 'lookup'])
def test_generate_gives_the_texts_of_before(name):
  assert words(by_generate(name)) == TEXTS[name]


def test_a_pool_gives_the_texts_and_the_records_of_before():
  found = by_pool('chain', recording=Recording(True, 2))
  assert words(joined(found, 'tokens')) == TEXTS['chain']
  origins = joined(found, 'origins')
  assert ' '.join(''.join(x[0] for x in row) for row in origins) == ORIGINS
  likely = [
    [token for one in row for token, _ in one.top]
    for row in joined(found, 'logprobs')
  ]
  assert words(likely) == LIKELY


class Tokenizer:
  """Each token is a letter."""

  def decode(self, ids):
    return ''.join(LETTERS[token] for token in ids)


def test_the_door_gives_the_texts_of_before():
  target = Target(MODEL, params().target, tokenizer=Tokenizer(), eos=(END,))
  depth = functools.cache(lambda depth: lm.make(MODEL, depth))
  draft = LoadedDrafter(MODEL, depth, params().drafter)
  options = {'gamma': 2, 'seed': SEED}
  whole = specjax.decode(
    target, draft, PROMPTS, new_tokens=NEW, temperature=TEMPERATURES, **options
  )
  assert words(whole.tokens) == TEXTS['chain']
  pieces = [
    *specjax.stream(target, draft, PROMPTS[0], new_tokens=20, **options)
  ]
  assert words(joined([pieces], 'tokens')) == TEXTS['chain'].split()[0]
  origins = [x[0] for piece in pieces for x in piece.origins]
  assert ''.join(origins) == ORIGINS.split()[0]
