"""Programs draft with whatever the directory of a draft holds."""

import functools
import json

import jax
import numpy as np
import pytest

from specjax import checkpoints
from specjax.bench import load
from specjax.bench.config import Candidate, Draft
from specjax.bench.plan import plan
from specjax.drafters import dflash, eagle
from specjax.drafters.dflash.module import sizes_of
from specjax.drafters.heads import files
from specjax.errors import UserError
from specjax.programs import export, inspect
from specjax.reports import run as run_report
from specjax.types import Target
from tests.support import models, tiny

SIZES = dict(width=32, num_heads=2, num_kv_heads=1, head_dim=16, mlp_width=64)


@pytest.fixture(scope='module')
def written(folder, tmp_path_factory):
  """A head of the tiny target: `own` as it is trained, `theirs` exported."""
  place = tmp_path_factory.mktemp('heads')
  model = checkpoints.describe(folder / 'target').model
  trained = eagle.trainable(model, join='pair', **SIZES)
  params = models.head_weights(trained.init, 0.3)
  own = {'target': checkpoints.fingerprint(folder / 'target')}
  files.save(place / 'own', trained.config | own, params)
  target = str(folder / 'target')
  export.write(str(place / 'own'), str(place / 'theirs'), target, 'a/b', 3)
  sizes = SIZES | {'block': 4, 'layers': 1, 'mask_token': 0}
  del sizes['width']
  trained = dflash.trainable(model, **sizes)
  params = jax.jit(dflash.Head(model, sizes_of(trained.config)).init)
  files.save(place / 'block', trained.config | own, params(jax.random.key(0)))
  export.write(str(place / 'block'), str(place / 'blocks'), target, '', None)
  return place


def experiment(folder, **changes):
  usual = {'drafters': ('lm',), 'max_new_tokens': 4}
  return tiny.experiment(folder, **usual | changes)


@pytest.mark.parametrize(
  ('kind', 'names'),
  [(eagle, ('own', 'theirs')), (dflash, ('block', 'blocks'))],
)
def test_an_exported_head_drafts_as_the_one_that_was_trained(
  folder, written, kind, names
):
  model = checkpoints.describe(folder / 'target').model
  fingerprint = functools.partial(checkpoints.fingerprint, folder / 'target')
  host = Target(model, fingerprint=fingerprint)
  own, theirs = (kind.load(host, written / name) for name in names)
  assert (own.pairing, theirs.pairing) == ('', 'unverified')
  assert own.make(3) == theirs.make(3)  # Of the same head, option by option.
  jax.tree.map(np.testing.assert_array_equal, own.params, theirs.params)


def test_heads_are_recognised(folder, written):
  """Names a head as the draft, in both forms, and as a candidate."""
  for name in ('own', 'theirs'):
    x = experiment(folder, draft=Draft(str(written / name)))
    (found,) = plan(x).drafters.values()
    assert (found.name, found.load) == (name, 'specjax.drafters.eagle.load')
    assert found.path == str(written / name)
  drafts = {
    'head': Candidate('lm', 2, found.path, {'beam': 2, 'nodes': 4}),
    'model': Candidate('lm', 2, str(folder / 'draft')),
  }
  found = plan(experiment(folder, candidates=drafts, drafters=())).drafters
  loads = {name: one.load.split('.')[-2] for name, one in found.items()}
  assert loads == {'head': 'eagle', 'model': 'lm'}


def test_a_run_says_that_the_pairing_is_unverified(folder, written, capsys):
  x = experiment(folder, draft=Draft(str(written / 'theirs')))
  built = load.load_experiment(plan(x))
  (method,) = built.methods
  assert method.brings['pairing'] == 'unverified'
  told = capsys.readouterr().err
  assert 'warning: theirs: ' in told
  assert 'names a/b as its target, and this one is called target' in told
  assert 'theirs: unverified pairing: no fingerprint says' in told
  rows = [{'drafter': 'b', 'pairing': 'unverified'}, {'drafter': 'a'}]
  assert 'Unverified pairing: b. No' in run_report.pairing(rows)
  assert run_report.pairing(rows[1:]) == ''


def test_inspect_describes_a_head(folder, written, capsys):
  x = experiment(folder, draft=Draft(str(written / 'theirs')))
  inspect.main(x)
  *lines, last = capsys.readouterr().out.splitlines()
  head = json.loads(last)['models']['draft theirs']
  assert head['format'] == 'EAGLE-3'
  assert head['taps'] == '0, 1'
  assert head['verifier'] == 'a/b'
  assert head['pairing'] == 'unverified'
  assert head['bytes'] == 2 * head['parameters']  # They are stored in 16 bits.
  assert any(line.startswith('  doubtful: ') for line in lines)


def test_the_head_of_another_target_is_refused_before_weights(
  written, tmp_path
):
  tiny.write_pair(tmp_path, vocab=2049)
  path = str(written / 'theirs')
  x = experiment(tmp_path, draft=Draft(path))
  with pytest.raises(UserError, match=r'^draft\.path: .* of 2048 tokens, and'):
    load.load_experiment(plan(x))
  (tmp_path / 'bad').mkdir()
  (tmp_path / 'bad/config.json').write_text('{}')
  (tmp_path / 'bad/model.safetensors').write_bytes(b'PK')
  x = experiment(tmp_path, draft=Draft(str(tmp_path / 'bad')))
  with pytest.raises(UserError, match=r'^draft\.path: .* is truncated or dam'):
    plan(x)


def test_what_cannot_be_exported_is_refused(folder, written, tmp_path):
  model = checkpoints.describe(folder / 'target').model
  target = str(folder / 'target')
  trained = eagle.trainable(model, **SIZES)
  own = {'target': checkpoints.fingerprint(target)}
  params = jax.jit(trained.init)(jax.random.key(0), None)
  files.save(tmp_path / 'linear', trained.config | own, params)
  with pytest.raises(UserError, match="join of the head is 'linear'"):
    export.write(str(tmp_path / 'linear'), str(tmp_path / 'to'), target, '', 3)
  other = str(folder / 'draft')
  with pytest.raises(UserError, match='was trained for another target'):
    export.write(str(written / 'own'), str(tmp_path / 'to'), other, '', 3)
  with pytest.raises(UserError, match='is in a published form already'):
    export.write(str(written / 'theirs'), str(tmp_path / 'to'), target, '', 3)
