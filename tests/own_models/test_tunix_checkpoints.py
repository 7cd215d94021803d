"""Directories that `google-tunix` and specjax both read, and what it writes."""

import pytest

pytest.importorskip('tunix')

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx
from tunix.models import safetensors_saver
from tunix.models.qwen3 import params as qwen3_params

import specjax
from experiments.own_models import draw, tunix
from specjax import checkpoints
from specjax.checkpoints.families import conversion
from specjax.drafters import lm
from specjax.models import transformer
from tests.support import package_models

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

_SIZES = dict(
  model_type='qwen3',
  vocab_size=61,
  hidden_size=32,
  intermediate_size=64,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=8,
  rope_theta=1_000_000.0,
  tie_word_embeddings=False,
  max_position_embeddings=256,
)


@pytest.fixture(scope='module')
def pair(tmp_path_factory):
  """Directories of a target and a draft with random weights."""
  folder = tmp_path_factory.mktemp('pair')
  for layers, name in ((2, 'target'), (1, 'draft')):
    family, config = conversion.read_attributes(
      _SIZES | {'num_hidden_layers': layers}
    )
    model = transformer.build(config)
    params = draw(model.init(jax.random.key(layers)), layers)
    checkpoints.save(
      folder / name, model, params, None, 'float32', (0,), family
    )
  return folder


def _module(directory):
  return qwen3_params.create_model_from_safe_tensors(
    str(directory), tunix.tiny(vocab=61).config, dtype=jnp.float32
  )


def test_a_published_draft_speculates_for_a_target_of_tunix(pair):
  module = _module(pair / 'target')
  target = specjax.Target.of(
    tunix.adapt(module, 256), nnx.state(module), eos=(0,)
  )
  draft = lm.load(target, pair / 'draft')
  prompts = package_models.prompts(61)
  made = specjax.decode(target, draft, prompts, new_tokens=24)
  ours = specjax.load(pair / 'target', layout='whole')
  assert (
    made.tokens == specjax.decode(ours, None, prompts, new_tokens=24).tokens
  )
  assert made.counts.drafted.sum() > 0


def test_what_tunix_merges_is_read(pair, tmp_path, monkeypatch):
  """One file of the type of its base, whose other files are copied."""
  provider = qwix.LoraProvider(
    module_path='.*(q_proj|down_proj)', rank=2, alpha=4
  )
  module = _module(pair / 'target')
  module = qwix.apply_lora_to_model(
    module, provider, **module.get_model_input()
  )
  adapters = nnx.state(module, nnx.LoRAParam)
  nnx.update(module, draw(adapters, 3))
  save = safetensors_saver.safe_np.save_file
  monkeypatch.setattr(  # It hands over arrays of JAX, which 0.8 does not take.
    safetensors_saver.safe_np,
    'save_file',
    lambda x, path: save(jax.tree.map(np.asarray, x), path),
  )
  qwen3_params.save_lora_merged_model_as_safetensors(
    str(pair / 'target'), str(tmp_path / 'merged'), module, 2, 4.0
  )
  text = np.array(package_models.prompts(61)[2:])
  places, mask = np.arange(text.size)[None], np.tri(text.size, dtype=bool)[None]
  expected, _ = module(text, places, None, mask)
  base, merged = (
    specjax.load(x, layout='whole')
    for x in (pair / 'target', tmp_path / 'merged')
  )
  said = [transformer.score(x.model, x.params, text) for x in (merged, base)]
  np.testing.assert_allclose(said[0], expected, atol=2e-4)
  assert np.abs(said[1] - expected).max() > 0.1
