"""Gemma 3 of the package `gemma`, compared with its own sampler."""

import dataclasses

import pytest

pytest.importorskip('gemma')

import jax
import jax.numpy as jnp
import numpy as np
from gemma import gm

import specjax
from experiments.own_models import draw, gemma
from specjax.drafters import lm
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
  target = gemma.load(vocab=61)
  specjax.check_model(target.model, target.params)
  prompts = package_models.prompts(61)
  expected = sample(target, gemma.tiny(vocab=61), prompts, package_models.NEW)
  package_models.check_target(
    target, gemma.load(vocab=61, seed=3, layers=1), expected
  )


def test_texts_of_gemma3n_are_those_of_the_sampler():
  """Its last layers read keys and values of others, so the cache is smaller."""
  whole = gm.nn.Gemma3n_E2B(text_only=True).config
  local, *_, far = whole.attention_types[:5]
  config = dataclasses.replace(
    whole,
    num_embed=61,
    embed_dim=32,
    hidden_dim=64,
    num_heads=4,
    head_dim=8,
    num_kv_heads=2,
    attention_types=(local, far, local),
    sliding_window_size=8,
    per_layer_input_dim=8,
    laurel_rank=4,
    activation_sparsity_pattern=(0.5, 0.0, 0.0),
    kv_cache_sharing_config=dataclasses.replace(
      whole.kv_cache_sharing_config, frac_shared_layers=1 / 3
    ),
  )
  model = gm.nn.Gemma3n_E2B(config=config, dtype=jnp.float32)
  fresh = model.init(jax.random.key(0), jnp.zeros((1, 1), int))['params']
  target = specjax.Target.of(
    gemma.adapt(model, 1024), draw(fresh, 0, 0.05), eos=(1,)
  )
  specjax.check_model(target.model, target.params)
  prompts = package_models.prompts(61)
  expected = sample(target, model, prompts, package_models.NEW)
  draft = lm.of(target, target.model, target.params, widths=(2,))
  for drafter in (None, draft):
    made = specjax.decode(
      target, drafter, prompts, new_tokens=package_models.NEW
    )
    assert made.tokens == expected
