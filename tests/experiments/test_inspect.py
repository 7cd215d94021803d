"""What is said of checkpoints before they are loaded."""

import dataclasses
import json
import shutil

import jax
import pytest

import specjax
from configs import pair as config
from specjax import checkpoints
from specjax.bench import load, memory
from specjax.bench.config import Candidate
from specjax.bench.memory import bytes_per_token
from specjax.bench.plan import plan
from specjax.drafters import lm, quantized
from specjax.errors import UserError
from specjax.programs import inspect
from tests.support import tiny


def experiment(folder, draft: str = 'draft'):
  """The neutral config, as from its command line."""
  x = config.get_config()
  x.target.path = str(folder / 'target')
  x.draft.path = str(folder / draft) if draft else ''
  x.prompts.count, x.max_new_tokens = 2, 16
  return x


def refuse(x) -> None:
  """Everything is shown, and then the program fails."""
  with pytest.raises(UserError):
    inspect.main(x)


def last_line(capsys) -> dict:
  return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_sizes_are_those_of_the_loaded_models(folder, capsys, monkeypatch):
  sizes = {}
  for name in ('target', 'draft'):
    model, params = checkpoints.load(folder / name)
    leaves = jax.tree.leaves(params)
    step, _ = bytes_per_token(model, params, 1)
    sizes[name] = [sum(x.size for x in leaves), sum(x.nbytes for x in leaves)]
    sizes[name].append(step)
  monkeypatch.setattr(checkpoints, 'load', None)
  inspect.main(experiment(folder))
  found = last_line(capsys)
  assert found['refused'] == []
  for who, name in (('target', 'target'), ('draft lm', 'draft')):
    model = found['models'][who]
    assert model['family'] == 'llama'
    names = ('parameters', 'bytes_per_device', 'bytes_per_step')
    assert sizes[name] == [model[field] for field in names]
  draft = found['models']['draft lm']
  assert draft['shares_vocabulary']
  assert draft['c_predicted'] == sizes['draft'][2] / sizes['target'][2]
  # Two layers against one, and the head of both.
  assert 0.5 < draft['c_predicted'] < 1
  assert found['prompts']['code']['prompts'] == 2


@pytest.mark.parametrize(
  'options',
  [
    {'vocabulary': 64},
    {'vocabulary': 64, 'bits': 4},
    {'bits': 8, 'rounds': True},
    {'dtype': 'bfloat16'},
  ],
)
def test_a_draft_is_shown_as_it_is_loaded(options, folder, capsys):
  x = experiment(folder)
  kind = quantized if 'bits' in options else lm
  load_name = f'specjax.drafters.{kind.__name__.split(".")[-1]}.load'
  x.candidates = {'d': Candidate(load_name, 2, x.draft.path, options)}
  x.drafters = ('d',)
  inspect.main(x)
  found = last_line(capsys)['models']['draft d']
  target = specjax.load(str(folder / 'target'))
  loaded = kind.load(target, x.draft.path, **options)
  model, params = loaded.draft
  assert found['bytes_per_device'] == memory.size_of(params)
  assert found['bytes_per_step'] == bytes_per_token(model, params, 1)[0]
  if 'bits' not in options:
    leaves = jax.tree.leaves(params)
    assert found['parameters'] == sum(x.size for x in leaves)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'vocabulary': 10**6}, 'draft: vocabulary must be from 1'),
    ({'vocabulary': 9, 'frequencies': 'nowhere'}, 'draft: nowhere/tables'),
  ],
)
def test_tokens_that_a_target_lacks_are_refused_before_weights(
  options, message, folder, capsys, monkeypatch
):
  x = experiment(folder)
  x.draft = dataclasses.replace(x.draft, **options)
  refuse(x)
  (reason,) = last_line(capsys)['refused']
  assert reason.startswith(message)
  monkeypatch.setattr(checkpoints, 'load', None)
  with pytest.raises(UserError, match=message):
    load.load_experiment(plan(x))


def test_a_target_that_drafts_for_itself_is_warned_of(folder, capsys):
  for draft, warns in (('target/', True), ('draft', False)):
    inspect.main(experiment(folder, draft))
    said = 'draft.path is the target itself' in capsys.readouterr().err
    assert said is warns


def test_everything_that_would_be_refused_is_listed(folder, tmp_path, capsys):
  tiny.write_pair(tmp_path)
  file = tmp_path / 'draft' / 'config.json'
  attributes = json.loads(file.read_text())
  file.write_text(json.dumps(attributes | {'sliding_window': 64}))
  x = experiment(folder)
  x.draft.path, x.prompts.path = str(tmp_path / 'draft'), 'nowhere.jsonl'
  refuse(x)
  found = last_line(capsys)
  assert list(found['models']) == ['target']
  unsupported, missing = found['refused']
  assert unsupported.startswith('draft.path: ')
  assert 'sliding_window = 64' in unsupported
  assert missing.startswith('prompts.path: nowhere.jsonl does not exist')
  # `build` stops at the first of them, before any weights.
  with pytest.raises(ValueError, match='sliding_window = 64'):
    load.load_experiment(plan(x))


def test_one_prompt_of_the_command_line(folder, capsys):
  x = experiment(folder)
  x.prompt = 'def f(x):'
  inspect.main(x)
  found = last_line(capsys)
  assert found['prompts']['prompt']['available'] == 1
  assert found['refused'] == []


def test_a_mesh_is_planned_without_its_devices(folder, capsys):
  """What each device would hold is shown; that there are none is refused."""
  x = experiment(folder)
  inspect.main(x)
  whole = last_line(capsys)
  x.mesh.data, x.mesh.model, x.batch = 64, 2, 64
  x.mesh.split_draft = False
  refuse(x)
  found = last_line(capsys)
  batch, reason = found['refused']
  assert batch.startswith('batch 64 is more than the 2 prompts')
  assert 'needs 128 devices, but there are 1' in reason
  one, many = whole['bytes_per_device'], found['bytes_per_device']
  # Two rows of the whole against one; one head of keys and values stays whole.
  assert many['cache'] * 2 == one['cache']
  assert one['parameters'] == whole['models']['target']['bytes_per_device']
  assert one['parameters'] / 2 < many['parameters'] < one['parameters']
  x.mesh.split_draft = True
  refuse(x)
  assert last_line(capsys)['bytes_per_device']['drafts'] < many['drafts']


def test_nobody_knows_whether_a_draft_without_a_tokenizer_fits(
  folder, tmp_path, capsys
):
  """Sizes that are the same are no proof."""
  draft = tmp_path / 'draft'
  shutil.copytree(folder / 'draft', draft)
  for file in draft.glob('*token*'):
    file.unlink()
  x = experiment(folder)
  x.draft.path = str(draft)
  inspect.main(x)
  out = capsys.readouterr().out
  assert 'shares vocabulary      unknown: it has no tokenizer' in out
  found = json.loads(out.splitlines()[-1])
  assert found['models']['draft lm']['shares_vocabulary'] is None
