"""Wrong use gets one sentence: what is wrong, and what to do instead."""

import dataclasses
import functools

import pytest

import specjax
from specjax import sampling, verify
from specjax.drafters import counts, eagle, early_exit, lm, medusa, ngram, plain
from specjax.loop import generate
from specjax.types import LoadedDrafter, Params, Spec, Target
from tests.support import models

HOST = Target(models.TARGET)
SPEC = Spec(models.TARGET, plain.make(), verify.token)
PARAMS = Params(models.weights(models.TARGET, 0), None)
PAIR = specjax.pair.path


def start(**changes):
  arguments = {
    'params': PARAMS,
    'prompts': [[1, 2]],
    'spec': SPEC,
    'new_tokens': 3,
    'key': generate.row_keys(0, range(1)),
    'values': sampling.make(1, 0.0),
  }
  arguments |= changes
  params, prompts = arguments.pop('params'), arguments.pop('prompts')
  return generate.start(params, prompts, **arguments)


def spec(**changes):
  return start(spec=dataclasses.replace(SPEC, **changes))


@pytest.mark.parametrize(
  ('use', 'message'),
  [
    (lambda: start(prompts='abc'), 'prompts must be lists of token ids'),
    (
      lambda: start(key=0),
      r'key must be one random key a row, such as .*, got',
    ),
    *(
      (
        functools.partial(generate.row_keys, seed, [0]),
        'seed must be a whole number of at least 0 and below 4294967296, got',
      )
      for seed in (-1, 2**32, 1.5)
    ),
    *(
      (
        functools.partial(generate.row_keys, 0, indices),
        'indices must be one whole number a row, from 0 on, such as range',
      )
      for indices in (3, [[0]], [0.5], [-1])
    ),
    (lambda: start(values=0.7), r'values must be .*sampling\.make'),
    (lambda: start(params={}), r'params must be .*Params.*, got dict'),
    (lambda: start(spec='x'), "spec must be .*, got str 'x'"),
    (lambda: spec(rule='token'), "rule must be .*verify.*, got str 'token'"),
    (lambda: spec(rule=verify.lenience), r'got .* \(call it first, with its n'),
    (lambda: spec(eos=[3]), r'spec.eos must be a tuple of token ids, got list'),
    (lambda: spec(target=HOST), r'spec.target must be a model, such as .*'),
    (lambda: spec(drafter=lm), r'spec.drafter must be a specjax\.Drafter'),
    (
      lambda: spec(drafter=LoadedDrafter(models.TARGET, plain.make)),
      r'spec.drafter has no draft length yet: give loaded\.make\(gamma\)',
    ),
    (lambda: generate.generate(PARAMS, 1, 1, spec=SPEC), 'state must be what'),
    (
      lambda: generate.generate(
        PARAMS,
        start(),
        1,
        spec=dataclasses.replace(SPEC, drafter=ngram.make(2)),
      ),
      r'state has a draft length of 0, but spec\.drafter drafts 2: give the',
    ),
    (
      lambda: start(new_tokens=-1),
      'new_tokens must be whole numbers of at least 0 .*, got int -1',
    ),
    *(
      (
        functools.partial(start, new_tokens=number),
        'new_tokens must be whole numbers .* and below 2147483648',
      )
      for number in (2**31, 2**70, [2**63])
    ),
    (
      lambda: start(new_tokens=2**31 - 1),
      'prompt 0 and its new tokens make 2147483649 tokens, but the target',
    ),
    (
      lambda: generate.generate(
        PARAMS, start(), generate.stop_when(-2, 1), spec=SPEC
      ),
      r'steps must be a whole number of at least 0 and .*, got int -2',
    ),
    (
      lambda: generate.generate(PARAMS, start(), 2**31, spec=SPEC),
      'steps must be a whole number .* below 2147483648, got int 2147483648',
    ),
    (lambda: specjax.load(''), "path must be a directory or .*, got str ''"),
    (lambda: lm.load(None, ''), 'target must be what specjax.load returns'),
    (lambda: medusa.load(HOST, 3), 'path must be the directory of a trained'),
    (lambda: counts.load(HOST, ''), 'path must be the directory of tables'),
    (lambda: lm.load(HOST, '', widths='ab'), "widths must be .*, got str 'ab'"),
    (lambda: lm.load(HOST, '', parents=3), 'parents must be integers'),
    (
      lambda: early_exit.load(HOST, layers=1).make('x'),
      'depth must be a whole',
    ),
    (lambda: ngram.load(HOST, longest='x'), 'longest must be a whole number'),
    (lambda: ngram.load(HOST, '/nowhere'), 'this drafter has no weights'),
    (
      lambda: lm.load(HOST, PAIR('medusa')),
      r'is a trained head, .*: load it with specjax\.drafters\.medusa\.load',
    ),
    (
      lambda: eagle.load(HOST, PAIR('draft-64')),
      r'draft-64 holds no eagle head: load it with specjax\.drafters\.lm',
    ),
  ],
)
def test_wrong_use_gets_a_sentence(use, message):
  with pytest.raises(ValueError, match=message) as error:
    use()
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'go_on',
  [
    lambda state: generate.generate(PARAMS, state, 1, spec=SPEC),
    pytest.param(
      lambda state: generate.step(PARAMS, state, spec=SPEC),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_state_is_used_once(go_on):
  state = start()
  after = generate.generate(PARAMS, state, 1, spec=SPEC)
  with pytest.raises(ValueError, match='state was used up'):
    go_on(state)
  assert int(go_on(after).length[0]) == 4
