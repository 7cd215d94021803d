"""Families against transformers itself: other options, and what we save."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.checkpoints.families import FAMILIES
from specjax.models import rotary, transformer
from tests.library import test_families

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from tests.support import store_family_outputs  # noqa: E402 (it needs torch)

pytestmark = pytest.mark.parity


@pytest.mark.parametrize('name', test_families.NAMES)
def test_other_options_agree_too_and_what_we_save_is_loaded(name, tmp_path):
  options = store_family_outputs.OTHERS[name]
  reference = store_family_outputs.make(name, **options)
  path = reference.write(tmp_path / 'theirs')
  model, params = checkpoints.load(path, max_length=test_families.LONGEST)
  test_families.assert_agrees(model, params, reference)

  ours, family = tmp_path / 'ours', FAMILIES[reference.config['model_type']]
  checkpoints.save(ours, model, params, dtype=jnp.float16, family=family)
  auto = transformers.AutoModelForCausalLM
  if reference.sources is not None:
    auto = transformers.AutoModelForSeq2SeqLM
  peer, report = auto.from_pretrained(
    ours, dtype=torch.float32, output_loading_info=True
  )
  assert not any(
    report[kind]
    for kind in ('missing_keys', 'unexpected_keys', 'mismatched_keys')
  )
  found = store_family_outputs.score(
    peer.eval(), reference.tokens, reference.sources
  )
  np.testing.assert_allclose(found, reference.logits, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', test_families.NAMES)
def test_other_options_speculate(name, tmp_path):
  reference = store_family_outputs.make(
    name, **store_family_outputs.OTHERS[name]
  )
  path = reference.write(tmp_path / 'theirs')
  model, params = checkpoints.load(path, max_length=test_families.LONGEST)
  test_families.assert_speculation_agrees(model, params, reference)


SHORT, LONG = [1.0, 1.1, 1.5, 2.0], [1.0, 2.0, 4.0, 9.0]
SCALINGS = {
  'linear': (rotary.Linear(3.0), {'factor': 3.0}),
  'dynamic': (rotary.Dynamic(2.0, 40), {'factor': 2.0}),
  'llama3': (
    rotary.Llama3(8.0, 1.0, 4.0, 32),
    {
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 32,
    },
  ),
  'yarn': (None, {'factor': 5.0, 'original_max_position_embeddings': 16}),
  'longrope': (
    None,
    {
      'short_factor': SHORT,
      'long_factor': LONG,
      'original_max_position_embeddings': 20,
    },
  ),
}


@pytest.mark.parametrize('length', [20, 40, 70])
@pytest.mark.parametrize('kind', SCALINGS)
def test_frequencies_are_those_of_transformers(kind, length):
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  from specjax.checkpoints.families import rope

  scaling, parameters = SCALINGS[kind]
  inner = {'rope_type': kind, 'rope_theta': 500.0} | parameters
  config = transformers.LlamaConfig(
    hidden_size=16,
    num_attention_heads=2,
    max_position_embeddings=40,
    rope_parameters=dict(inner),
  )
  expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
  inner.pop('rope_theta')
  read = rope.read_scaling(dict(inner), 40, tuple(rope.SCALINGS), 500.0, 8)
  assert scaling in (None, read)
  found, found_amplitude = read(500.0, 8, length)
  np.testing.assert_allclose(found, expected.numpy(), rtol=2e-6)
  assert found_amplitude == pytest.approx(amplitude, rel=1e-6)


def test_a_longer_run_scales_dynamically(tmp_path):
  """Beyond the checkpoint's maximum, for a text as long as the run."""
  peer = store_family_outputs.build('gpt_neox', 0)
  peer.save_pretrained(tmp_path / 'a')
  tokens = np.random.default_rng(0).integers(
    0, store_family_outputs.VOCAB, (1, 90)
  )
  model, params = checkpoints.load(tmp_path / 'a', max_length=90)
  assert model.config.max_positions == 90
  found = jax.jit(transformer.score, static_argnums=0)(
    model, params, jnp.asarray(tokens)
  )
  expected = np.asarray(store_family_outputs.score(peer, tokens))
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
  plain, _ = checkpoints.load(tmp_path / 'a')
  wrong = jax.jit(transformer.score, static_argnums=0)(
    plain, params, jnp.asarray(tokens)
  )
  assert np.abs(wrong - expected).max() > 0.01
