"""Experiments on models that are named as on the Hub."""

import functools
import json

import pytest

from experiments import arrivals
from specjax.bench import results
from specjax.bench.config import Candidate, Checkpoint, Parity, Prompts
from specjax.bench.load import load_experiment
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.errors import UserError
from specjax.programs import inspect, parity
from tests.support import hub, tiny

ONE, TWO = hub.COMMITS
DESCRIBED = 'config.json', 'tokenizer.json', 'tokenizer_config.json'


@pytest.fixture
def cache(tmp_path, monkeypatch):
  made = tmp_path / 'cache'
  hub.use(made, monkeypatch)
  return made


def experiment(folder, target='owner/target', draft='owner/draft@v1', **more):
  draft = {'draft': Candidate('lm', 2, draft)}
  settings = {'target': Checkpoint(target), 'candidates': draft} | more
  return tiny.experiment(folder, **settings)


@pytest.mark.slow
def test_rows_say_which_commits_were_run(folder, cache, tmp_path):
  hub.store(cache, 'owner/target', folder / 'target')
  hub.store(cache, 'owner/draft', folder / 'draft', (), 'v1', TWO)
  x = experiment(folder, timed=False, results=str(tmp_path / 'rows'))
  x.temperatures = (0.0,)
  runner = Runner(plan(x))
  runner.run()
  (row,) = runner.folder.rows
  assert (row['target'], row['draft']) == ('target', 'draft')
  assert (row['target_revision'], row['draft_revision']) == (ONE, TWO)
  # Another commit of the same name does not go on with them.
  hub.store(cache, 'owner/draft', folder / 'draft', (), 'v1', 'c' * 40)
  with pytest.raises(UserError, match=f'commit {TWO[:12]} of the draft draft'):
    Runner(plan(x))
  # The folder belongs to the names, wherever the cache lies.
  settings = json.loads((tmp_path / 'rows/config.json').read_text())
  assert settings['target'] == {'path': 'owner/target'}
  assert settings['candidates']['draft']['path'] == 'owner/draft@v1'


@pytest.mark.parametrize('program', ['arrivals', 'parity'])
def test_rows_of_other_commits_stay_alone(program, folder, cache, tmp_path):
  hub.store(cache, 'owner/target', folder / 'target')
  x = experiment(folder, draft=str(folder / 'draft'), timed=False, quick=False)
  x.results = str(tmp_path / 'rows')
  x.temperatures = (0.0,)
  if program == 'arrivals':
    x = arrivals.Arrivals(**vars(x) | {'batch': 2, 'shortest': 2})
    planned, begin = arrivals.check(x), functools.partial(arrivals.run, x)
  else:
    planned, other = parity.prepare(Parity(**vars(x)))
    begin = functools.partial(parity.Comparison, planned, other)
  old = results.Folder(planned.results, planned.settings)
  old.add({'target': 'target', 'target_revision': TWO, 'drafter': 'draft'})
  with pytest.raises(UserError, match=f'commit {TWO[:12]} of the target'):
    begin()


def test_commits_of_drafts_stand_in_their_order(folder, cache):
  hub.store(cache, 'owner/draft', folder / 'draft', (), 'v1', TWO)
  inner = Candidate('lm', 1, str(folder / 'draft'))
  staged = Candidate('cascade', 2, 'owner/draft@v1', {'inner': inner})
  x = experiment(folder, str(folder / 'target'), candidates={'staged': staged})
  (planned,) = plan(x).drafters.values()
  assert planned.draft == 'draft + draft'
  assert planned.draft_revision == f'{TWO} + -'
  # The name, and the directory that it stands for, are the same model.
  hub.store(cache, 'owner/target', folder / 'target')
  inner.path = str(cache / f'models--owner--target/snapshots/{ONE}')
  x.target.path = 'owner/target'
  with pytest.raises(UserError, match=r'and target.path are the same'):
    plan(x)


@pytest.mark.parametrize(
  ('target', 'more', 'says'),
  [
    ('', {}, '^target.path: owner/target is no dir'),
    ('', {'max_new_tokens': 0}, 'max_new_tokens'),
    ('target', {}, '^path of the drafter draft: owner/draft'),
    (
      'target',
      {'drafters': ('lm:owner/draft',), 'candidates': {}},
      '^drafters: owner/draft is no directory',
    ),
  ],
)
def test_a_name_is_looked_up_when_the_values_are_right(
  folder, cache, target, more, says
):
  target = str(folder / target) if target else 'owner/target'
  with pytest.raises(UserError, match=says):
    plan(experiment(folder, target, **more))


def test_weights_are_fetched_after_all_checks_and_before_any_is_read(
  folder, cache
):
  hub.store(cache, 'owner/target', folder / 'target', DESCRIBED)
  hub.store(cache, 'owner/draft', folder / 'draft', DESCRIBED, 'v1')
  prompts = Prompts(domains=('code',), count=2, length=1000)
  with pytest.raises(UserError, match=r'prompts.length'):
    load_experiment(plan(experiment(folder, prompts=prompts)))
  lacks = 'model.safetensors of owner/'
  with pytest.raises(UserError, match=f'^target.path: {lacks}target@aaa'):
    load_experiment(plan(experiment(folder)))
  hub.store(cache, 'owner/target', folder / 'target')
  with pytest.raises(UserError, match=f'^path of the drafter draft: {lacks}d'):
    load_experiment(plan(experiment(folder)))


@pytest.mark.parametrize('weights', ['auto', 'int8'])
def test_a_config_is_enough_to_inspect_a_model(folder, cache, capsys, weights):
  hub.store(cache, 'owner/target', folder / 'target', DESCRIBED)
  hub.store(cache, 'owner/draft', folder / 'draft', DESCRIBED, 'v1')
  inspect.main(experiment(folder, weights=weights))
  out = capsys.readouterr().out
  assert 'unknown: the Hub cannot be reached' in out
  found = json.loads(out.splitlines()[-1])
  assert found['refused'] == []
  sizes = {name: x['stored_bytes'] for name, x in found['models'].items()}
  assert sizes == {'target': None, 'draft draft': None}
  assert found['models']['draft draft']['shares_vocabulary']
