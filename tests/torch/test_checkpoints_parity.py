"""Checkpoints against transformers: the same weights, the same logits."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints
from specjax.models import transformer

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

pytestmark = pytest.mark.parity

OPTIONS = {
  'untied': {},
  'tied': {'tie_word_embeddings': True},
  'biased': {'attention_bias': True, 'mlp_bias': True},
  'gelu': {'hidden_act': 'gelu', 'rope_parameters': {'rope_theta': 500.0}},
  'relu': {'hidden_act': 'relu', 'num_key_value_heads': 4},
}


def score_torch(reference, tokens):
  with torch.no_grad():
    return reference(torch.tensor(tokens)).logits.numpy()


@pytest.fixture(params=OPTIONS.values(), ids=list(OPTIONS))
def reference(request):
  sizes = {
    'vocab_size': 50,
    'hidden_size': 32,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'head_dim': 6,
    'intermediate_size': 20,
    'max_position_embeddings': 64,
    'eos_token_id': None,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0},
  }
  options = sizes | request.param
  options['rope_parameters'] = {'rope_type': 'default'} | options[
    'rope_parameters'
  ]
  torch.manual_seed(0)
  model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))
  with torch.no_grad():
    # Biases start at 0 and norms at 1, which would hide a mix-up, and the
    # other weights at 0.02, where every activation is a straight line. Much
    # larger weights amplify rounding beyond the tolerance.
    for name, p in model.named_parameters():
      p.copy_(torch.randn_like(p) * (1 if 'norm' in name else 0.15))
  return model.eval()


def test_logits_and_greedy_texts_are_those_of_transformers(reference, tmp_path):
  tokens = np.random.default_rng(0).integers(0, 50, (3, 40))
  expected = score_torch(reference, tokens)
  # A comparison of flat logits would prove nothing.
  assert expected.std() > 0.3

  reference.save_pretrained(tmp_path / 'theirs')
  model, params = checkpoints.load(tmp_path / 'theirs')
  logits = transformer.score(model, params, jnp.asarray(tokens))
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)

  checkpoints.save(tmp_path / 'ours', model, params, dtype=jnp.float32)
  loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / 'ours', dtype=torch.float32, output_loading_info=True
  )
  assert not any(report[name] for name in ('missing_keys', 'unexpected_keys'))
  np.testing.assert_array_equal(score_torch(loaded, tokens), expected)

  prompt = tokens[:1, :5]
  theirs = loaded.generate(
    torch.tensor(prompt), max_new_tokens=20, do_sample=False
  ).numpy()
  ours = np.zeros((1, 25), prompt.dtype)
  ours[:, :5] = prompt
  for i in range(5, 25):
    # Causal: what comes after i does not matter yet.
    row = transformer.score(model, params, jnp.asarray(ours))[:, i - 1]
    ours[:, i] = np.asarray(row.argmax(-1))
  np.testing.assert_array_equal(ours, theirs)


def test_bfloat16_files_are_read_without_torch_types(reference, tmp_path):
  reference.to(torch.bfloat16).save_pretrained(tmp_path / 'a')
  _, params = checkpoints.load(tmp_path / 'a')
  expected = reference.model.embed_tokens.weight.detach().float().numpy()
  np.testing.assert_array_equal(params['embedding'], expected)


def test_shards_of_transformers_are_read(reference, tmp_path):
  reference.save_pretrained(tmp_path / 'whole')
  reference.save_pretrained(tmp_path / 'shards', max_shard_size='10KB')
  assert not (tmp_path / 'shards' / 'model.safetensors').exists()
  model, whole = checkpoints.load(tmp_path / 'whole')
  same, shards = checkpoints.load(tmp_path / 'shards')
  assert same is model
  tokens = jnp.arange(10)[None]
  np.testing.assert_array_equal(
    transformer.score(model, whole, tokens),
    transformer.score(model, shards, tokens),
  )
