"""Bad input: one clear error that names the field, before any work."""

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
