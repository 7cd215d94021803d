"""The assistant of Gemma 4 against transformers, along a text."""

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafters import assistant
from specjax.models import prefill, transformer
from specjax.types import Context, Params
from tests.support import tiny_families

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from tests.support import store_family_outputs  # noqa: E402 (it needs torch)

pytestmark = pytest.mark.parity
VOCAB = tiny_families.VOCAB


def build(grouped: bool, width: int):
  """A random assistant for the tiny target, in float32."""
  options = tiny_families.OPTIONS['gemma4_text'] | {
    'hidden_size': 20,
    'hidden_size_per_layer_input': 0,
    'vocab_size_per_layer_input': 0,
    'use_double_wide_mlp': False,
    'num_kv_shared_layers': 4,
  }
  config = transformers.Gemma4AssistantConfig(
    text_config=transformers.Gemma4TextConfig(**options),
    backbone_hidden_size=width,
    use_ordered_embeddings=grouped,
    num_centroids=8,
    centroid_intermediate_top_k=3,
  )
  torch.manual_seed(1)
  model = transformers.Gemma4AssistantForCausalLM(config).eval()
  with torch.no_grad():
    for p in model.parameters():
      x = torch.randn_like(p)
      p.copy_(0.3 * x + 0.8 if p.ndim == 1 else x * p.shape[-1] ** -0.5)
    for name, p in model.named_buffers():
      if name.endswith('token_ordering'):
        p.copy_(torch.randperm(VOCAB))
  return model


@pytest.mark.parametrize('grouped', [False, True])
def test_logits_are_those_of_transformers(grouped, tmp_path):
  """After every beginning of a text, and one token further."""
  peer = store_family_outputs.build('gemma4_text', 1)
  other = build(grouped, peer.config.hidden_size)
  peer.save_pretrained(tmp_path / 'target')
  other.save_pretrained(tmp_path / 'assistant')
  target = specjax.load(str(tmp_path / 'target'), layout='whole')
  path = str(tmp_path / 'assistant')
  read = assistant._read(target, path, {})
  head = assistant.Head(target.model, read.config['module'])
  params = Params(target.params, read.params)

  text = np.random.default_rng(0).integers(0, VOCAB, 24)
  tokens, length = prefill.pad([text.tolist()], 128)
  cache = transformer.open_cache(target.model, target.params, 1, 128)
  cache, hidden = prefill.prefill(
    target.model, target.params, tokens, length, cache, (3,)
  )
  with torch.no_grad():
    out = peer.model(
      torch.tensor(text[None]), return_shared_kv_states=True, use_cache=False
    )
  for count in (2, 5, 11, 24):
    seen = count - 1
    ctx = Context(tokens, jnp.array([count]), cache, None, None)
    feature = head.feature(params, hidden[:, seen - 1 : seen, 0])
    np.testing.assert_allclose(
      feature[0, 0], out.last_hidden_state[0, seen - 1], rtol=0, atol=1e-4
    )
    shared = {
      kind: (k[:, :, :seen], v[:, :, :seen])
      for kind, (k, v) in out.shared_kv_states.items()
    }
    theirs = out.last_hidden_state[:, seen - 1 : seen]
    token = torch.tensor(text[None, seen:count])
    for _ in range(2):
      ours = head.say(params, ctx, jnp.asarray(token), feature)
      with torch.no_grad():
        own = peer.model.embed_tokens(token)
        expected = other(
          inputs_embeds=torch.cat([own, theirs], -1),
          position_ids=torch.tensor([[seen]]),
          shared_kv_states=shared,
        )
      logits = expected.logits[0, 0].numpy()
      found = np.asarray(ours.logits[0, 0])
      kept = np.isfinite(found)
      assert kept.sum() == (18 if grouped else VOCAB)
      # Tokens of other groups have all the least logit there.
      assert grouped or kept.all()
      assert not grouped or (logits[~kept] == logits.min()).all()
      np.testing.assert_allclose(found[kept], logits[kept], rtol=0, atol=2e-4)
      feature, theirs = ours.features, expected.last_hidden_state
      np.testing.assert_allclose(feature, theirs, rtol=0, atol=2e-4)
      token = expected.logits.argmax(-1)
