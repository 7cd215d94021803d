"""Gemma 3 of the package `gemma`, compared with its own sampler."""

import pytest

pytest.importorskip('gemma')

import numpy as np
from gemma import gm

import specjax
from experiments.own_models import gemma
from tests.support import package_models

pytestmark = pytest.mark.slow


class _Ends:
  EOS, END_OF_TURN = 1, 106


class _Ids(package_models.Ids):
  VERSION, FORBIDDEN_TOKENS, special_tokens = None, (), _Ends

  def encode(self, text, add_bos):
    return super().encode(text)


def sample(target, model, prompts, count):
  """Returns the greedy texts of the package, with the token that ends one."""
  sampler = gm.text.Sampler(
    model=model,
    params=target.params,
    tokenizer=_Ids(),
    pad_length=32,
    cache_length=128,
  )
  out = sampler.sample(
    [' '.join(map(str, prompt)) for prompt in prompts],
    max_new_tokens=count,
    return_state=True,
  )
  texts = np.asarray(out.tokens)[:, :count].tolist()
  return [text[: text.index(1) + 1] if 1 in text else text for text in texts]


def test_texts_are_those_of_the_sampler():
  target = gemma.load()
  specjax.check_model(target.model, target.params)
  prompts = package_models.prompts(61)
  expected = sample(target, gemma.tiny(), prompts, package_models.NEW)
  package_models.check_target(target, gemma.load(seed=3, layers=1), expected)
