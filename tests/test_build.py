"""Bad input: one clear error that names the field, before any work."""

import shutil

import jax
import pytest

from experiments import build
from experiments.settings import Candidate, Checkpoint, Prompts, SamplingValues
from tests import tiny


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('pair')
  tiny.write_pair(path)
  return path


BAD_VALUES = [
  ({'gammas': (0,)}, 'gammas must be integers of at least 1, got 0'),
  ({'temperatures': (-0.5,)}, 'temperatures must be finite and at least 0'),
  ({'temperatures': ()}, 'temperatures is empty'),
  ({'sampling': SamplingValues(top_p=0.0)}, r'sampling\.top_p must be in'),
  ({'sampling': SamplingValues(top_p=1.5)}, r'sampling\.top_p must be in'),
  ({'sampling': SamplingValues(top_k=-1)}, r'sampling\.top_k must be'),
  ({'sampling': SamplingValues(min_p=1.0)}, r'sampling\.min_p must be'),
  (
    {'sampling': SamplingValues(repetition_penalty=0.0)},
    r'sampling\.repetition_penalty must be a finite number above 0',
  ),
  (
    {'sampling': SamplingValues(presence_penalty=2.5)},
    r'sampling\.presence_penalty must be in \[-2, 2\], got 2\.5',
  ),
  (
    {'sampling': SamplingValues(frequency_penalty=-3.0)},
    r'sampling\.frequency_penalty must be in',
  ),
  (
    {'sampling': SamplingValues(logit_bias=((2048, 1.0),))},
    r'sampling\.logit_bias must name tokens from 0 to 2047, got 2048',
  ),
  (
    {'sampling': SamplingValues(forbidden=(-1,))},
    r'sampling\.forbidden must name tokens from 0 to 2047, got -1',
  ),
  (
    {'sampling': SamplingValues(min_new_tokens=-1)},
    r'sampling\.min_new_tokens must be a whole number',
  ),
  ({'prompts': Prompts(domains=('poetry',))}, r'prompts\.domains must be'),
  ({'prompts': Prompts(count=0)}, r'prompts\.count must be at least 1'),
  ({'prompts': Prompts(length=0)}, r'prompts\.length must be at least 1'),
  ({'batch': 0}, 'batch must be at least 1'),
  ({'max_new_tokens': 0}, 'max_new_tokens must be at least 1'),
  ({'drafters': ('drft',)}, "drafters: 'drft' is unknown; choose from draft"),
  ({'drafters': ('no.such.load',)}, "'no.such.load' cannot be imported"),
  ({'verifiers': ('specjax.verify.tokn',)}, 'cannot be imported'),
  ({'verifiers': ('specjax.verify.walk',)}, 'is no rule'),
  ({'verifiers': ('specjax.verify.simulated:2',)}, r'must be in \[0, 1\]'),
]


@pytest.mark.parametrize(('changes', 'message'), BAD_VALUES)
def test_bad_value_names_the_field(folder, changes, message):
  with pytest.raises(ValueError, match=message):
    build.build(tiny.experiment(folder, **changes))


def test_bad_values_are_found_before_weights_are_read(tmp_path):
  """The checkpoint does not exist, and the other error comes first."""
  with pytest.raises(ValueError, match='gammas'):
    build.build(tiny.experiment(tmp_path, gammas=(0,)))


def test_missing_checkpoint(folder):
  x = tiny.experiment(folder, target=Checkpoint(str(folder / 'nothing')))
  with pytest.raises(ValueError, match='nothing'):
    build.build(x)


def test_beyond_positions(folder):
  with pytest.raises(ValueError, match=r'is 216, but the target has 128'):
    build.build(tiny.experiment(folder, max_new_tokens=200))


def test_unknown_option_of_a_drafter(folder):
  candidate = Candidate('specjax.drafters.ngram.load', 2, options={'depht': 1})
  x = tiny.experiment(folder, candidates={'ngram': candidate})
  with pytest.raises(ValueError, match='depht'):
    build.build(x)


def test_a_drafter_by_its_full_name(folder):
  names = ('specjax.drafters.ngram.load',)
  built = build.build(tiny.experiment(folder, drafters=names, gammas=(3,)))
  assert [(m.drafter, m.gamma) for m in built.methods] == [('ngram', 3)]


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
  x = tiny.experiment(folder, candidates={'staged': staged}, batch=4)
  (method,) = build.build(x).methods
  assert (method.drafter, method.draft) == ('staged', 'draft + small')
  # Each level adds the slots of what drafts for it.
  assert (method.spec.drafter.depth, method.spec.drafter.beyond) == (4, 3 + 2)
  top, (middle, lowest) = method.params.drafter
  assert lowest is None
  assert outline(top) == outline(middle)
  assert method.single.drafter.depth == 1
  _, described = build.survey(x)
  assert list(described) == ['target', 'draft staged', 'draft staged.inner']


def outline(params):
  return [x.shape for x in jax.tree.leaves(params)]


@pytest.mark.parametrize(
  ('top', 'middle', 'options', 'message'),
  [
    (
      'target',
      'draft',
      {},
      'path of the drafter staged and target.path are the same checkpoint',
    ),
    (
      'draft',
      'draft',
      {},
      'path of the drafter staged.inner and path of the drafter staged are',
    ),
    ('draft', 'nothing', {}, 'path of the drafter staged.inner: .* not exist'),
    (
      'draft',
      '',
      {'gamma': 0},
      r'gamma of the drafter staged\.inner\.inner must be .* at least 1, got 0',
    ),
  ],
)
def test_levels_that_make_no_sense_are_refused(
  folder, top, middle, options, message
):
  paths = [str(folder / name) if name else '' for name in (top, middle)]
  x = tiny.experiment(folder, candidates={'staged': levels(*paths, **options)})
  with pytest.raises(ValueError, match=message):
    build.build(x)


def test_an_unknown_option_of_an_inner_drafter(folder):
  lowest = Candidate('specjax.drafters.ngram.load', 2, options={'depht': 1})
  staged = Candidate(
    'specjax.drafters.cascade.load',
    2,
    str(folder / 'draft'),
    {'inner': lowest},
  )
  x = tiny.experiment(folder, candidates={'staged': staged})
  with pytest.raises(ValueError, match=r'ngram\.load: .*depht'):
    build.build(x)
