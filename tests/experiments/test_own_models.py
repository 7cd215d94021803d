"""Programs with a target and a draft of other code, by functions' names."""

import dataclasses
import importlib
import json
import pathlib

import pytest

import specjax
from experiments.own_models import door_costs
from specjax import checkpoints, pair
from specjax.bench.config import Candidate, Checkpoint, Draft, OnDevice, Parity
from specjax.bench.plan import plan
from specjax.drafters import ngram
from specjax.errors import UserError
from specjax.stats import sanity_checks
from tests.support import models, tiny

MODULE = 'tests.support.own_models'


def experiment(kind=OnDevice, **changes):
  settings = {
    'target': Checkpoint(load=f'{MODULE}.load'),
    'draft': Draft(load=f'{MODULE}.load_draft'),
    'candidates': {'ngram': Candidate('specjax.drafters.ngram.load', 2)},
    'drafters': ('lm', 'ngram'),
    'gammas': (2,),
    'temperatures': (0.0,),
  }
  x = tiny.experiment(pathlib.Path(), **settings)
  return kind(**{**vars(x), **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
  ('program', 'kind'),
  [
    ('run', OnDevice),
    ('predict', OnDevice),
    ('parity', Parity),
    ('inspect', OnDevice),
  ],
)
def test_a_program_takes_them(program, kind, tmp_path, capsys, monkeypatch):
  # Times of so tiny a pair may be anything.
  monkeypatch.setattr(sanity_checks, 'find', lambda row: [])
  x = experiment(kind, results=str(tmp_path / 'a'))
  if program in ('run', 'predict'):
    x.drafters = ('lm',)
  importlib.import_module(f'specjax.programs.{program}').main(x)
  last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
  if program == 'parity':
    assert (last['compared'], last['bugs'], last['ties']) == (4, 0, 0)
  elif program == 'inspect':
    assert last['models']['target']['family'] == 'other code'
    # Keys and values of two layers of 32 floats.
    assert last['models']['target']['cache_bytes_per_token'] == 2 * 2 * 32 * 4
  else:
    assert last['impossible'] == 0


def test_they_answer_for_a_checkpoint(tokenizer):
  path = f'load:{MODULE}.load'
  model, params = checkpoints.load(path, 'float32')
  described = checkpoints.describe(path)
  assert described.model is model
  assert described.dtype == 'float32'
  assert described.stored_bytes == sum(x.nbytes for x in params.values())
  assert checkpoints.eos_ids(path) == (0,)
  assert checkpoints.has_tokenizer(path)
  own = checkpoints.load_tokenizer(path)
  assert own.encode('def') == tokenizer.encode('def')
  other = checkpoints.fingerprint(f'load:{MODULE}.load_draft')
  assert checkpoints.fingerprint(path) != other
  with pytest.raises(checkpoints.CheckpointError, match='dtype=float32'):
    checkpoints.load(path, 'bfloat16')
  with pytest.raises(checkpoints.CheckpointError, match='leave mesh out'):
    checkpoints.load(path, 'float32', placement=object())


@pytest.mark.parametrize(
  ('says', 'name'),
  [
    (r'target\.load.*fails: RuntimeError: no weights here', 'fails'),
    (r'target\.load.*there is no such function', 'nothing'),
    (r'target\.load.*is no function', 'VOCAB'),
    (r'target\.load.*must return what specjax.Target.of returns', 'weights'),
    (r'target\.load.*returns a model of specjax', 'ours'),
    ('^weights is int8', 'load'),
  ],
)
def test_what_cannot_be_is_refused(says, name):
  weights = 'int8' if name == 'load' else 'auto'
  x = experiment(target=Checkpoint(load=f'{MODULE}.{name}'), weights=weights)
  with pytest.raises(UserError, match=says):
    plan(x)


def test_results_of_a_path_have_their_folder():
  """A field that was added later changes no folder while it is empty."""
  before = plan(experiment()).settings
  assert before['target'] == {'load': f'{MODULE}.load', 'path': ''}
  x = experiment(target=Checkpoint(pair.path('target')))
  after = plan(dataclasses.replace(x, draft=Draft(), drafters=('ngram',)))
  assert set(after.settings['target']) == {'path'}


def test_the_model_whose_costs_are_taken_gives_the_same_texts():
  texts = []
  for model in (models.TARGET, door_costs.own_cache(models.TARGET)):
    target = specjax.Target.of(model, models.target_weights())
    draft = ngram.load(target)
    out = specjax.decode(
      target, draft, [[1, 2, 3, 1, 2], [4]], new_tokens=24, gamma=4
    )
    texts.append(out.tokens)
    assert out.counts.accepted.sum() > 0
  assert texts[0] == texts[1]
