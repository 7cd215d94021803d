"""Models of `google-tunix`, compared with its own sampler."""

import pytest

pytest.importorskip('tunix')

from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.gemma import model as gemma
from tunix.models.llama3 import model as llama3
from tunix.models.qwen2 import model as qwen2

import specjax
from experiments.own_models import draw, tunix, tunix_gemma3
from tests.support import package_models

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

_SIZES = dict(embed_dim=32, hidden_dim=64, num_heads=4, num_kv_heads=2)


def build(kind, layers: int):
  """Returns a module of any kind."""
  sizes = _SIZES | {'num_layers': layers, 'head_dim': 8}
  if kind is gemma.Gemma:
    kinds = gemma.AttentionType.LOCAL_SLIDING, gemma.AttentionType.GLOBAL
    config = gemma.ModelConfig(
      **sizes,
      num_embed=61,
      final_logit_softcap=30.0,
      attn_logits_soft_cap=50.0,
      use_post_attn_norm=True,
      use_post_ffw_norm=True,
      attention_types=kinds * layers,
      sliding_window_size=8,
    )
  else:
    module = qwen2 if kind is qwen2.Qwen2 else llama3
    config = module.ModelConfig(
      **sizes, vocab_size=61, rope_theta=1_000_000, norm_eps=1e-6
    )
  return kind(config, rngs=nnx.Rngs(0))


def sample(module, prompts):
  """Returns the greedy texts of the package, with the token that ends one."""
  sizes = module.config
  cache = CacheConfig(128, sizes.num_layers, sizes.num_kv_heads, sizes.head_dim)
  texts = [' '.join(map(str, prompt)) for prompt in prompts]
  # Prompts of a batch are padded to a power of two unless told otherwise.
  longest = max(map(len, prompts))
  out = Sampler(module, package_models.Ids(), cache)(
    texts, package_models.NEW, longest
  )
  tokens = [text.tolist() for text in out.tokens]
  return [x if len(x) == package_models.NEW else [*x, 0] for x in tokens]


def check_module(target, smaller, module, alone=False):
  specjax.check_model(target.model, target.params)
  nnx.update(module, target.params)
  prompts = package_models.prompts(61)
  if alone:
    expected = [sample(module, [prompt])[0] for prompt in prompts]
  else:
    expected = sample(module, prompts)
  package_models.check_target(target, smaller, expected)


@pytest.mark.parametrize(
  ('kind', 'noise'),
  [(qwen2.Qwen2, 0.2), (llama3.Llama3, 0.2), (gemma.Gemma, 0.05)],
)
def test_texts_are_those_of_the_sampler(kind, noise):
  target, smaller = (
    specjax.Target.of(
      tunix.adapt(module, 1024),
      draw(nnx.state(module), layers, noise),
      eos=(0,),
    )
    for layers in (2, 1)
    for module in (build(kind, layers),)
  )
  # Its windows count the padding before a shorter text of a batch.
  check_module(target, smaller, build(kind, 2), alone=kind is gemma.Gemma)


def test_texts_of_qwen3_are_those_of_the_sampler():
  smaller = tunix.load(vocab=61, seed=1, layers=1)
  check_module(tunix.load(vocab=61), smaller, tunix.tiny(vocab=61))


def test_windows_of_gemma3_are_those_of_the_sampler():
  smaller = tunix_gemma3.load(vocab=61, seed=1, layers=1)
  check_module(
    tunix_gemma3.load(vocab=61), smaller, tunix_gemma3.tiny(vocab=61)
  )
