"""Bad input: one clear error that names the field, before any work."""

import dataclasses
import json
import shutil
import types

import jax
import numpy as np
import pytest

from configs import certify, drafters, embedded_tables, quickstart
from specjax.bench import drafter_facts, load, memory, results
from specjax.bench.config import Candidate, Certificate
from specjax.bench.plan import plan, plan_drafter
from specjax.checkpoints.vocabularies.reading import Spelled
from specjax.drafters import lm
from specjax.drafters.shapes import policies
from specjax.errors import UserError
from specjax.models.config import GatedDelta, Latent, TransformerConfig
from specjax.models.own import Sizes
from specjax.types import Target
from tests.support import tiny
from tests.support.processes import ROOT


def test_a_drafter_by_its_name(folder):
  x = tiny.experiment(folder, candidates={}, drafters=('ngram',), gammas=(3,))
  (method,) = load.load_experiment(plan(x)).methods
  assert (method.drafter, method.gamma) == ('ngram', 3)
  # A candidate wins over a drafter of the same name.
  lookup = {'lm': Candidate('ngram', 2)}
  x = tiny.experiment(folder, candidates=lookup, drafters=('lm',))
  assert plan(x).drafters['lm'].load == 'specjax.drafters.ngram.load'


def test_short_names_have_the_folder_of_full_ones(folder):
  path = str(folder / 'draft')

  def experiment(load, rule, policy):
    inner = Candidate(load('lm'), 2, path, {'policy': policy('heuristic:2')})
    options = {'inner': inner}
    staged = Candidate(load('cascade'), 2, path, options, (rule('block'),))
    return tiny.experiment(
      folder,
      candidates={'staged': staged},
      drafters=('staged', load('lm') + f':{path}'),
      verifiers=(rule('token'), rule('lenience:0.5')),
    )

  full = experiment(
    'specjax.drafters.{}.load'.format,
    'specjax.verify.{}'.format,
    'specjax.drafters.shapes.policies.{}'.format,
  )
  short = experiment(str, str, str)
  assert results.settings_of(short) == results.settings_of(full)
  assert (
    'specjax.verify.lenience:0.5' in results.settings_of(short)['verifiers']
  )


def test_settings_have_what_was_asked_for(folder):
  x = tiny.experiment(folder)
  usual, own = results.settings_of(x), results.default_folder(x)
  x.batches, x.dtype, x.prompts.turns = (1, 2), 'float32', 0
  more = {'batches': [1, 2], 'dtype': 'float32'}
  more['prompts'] = usual['prompts'] | {'turns': 0}
  assert results.settings_of(x) == usual | more
  assert results.default_folder(x) != own
  whole, one = Certificate(), Certificate(rule='specjax.verify.token')
  assert results.default_folder(whole).endswith('certify-00104b')
  assert results.default_folder(one) != results.default_folder(whole)


@pytest.mark.parametrize('name', ['', 'a/b', '/a', 'a/'])
def test_a_name_that_no_folder_can_have_is_refused(name):
  with pytest.raises(UserError, match=r'^name '):
    results.default_folder(Certificate(name=name))


def test_nothing_changes_a_plan(folder):
  x = tiny.experiment(folder)
  made = plan(x)
  x.prompts.count, x.mesh.data = 99, 7
  assert (made.prompts.count, made.mesh.data) == (2, 1)
  with pytest.raises(dataclasses.FrozenInstanceError):
    made.batch = 3


def levels(top: str, middle: str, gamma: int = 2, **options) -> Candidate:
  """A cascade of a cascade of a lookup."""
  lowest = Candidate('specjax.drafters.ngram.load', gamma, options=options)
  load = 'specjax.drafters.cascade.load'
  inner = Candidate(load, 3, middle, {'inner': lowest})
  return Candidate(load, 4, top, {'inner': inner})


def test_a_candidate_may_draft_for_a_candidate(folder, tmp_path):
  small = tmp_path / 'small'
  shutil.copytree(folder / 'draft', small)
  staged = levels(str(folder / 'draft'), str(small))
  x = tiny.experiment(folder, candidates={'staged': staged}, batch=2)
  (method,) = load.load_experiment(plan(x)).methods
  assert (method.drafter, method.draft) == ('staged', 'draft + small')
  # Each level adds the slots of what drafts for it.
  assert (method.spec.drafter.depth, method.spec.drafter.beyond) == (4, 3 + 2)
  top, (middle, lowest) = method.params.drafter
  assert lowest is None
  assert outline(top) == outline(middle)
  assert method.single.spec.drafter.depth == 1
  described = load.survey(plan(x)).described
  assert list(described) == ['target', 'draft staged', 'draft staged.inner']


def outline(params):
  return [x.shape for x in jax.tree.leaves(params)]


@pytest.mark.parametrize(
  ('top', 'middle', 'options', 'message'),
  [
    ('target', 'draft', {}, 'drafter staged and target.path are the same'),
    ('draft', 'draft', {}, 'staged.inner and path of the drafter staged are'),
    ('draft', 'nothing', {}, 'path of the drafter staged.inner: .* is no dir'),
    (
      'draft',
      'nothing',
      {'gamma': 0},
      r'candidates\.staged\..*\.inner\.gamma must be .* at least 1, got 0',
    ),
  ],
)
def test_levels_that_make_no_sense_are_refused(
  folder, top, middle, options, message
):
  paths = [str(folder / name) if name else '' for name in (top, middle)]
  x = tiny.experiment(folder, candidates={'staged': levels(*paths, **options)})
  with pytest.raises(ValueError, match=message):
    load.load_experiment(plan(x))


def draft_of(folder, options=None, *rules):
  """A candidate that is a language model, with rules of its own."""
  rules = tuple(f'specjax.verify.{rule}' for rule in rules)
  path = str(folder / 'draft')
  return Candidate('specjax.drafters.lm.load', 2, path, options or {}, rules)


def test_a_drafter_may_have_rules_and_a_policy_of_its_own(folder):
  options = {'policy': 'specjax.drafters.shapes.policies.confidence:0.4'}
  draft = draft_of(folder, options, 'block', 'typical:0.1,0.2')
  ngram = Candidate('specjax.drafters.ngram.load', 2)
  x = tiny.experiment(folder, candidates={'draft': draft, 'ngram': ngram})
  built = load.load_experiment(plan(x))
  assert [(m.drafter, m.verifier) for m in built.methods] == [
    ('draft', 'block'),
    ('draft', 'typical:0.1,0.2'),
    ('ngram', 'token'),
  ]
  spec = built.methods[0].spec
  model, _ = lm.read(Target(spec.target, max_length=16 + 12), draft.path)
  assert spec.drafter == lm.make(model, 2, policies.confidence(0.4))
  one, _, other = (m.brings for m in built.methods)
  assert one['options'] == options
  # Embedding and head of 2048 x 32, a layer, and the norms around it.
  layer = 32 * 16 * (2 + 1 + 1) + 16 * 2 * 32 + 3 * 32 * 64 + 2 * 32
  assert one['parameters'] == 2 * 2048 * 32 + layer + 32
  assert one['bytes'] == 4 * one['parameters']
  assert one['training'] is None
  assert (other['parameters'], other['bytes']) == (0, 0)
  assert other['load'] == 'specjax.drafters.ngram.load'


def test_a_rule_of_its_own_that_does_not_take_its_drafts(folder):
  tree = draft_of(folder, {'widths': (2,)}, 'block')
  x = tiny.experiment(folder, candidates={'tree': tree})
  with pytest.raises(ValueError, match=r'block does not take .* \'tree\''):
    load.load_experiment(plan(x))


def test_a_tree_has_the_draft_length_that_it_is_deep(folder):
  """Whatever was asked for, and each depth once."""
  draft = draft_of(folder, {'parents': (0, 0, 1)}, 'recursive')
  x = tiny.experiment(folder, candidates={'tree': draft}, gammas=(4, 2, 1))
  methods = load.load_experiment(plan(x)).methods
  assert [m.gamma for m in methods] == [2, 1]
  assert [m.spec.drafter.depth for m in methods] == [2, 1]


@pytest.mark.parametrize(
  ('name', 'config'),
  [
    ('quickstart', quickstart.get_config),
    ('certificate', certify.get_config),
    ('drafters/timed', drafters.get_config),
    ('embedded/lenience', lambda: embedded_tables.get_config('lenience')),
  ],
)
def test_committed_rows_are_continued(name, config):
  """The settings are those that they were made with."""
  stored = (ROOT / 'results' / name / 'config.json').read_text()
  assert results.settings_of(config()) == json.loads(stored)


def _trained(folder, **fields):
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(fields))
  return str(folder)


def test_what_training_cost_is_added_up(tmp_path):
  cost = {'seconds': 60.0, 'tokens': 1000, 'steps': 10, 'machine': 'abacus'}
  outer = _trained(tmp_path / 'a', training=cost, hits=[[6, 3]], counted=[12])
  other, silent = _trained(tmp_path / 'b'), _trained(tmp_path / 'c')
  beside = cost | {'machine': 'slide rule', 'together': 5}
  (tmp_path / 'b' / 'training.json').write_text(json.dumps(beside))

  def cascade(path):
    inner = Candidate('lm', 2, path, {'widths': (2, 2)})
    return plan_drafter(
      'staged', Candidate('cascade', 2, outer, {'inner': inner})
    )

  params = {'w': np.zeros((2, 3), np.int8), 'scale': np.zeros(3, np.float32)}
  found = drafter_facts.describe(cascade(other), params)
  assert (found['parameters'], found['bytes']) == (9, 18)
  assert found['training'] == {
    'seconds': 120,
    'tokens': 2000,
    'steps': 20,
    'together': 5,
    'machine': 'abacus and slide rule',
  }
  assert found['guesses'] == {'hits': [[6, 3]], 'counted': [12]}
  # As they come back from a file of rows.
  inner = found['options']['inner']
  assert inner['options']['widths'] == [2, 2]
  assert inner['load'] == 'specjax.drafters.lm.load'
  alone = plan_drafter('alone', Candidate('lm', 2, outer))
  assert drafter_facts.training(alone) == cost | {'together': 1}
  # What is not known of a part is not known of the whole.
  assert drafter_facts.training(cascade(silent)) is None
  ngram = plan_drafter('ngram', Candidate('ngram', 2))
  assert drafter_facts.training(ngram) is None


def test_tokens_without_a_place_of_their_own_are_not_shared():
  planned = plan_drafter('one', Candidate('ngram', 2))
  weights = {'w': np.zeros(5, np.float16)}
  for places, shared in (([0, 2, 1], 3), ([0, 3, 2, 3, 1], 3)):
    tables = types.SimpleNamespace(places=np.array(places))
    found = drafter_facts.describe(planned, Spelled(weights, tables))
    assert found['vocabulary'] == {'shared': shared, 'of': len(places)}
    assert (found['parameters'], found['bytes']) == (5, 10)


@pytest.mark.parametrize(
  ('count', 'rows'), [(1, 1), (16, 16), (17, 9), (32, 16), (33, 11)]
)
def test_16_texts_are_watched_at_once_in_equal_parts(count, rows):
  assert memory.rows_watched(count) == rows


SMALL = TransformerConfig(512, 64, 4, 4, 2, 16, 128, 256)
STATES = GatedDelta((0, 1), 2, 4, 8, 16, 4)


@pytest.mark.parametrize(
  ('config', 'slots', 'entries', 'wide'),
  [
    # The MLP, six times the width, and keys and values of four layers.
    (SMALL, 128, 2 * 128 + 6 * 64 + 4 * 2 * 32, 12 * 4 * 128),
    # Of a model of other code the MLP is four times as wide.
    (
      Sizes(512, 64, 4, 2, 16, 256), 128,
      2 * 256 + 6 * 64 + 4 * 2 * 32, 12 * 2 * 128,
    ),
    # Latents of 32 entries and 8 that are turned, as queries of four heads.
    (
      dataclasses.replace(SMALL, num_kv_heads=1, latent=Latent(32, 8, 16, 16)),
      128, 2 * 128 + 6 * 64 + 4 * 40 + 2 * 4 * 40, 12 * 4 * 128,
    ),
    # Two layers with states, of 96 channels and 64 values, while the cache is
    # small.
    (
      dataclasses.replace(SMALL, recurrent=STATES), 128,
      2 * 128 + 6 * 64 + 2 * 2 * 32, 16 * 4 * 128 + 32 * (96 + 64),
    ),
    (
      dataclasses.replace(SMALL, recurrent=STATES), 1024,
      2 * 128 + 6 * 64 + 2 * 2 * 32, 12 * 4 * 1024,
    ),
  ],
)  # fmt: skip
def test_bytes_of_activations_of_a_token(config, slots, entries, wide):
  """Entries in the dtype of the model, beside floats that it makes."""
  for dtype, size in (('float32', 4), ('bfloat16', 2)):
    assert memory._width(config, dtype, slots) == size * entries + wide


def test_memory_is_charged_once_for_all_draft_lengths(folder, monkeypatch):
  monkeypatch.setattr(memory, 'of_process', lambda: 0)
  plans = (plan(tiny.experiment(folder, gammas=n)) for n in ((3,), (1, 2, 3)))
  one, other = (
    memory.predict(x, load.survey(x).described, 16, 2) for x in plans
  )
  assert one == other
  assert one.drafts > 0


def test_what_a_drafter_remembers_beside_a_cache_is_known():
  """A table of k tokens for each of the target's, also where it is an inner."""
  for candidates in (1, 3):
    table = Candidate('recycling', 2, options={'candidates': candidates})
    for one in (table, Candidate('cascade', 2, 'a', {'inner': table})):
      planned = plan_drafter('one', one)
      assert planned.remembered(SMALL) == candidates * 4 * SMALL.vocab_size


@pytest.mark.slow
def test_a_draft_is_read_once_in_each_layout(folder, monkeypatch):
  reads = []
  read = load.load_drafter

  def count(drafter, target):
    reads.append(drafter.name)
    return read(drafter, target)

  monkeypatch.setattr(load, 'load_drafter', count)
  x = tiny.experiment(folder, drafters=('draft',), gammas=(1, 2, 3), quick=True)
  built = load.load_experiment(plan(x))
  layouts = len(built.forms)
  built.race()
  assert reads == ['draft'] * layouts
