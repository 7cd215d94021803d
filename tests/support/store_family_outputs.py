"""Makes the references of `tests/support/family_outputs`: needs torch.

  python -m tests.support.store_family_outputs [family ...]

Every parameter is random: fresh models have biases 0 and norms 1, which would
hide a mix-up. Weights are rounded to float16, as they are stored, before
anything is computed. Of several seeds the first is taken whose greedy texts
nowhere hang on a rounding error.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers

from tests.support import family_outputs

MARGIN = 2e-3  # between the two largest logits of a greedy step
LENGTHS = tuple(range(1, 21))
VOCAB = 48

_LLAMA = dict(
  vocab_size=VOCAB,
  hidden_size=24,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=10,
  intermediate_size=20,
  max_position_embeddings=64,
)
_NO_HEAD_DIM = {k: v for k, v in _LLAMA.items() if k != 'head_dim'}
_ROPE = {'rope_theta': 500.0}
_SMALL = dict(vocab_size=VOCAB, max_position_embeddings=64)

# A text of any length has distances beyond the longest.
_T5 = dict(
  vocab_size=VOCAB,
  d_model=20,
  d_kv=6,
  d_ff=28,
  num_layers=2,
  num_heads=4,
  relative_attention_num_buckets=8,
  relative_attention_max_distance=12,
  decoder_start_token_id=0,
)

# Awkward options of each family: grouped queries, odd widths, windows shorter
# than the texts, scaled positions, tied and untied heads.
OPTIONS = {
  'llama': dict(
    **_LLAMA,
    attention_bias=True,
    mlp_bias=True,
    rope_parameters=_ROPE
    | dict(
      rope_type='llama3',
      factor=4.0,
      low_freq_factor=1.0,
      high_freq_factor=3.0,
      original_max_position_embeddings=24,
    ),
  ),
  'qwen2': dict(
    **_NO_HEAD_DIM,
    tie_word_embeddings=True,
    use_sliding_window=True,
    sliding_window=7,
    max_window_layers=1,
    rope_parameters=_ROPE
    | dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=16),
  ),
  'qwen3': dict(**_LLAMA, attention_bias=True, rope_parameters=_ROPE),
  'gpt2': dict(
    vocab_size=VOCAB, n_embd=20, n_layer=2, n_head=4, n_positions=64, n_inner=28
  ),
  'gpt_neox': dict(
    **_SMALL,
    hidden_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=28,
    rope_parameters=_ROPE
    | dict(rope_type='dynamic', factor=2.0, partial_rotary_factor=0.4),
  ),
  'opt': dict(
    **_SMALL,
    hidden_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=28,
    word_embed_proj_dim=20,
  ),
  'mistral': dict(**_LLAMA, sliding_window=6, rope_parameters=_ROPE),
  'phi3': dict(
    **_NO_HEAD_DIM,
    original_max_position_embeddings=64,
    sliding_window=9,
    rope_parameters=_ROPE
    | dict(
      rope_type='longrope',
      partial_rotary_factor=0.7,
      short_factor=[1.0, 1.5],
      long_factor=[2.0, 4.0],
    ),
  )
  | {'max_position_embeddings': 128},
  'gemma': dict(**_LLAMA, rope_parameters=_ROPE) | dict(num_key_value_heads=1),
  'gemma2': dict(
    **_LLAMA,
    query_pre_attn_scalar=14,
    sliding_window=5,
    attn_logit_softcapping=3.0,
    final_logit_softcapping=9.0,
    tie_word_embeddings=False,
    rope_parameters=_ROPE,
  ),
  'gemma3_text': dict(
    **_LLAMA,
    query_pre_attn_scalar=14,
    sliding_window=5,
    layer_types=['sliding_attention', 'full_attention'],
    tie_word_embeddings=False,
    rope_parameters={
      'full_attention': _ROPE | dict(rope_type='linear', factor=4.0),
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
    },
  ),
  'gpt_neo': dict(
    **_SMALL,
    hidden_size=20,
    num_layers=2,
    num_heads=4,
    intermediate_size=28,
    attention_types=[[['global', 'local'], 1]],
    window_size=3,
  ),
  'mixtral': dict(
    **_LLAMA,
    num_local_experts=5,
    num_experts_per_tok=2,
    sliding_window=8,
    rope_parameters=_ROPE,
  ),
  'qwen3_moe': dict(
    **_LLAMA,
    num_experts=5,
    num_experts_per_tok=3,
    moe_intermediate_size=12,
    norm_topk_prob=False,
    mlp_only_layers=[0],
    rope_parameters=_ROPE,
  ),
  't5': _T5,
  't5_v1_1': _T5
  | dict(
    num_layers=3,
    num_decoder_layers=2,
    feed_forward_proj='gated-gelu',
    tie_word_embeddings=False,
  ),
}
# Other choices for the run beside the stored ones.
OTHERS = {
  'llama': {'tie_word_embeddings': True, 'hidden_act': 'gelu'},
  'qwen2': {'tie_word_embeddings': False, 'use_sliding_window': False},
  'qwen3': {'tie_word_embeddings': True, 'num_key_value_heads': 1},
  'gpt2': {'tie_word_embeddings': False, 'scale_attn_weights': False},
  'gpt_neox': {'use_parallel_residual': False, 'tie_word_embeddings': True},
  'opt': {'enable_bias': False, 'tie_word_embeddings': False},
  'mistral': {'sliding_window': None, 'num_key_value_heads': 4},
  'phi3': {'tie_word_embeddings': True, 'sliding_window': None},
  'gemma': {'tie_word_embeddings': False, 'attention_bias': True},
  'gemma2': {'tie_word_embeddings': True, 'attn_logit_softcapping': None},
  'gemma3_text': {'final_logit_softcapping': 7.0, 'tie_word_embeddings': True},
  'gpt_neo': {'tie_word_embeddings': False, 'window_size': 6},
  'mixtral': {'num_local_experts': 40, 'sliding_window': None},
  'qwen3_moe': {'norm_topk_prob': True, 'decoder_sparse_step': 2},
  't5': {'feed_forward_proj': 'gelu', 'num_layers': 3, 'num_decoder_layers': 2},
  't5_v1_1': {'feed_forward_proj': 'gated-silu', 'd_kv': 3},
}
# Entries that are not called as their `model_type`.
_TYPES = {'t5_v1_1': 't5'}


def build(name: str, seed: int, **options):
  """A random model of transformers, in float32."""
  # No end of text: every text is as long as it may be.
  ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
  config = transformers.AutoConfig.for_model(
    _TYPES.get(name, name), **(OPTIONS[name] | ends | options)
  )
  tied = False
  if config.is_encoder_decoder:
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    tied = config.scale_decoder_outputs
    if not tied:  # No attribute unties it.
      head = model.lm_head.weight
      model.lm_head.weight = torch.nn.Parameter(head.detach().clone())
  else:
    model = transformers.AutoModelForCausalLM.from_config(config)
  torch.manual_seed(seed)
  with torch.no_grad():
    for key, p in model.named_parameters():
      x = torch.randn_like(p)
      if p.ndim == 1:
        one = 'norm' in key or 'ln_' in key
        start = 1.0 if one and key.endswith('weight') else 0.0
        if tied and key == 'decoder.final_layer_norm.weight':
          start = 4.0  # The head divides by the root of the width.
        x = 0.3 * x + (0.0 if 'gemma' in name else start)
      elif 'relative' in key:
        x *= 1.5
      elif any(part in key for part in ('embed_', 'wte', 'wpe', 'shared')):
        # Small beside what the layers add, or tied heads repeat the input.
        x *= 0.2 if 'gemma' in name else 0.3
      else:
        large = any(part in key for part in ('head', '.o.', '.wo.'))
        x *= (3.0 if large else 1.5) * p.shape[-1] ** -0.5
      p.copy_(x.half().float())
  return model.eval()


def score(model, tokens, sources=None) -> torch.Tensor:
  """Logits [B, T, V]; sources are lists of token ids for an encoder."""
  tokens, rest = torch.as_tensor(tokens), {}
  if sources is not None:
    length = torch.tensor([len(source) for source in sources])
    padded = torch.zeros(len(sources), int(length.max())).long()
    for row, source in zip(padded, sources, strict=True):
      row[: len(source)] = torch.tensor(source)
    mask = torch.arange(padded.shape[1]) < length[:, None]
    rest = {'decoder_input_ids': tokens, 'attention_mask': mask.long()}
    tokens = padded
  with torch.no_grad():
    return model(tokens, **rest).logits


def margin_of(model, prompts, sources=None) -> float:
  """Smallest margin of greedy texts, without a cache and all at once."""
  length = torch.tensor([len(prompt) for prompt in prompts])
  rows = torch.arange(len(prompts))
  tokens = torch.zeros(len(prompts), max(LENGTHS) + family_outputs.NEW).long()
  for row, prompt in zip(tokens, prompts, strict=True):
    row[: len(prompt)] = torch.tensor(prompt)
  margin = float('inf')
  for _ in range(family_outputs.NEW):
    # Causal: what comes after a row's length does not matter yet.
    best = score(model, tokens, sources)[rows, length - 1].topk(2)
    gap = float((best.values[:, 0] - best.values[:, 1]).min())
    margin = min(margin, gap)
    if margin < MARGIN:
      break
    tokens[rows, length] = best.indices[:, 0]
    length += 1
  return margin


def decode(model, prompt: list[int]) -> list[int]:
  """Greedy text of transformers after a prompt."""
  out = model.generate(
    torch.tensor([prompt]),
    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
    max_new_tokens=family_outputs.NEW,
    do_sample=False,
  )
  return out[0, -family_outputs.NEW :].tolist()


def make(name: str, seeds=range(100), **options) -> family_outputs.Reference:
  """The reference of a family, from the first seed that is clear enough."""
  random = np.random.default_rng(0)
  tokens = random.integers(0, VOCAB, (2, 36))
  prompts = [random.integers(0, VOCAB, n).tolist() for n in LENGTHS]
  begun, sources, known = prompts, None, None
  for seed in seeds:
    model = build(name, seed, **options)
    if model.config.is_encoder_decoder:
      begun, sources, known = [[0]] * len(prompts), prompts, prompts[5::9]
      tokens[:, 0] = 0
    if margin_of(model, begun, sources) >= MARGIN:
      break
  else:
    raise ValueError(f'{name}: no seed keeps a margin of {MARGIN}')
  texts = [decode(model, prompt) for prompt in prompts]
  logits = score(model, tokens, known).numpy()
  with tempfile.TemporaryDirectory() as folder:
    model.half().save_pretrained(folder)
    file = pathlib.Path(folder) / 'model.safetensors'
    tensors = safetensors.numpy.load_file(file)
    config = json.loads((pathlib.Path(folder) / 'config.json').read_text())
  different = len({tuple(text) for text in texts})
  print(
    f'{name}: seed {seed}, logits std {logits.std():.2f}, {different} of '
    f'{len(texts)} texts differ, {sum(len(set(t)) for t in texts) / 20:.1f} '
    'different tokens in each'
  )
  return family_outputs.Reference(
    config, tensors, tokens, logits, prompts, texts, known
  )


if __name__ == '__main__':
  for name in sys.argv[1:] or OPTIONS:
    make(name).store(name)
