"""Programs whose texts are constrained."""

import json
import pathlib
import re

import numpy as np
import pytest

from experiments import constrained as study
from specjax import checkpoints, pair, reports
from specjax.bench import (
  load,
  memory,
  results,
  row_fields,
  sampling_stages,
)
from specjax.bench.config import Experiment, OnDevice, SamplingValues
from specjax.bench.plan import plan
from specjax.errors import UserError
from specjax.programs import generate, predict, run
from tests.support import tiny
from tests.support.resumed import lines, run_twice

PATTERN = '[ab]{2,5}[;#]'
SCHEMA = {
  'type': 'object',
  'properties': {'a': {'type': 'boolean'}},
  'required': ['a'],
}


@pytest.fixture
def schema(tmp_path):
  file = tmp_path / 'schema.json'
  file.write_text(json.dumps(SCHEMA))
  return str(file)


def experiment(folder, kind=Experiment, **changes):
  x = tiny.experiment(folder, max_new_tokens=16)
  return kind(**vars(x) | changes)


def by_pattern(pattern=PATTERN):
  return SamplingValues(regex=pattern)


@pytest.mark.slow
def test_a_run_says_what_constrained_its_texts(folder, tmp_path, capsys):
  x = experiment(folder, sampling=by_pattern(), results=str(tmp_path / 'rows'))
  x.timed, x.drafters = False, ('draft',)
  run.main(x)
  rows = lines(tmp_path / 'rows/rows.jsonl')
  assert len(rows) == 2
  for row in rows:
    assert PATTERN in row['constraint']['what']
    assert row['ended'] == 1
    # At most five letters, what follows them, and the end of the text.
    assert row['tokens'] <= 7 * row['prompts']
  said = ' '.join(capsys.readouterr().out.split())
  assert 'of which 100% ended by themselves.' in said
  greedy, _ = sorted(rows, key=lambda row: row['temperature'])
  assert greedy['identical_to_plain'] == greedy['prompts']


@pytest.mark.slow
def test_a_shown_text_is_whole_or_said_to_be_cut(folder, schema, capsys):
  (end,) = checkpoints.eos_ids(str(folder / 'target'))
  # Its end is as good as forbidden.
  endless = SamplingValues(regex='[ab]{3,}', logit_bias=((end, -50.0),))
  for stages, new, ended in (
    (SamplingValues(json_schema=schema), 24, True),
    (endless, 8, False),
  ):
    x = experiment(
      folder, sampling=stages, prompt='x', max_new_tokens=new,
      drafters=('draft',), temperatures=(1.0,),
    )  # fmt: skip
    generate.main(x)
    out = capsys.readouterr().out
    said = json.loads(out.splitlines()[-1])
    assert said['ended'] == ended
    assert ('and no whole one)' in out) == (not ended)
    if ended:
      text = said['text']
      assert json.loads(text)['a'] in (True, False)
    else:
      assert re.fullmatch('[ab]{3,}', said['text'])


@pytest.mark.slow
def test_a_prediction_is_of_constrained_texts(folder, tmp_path):
  x = experiment(
    folder,
    sampling=by_pattern('[a-d]{4,9}'),
    drafters=('draft',),
    results=str(tmp_path / 'a'),
  )
  predict.main(OnDevice(**vars(x)))
  rows = lines(pathlib.Path(x.results, 'rows.jsonl'))
  tokens = {row['tokens'] for row in rows if 'tokens' in row}
  # Two prompts, and at most nine letters and an end of each; 16 without it.
  assert 0 < max(tokens) <= 2 * 10


def test_settings_know_a_schema_by_its_content(folder, schema):
  x = experiment(folder, sampling=SamplingValues(json_schema=schema))
  first = results.settings_of(x)['sampling']
  assert first['json_schema'][0] == 'schema.json'
  assert 'regex' not in first
  with open(schema, 'a') as file:
    file.write(' ')
  assert results.settings_of(x)['sampling'] != first
  given = experiment(
    folder, sampling=SamplingValues(json_schema='{"type": "null"}')
  )
  assert results.settings_of(given)['sampling']['json_schema'][0] == 'given'
  assert plan(given).sampling.constraint
  # Fifteen letters and the end of the text are as many as there may be.
  longest = plan(experiment(folder, sampling=by_pattern('a{15}'))).sampling
  assert longest.constraint.distance[0] == 16
  with pytest.raises(RuntimeError, match='was not compiled'):
    sampling_stages.values(by_pattern(), None, 1, 1.0)
  none = results.settings_of(experiment(folder))['sampling']
  assert {'json_schema', 'regex'}.isdisjoint(none)


def test_schemas_that_cannot_be_kept_are_refused(folder, tmp_path):
  file = tmp_path / 'ages.json'
  age = {'type': 'number', 'minimum': 3}
  file.write_text(json.dumps(SCHEMA | {'properties': {'a': age}}))
  x = experiment(folder, sampling=SamplingValues(json_schema=str(file)))
  with pytest.raises(UserError, match=r'^sampling\.json_schema: .*a\.minimum'):
    plan(x)
  with pytest.raises(UserError, match='languages is empty'):
    study.check(languages(folder, {}, tmp_path))
  # A saved automaton is for its own tokens.
  saved = pair.constraint('choices')
  x = experiment(folder, max_new_tokens=96)
  x.sampling = SamplingValues(json_schema=saved)
  assert plan(x).sampling.constraint.distance[0] > 10
  tiny.write_pair(tmp_path / 'other', vocab=2050)
  x = tiny.experiment(tmp_path / 'other', max_new_tokens=96)
  x.sampling = SamplingValues(json_schema=saved)
  with pytest.raises(UserError, match=r'^sampling\.json_schema: '):
    plan(x)


def test_memory_counts_the_tables_of_every_row(folder):
  planned = [
    plan(experiment(folder, sampling=stages, timed=False, batch=2))
    for stages in (SamplingValues(), by_pattern())
  ]
  described = {'target': load.describe('target.path', planned[0].target)}
  free, bound = (
    memory.predict(p, described, 16, 2, compiles=False) for p in planned
  )
  # Of 2,048 tokens, 64 states and 32 classes.
  assert bound.cache - free.cache == 2 * (2 * 2048 + 2 * 64 * 32 + 4 * 64 + 4)


def test_a_text_of_another_language_stops_the_program(folder):
  x = plan(experiment(folder, sampling=by_pattern('a+')))

  class Run:
    turns = ()
    texts = ([5, 6],)

  with pytest.raises(RuntimeError, match='a text is none of'):
    row_fields.language(x.sampling.constraint, [Run], (0,))
  assert row_fields.language(None, [Run], (0,)) == {}


def languages(folder, schemas, tmp_path):
  return experiment(
    folder, study.Languages, languages=schemas, drafters=('draft',),
    verifiers=('token',), results=str(tmp_path / 'rows'), quick=False,
  )  # fmt: skip


@pytest.mark.slow
def test_languages_are_measured_beside_none(folder, schema, tmp_path, capsys):
  x = languages(folder, {'flag': schema}, tmp_path)
  rows = run_twice(study, x, capsys)
  cells = {(r['language'], r['masked'], r['temperature']) for r in rows}
  told = {('none', True), ('flag', True), ('flag', False)}
  assert cells == {
    (language, masked, t) for language, masked in told for t in (0.0, 1.0)
  }
  for row in rows:
    bound = row['language'] == 'flag'
    assert (row['forced'] > 0) == bound == (row['states'] > 0)
    if bound:
      assert row['ended'] == 1
    if bound and row['masked']:
      # Where nothing is left to choose the draft is right.
      n = np.sum(row['unit_prefixes'])
      forced = row['forced'] * n
      known = forced + row['free_alpha'] * (n - forced)
      assert known == pytest.approx(row['alpha'] * n)
  assert 'not masked' in reports.summary(rows)
