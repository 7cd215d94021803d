"""A sampler of `google-tunix` that speculates, compared with theirs."""

import pytest

pytest.importorskip('tunix')

import jax
import numpy as np
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler

from experiments.own_models import tunix
from experiments.own_models.tunix_sampler import SpeculativeSampler
from specjax.drafters import lm, ngram
from tests.support import package_models
from tests.support.package_models import Ids

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

_CACHE = CacheConfig(128, 2, 2, 8)


def _module(seed=0):
  return nnx.merge(
    nnx.graphdef(tunix.tiny(vocab=61)), tunix.load(seed, vocab=61).params
  )


def _texts():
  return [' '.join(map(str, ids)) for ids in package_models.prompts(61)]


def _own_draft(target):
  return lm.of(target, target.model, target.params)


def _fields(out):
  return {
    'text': out.text,
    'tokens': [text.tolist() for text in out.tokens],
    'prompts': out.padded_prompt_tokens.tolist(),
  }


def test_greedy_outputs_are_those_of_their_sampler():
  theirs = Sampler(_module(), Ids(), _CACHE)
  ours = SpeculativeSampler(_module(), Ids(), _CACHE, _own_draft)
  for options in (
    {},
    {'echo': True, 'max_prompt_length': 40},
    {'pad_output': True, 'eos_tokens': [20, 30]},
    {'pad_output': True, 'echo': True},
    {'forbidden_tokens': [20, 30, 57]},
  ):
    a, b = (x(_texts(), 24, temperature=1.0, **options) for x in (theirs, ours))
    assert _fields(a) == _fields(b), options
  a, b = (x(_texts(), 24, return_logprobs=True) for x in (theirs, ours))
  for x, y in zip(a.logprobs, b.logprobs, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-4)


def test_draws_are_repeated_by_their_seed_and_have_log_probabilities():
  ours = SpeculativeSampler(_module(), Ids(), _CACHE, ngram.load)
  options = {'temperature': 1.0, 'top_p': 1.0, 'return_logprobs': True}
  a, b, c = (
    ours(_texts(), 24, seed=seed, **options)
    for seed in (7, 7, jax.random.PRNGKey(1))
  )
  assert _fields(a) == _fields(b) != _fields(c)
  prompts = package_models.prompts(61)
  for prompt, new, found in zip(prompts, a.tokens, a.logprobs, strict=True):
    text = np.array([[*prompt, *new]])
    mask = np.tri(text.size, dtype=bool)[None]
    logits, _ = _module()(text, np.arange(text.size)[None], None, mask)
    said = np.asarray(jax.nn.log_softmax(logits[0]))[len(prompt) - 1 : -1]
    expected = said[np.arange(len(new)), new]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_new_weights_are_used_and_compile_nothing(caplog):
  ours = SpeculativeSampler(_module(), Ids(), _CACHE, ngram.load)
  first = ours(_texts(), 24)
  ours.transformer_state = nnx.variables(_module(1))
  with jax.log_compiles():
    second = ours(_texts(), 24)
  assert 'Compiling' not in caplog.text
  theirs = Sampler(_module(1), Ids(), _CACHE)(_texts(), 24)
  assert _fields(second) == _fields(theirs) != _fields(first)


def test_what_only_their_sampler_does_is_refused():
  ours = SpeculativeSampler(_module(), Ids(), _CACHE)
  for options in (
    {'return_logits': True},
    {'beam_size': 2},
    {'top_p': 0.9, 'temperature': 0.7, 'return_logprobs': True},
  ):
    with pytest.raises(ValueError, match=next(reversed(options))):
      ours(_texts(), 4, **options)
