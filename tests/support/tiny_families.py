"""Tiny configurations of every type that is read, and their choices."""

import copy
import json
from typing import Any

import transformers

VOCAB = 48

_LLAMA = dict(
  vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
  num_key_value_heads=2, head_dim=10, intermediate_size=20,
  max_position_embeddings=64,
)  # fmt: skip
_NO_HEAD_DIM = {k: v for k, v in _LLAMA.items() if k != 'head_dim'}
_ROPE = {'rope_theta': 500.0}
_ROPED = dict(_LLAMA, rope_parameters=_ROPE)
_SHORT = dict(_NO_HEAD_DIM, rope_parameters=_ROPE)
_YARN = _ROPE | dict(
  rope_type='yarn', factor=4.0, original_max_position_embeddings=16
)
_TYPES_OF_LAYERS = ['sliding_attention', 'full_attention']
_SMALL = dict(vocab_size=VOCAB, max_position_embeddings=64)

# A text of any length has distances beyond the longest.
_T5 = dict(
  vocab_size=VOCAB, d_model=20, d_kv=6, d_ff=28, num_layers=2, num_heads=4,
  relative_attention_num_buckets=8, relative_attention_max_distance=12,
  decoder_start_token_id=0,
)  # fmt: skip

# Awkward options of each family: grouped queries, odd widths, windows shorter
# than the texts, scaled positions, tied and untied heads.
OPTIONS = {
  'llama': dict(
    **_LLAMA, attention_bias=True, mlp_bias=True,
    rope_parameters=_ROPE | dict(
      rope_type='llama3', factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
      original_max_position_embeddings=24,
    ),
  ),
  'qwen2': dict(
    **_NO_HEAD_DIM, tie_word_embeddings=True, use_sliding_window=True,
    sliding_window=7, max_window_layers=1, rope_parameters=_YARN,
  ),
  'qwen3': dict(_ROPED, attention_bias=True),
  'gpt2': dict(
    vocab_size=VOCAB, n_embd=20, n_layer=2, n_head=4, n_positions=64,
    n_inner=28,
  ),
  'gpt_neox': dict(
    **_SMALL, hidden_size=40, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=28,
    rope_parameters=_ROPE | dict(
      rope_type='dynamic', factor=2.0, partial_rotary_factor=0.4,
    ),
  ),
  'opt': dict(
    **_SMALL, hidden_size=20, num_hidden_layers=2, num_attention_heads=4,
    ffn_dim=28, word_embed_proj_dim=20,
  ),
  'mistral': dict(_ROPED, sliding_window=6),
  'phi3': dict(
    **_NO_HEAD_DIM, original_max_position_embeddings=64, sliding_window=9,
    rope_parameters=_ROPE | dict(
      rope_type='longrope', partial_rotary_factor=0.7, short_factor=[1.0, 1.5],
      long_factor=[2.0, 4.0],
    ),
  ) | {'max_position_embeddings': 128},
  'gemma': dict(_ROPED, num_key_value_heads=1),
  'gemma2': dict(
    _ROPED, query_pre_attn_scalar=14, sliding_window=5,
    attn_logit_softcapping=3.0, final_logit_softcapping=9.0,
    tie_word_embeddings=False,
  ),
  'gemma3_text': dict(
    **_LLAMA, query_pre_attn_scalar=14, sliding_window=5,
    layer_types=_TYPES_OF_LAYERS, tie_word_embeddings=False,
    rope_parameters={
      'full_attention': _ROPE | dict(rope_type='linear', factor=4.0),
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
    },
  ),
  'gemma4_text': _LLAMA | dict(
    num_hidden_layers=4, sliding_window=5,
    layer_types=_TYPES_OF_LAYERS[::-1] + _TYPES_OF_LAYERS, global_head_dim=16,
    hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCAB,
    num_kv_shared_layers=2, use_double_wide_mlp=True,
    rope_parameters={
      'full_attention': _ROPE | dict(
        rope_type='proportional', partial_rotary_factor=0.5,
      ),
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
    },
  ),
  'gpt_neo': dict(
    **_SMALL, hidden_size=20, num_layers=2, num_heads=4, intermediate_size=28,
    attention_types=[[['global', 'local'], 1]], window_size=3,
  ),
  'mixtral': dict(
    _ROPED, num_local_experts=5, num_experts_per_tok=2, sliding_window=8
  ),
  'qwen3_moe': dict(
    _ROPED, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12,
    norm_topk_prob=False, mlp_only_layers=[0],
  ),
  't5': _T5,
  't5_v1_1': _T5 | dict(
    num_layers=3, num_decoder_layers=2, feed_forward_proj='gated-gelu',
    tie_word_embeddings=False,
  ),
}  # fmt: skip
# What has a stored reference, which needs no torch.
STORED = (
  *OPTIONS, 'smollm3', 'olmo3', 'glm4', 'gpt_oss', 'qwen3_next', 'qwen3_5_text',
  'deepseek_v2', 'deepseek_v3', 'lfm2',
)  # fmt: skip

# Models that see images, of which the text is read.
_SIGHT = dict(
  hidden_size=16, intermediate_size=16, num_hidden_layers=1, image_size=28,
  num_attention_heads=2, patch_size=14,
)  # fmt: skip
_QWEN_SIGHT = dict(depth=1, num_heads=2, hidden_size=16, intermediate_size=16)
_MROPE = _ROPE | dict(rope_type='default', mrope_section=[1, 1, 1])


def _sees(sight: dict, kind: str, **text):
  return {'vision_config': sight, 'text_config': text | {'model_type': kind}}


OPTIONS |= {
  'gemma3': _sees(
    dict(_SIGHT, model_type='siglip_vision_model'), 'gemma3_text',
    **OPTIONS['gemma3_text'],
  ) | dict(mm_tokens_per_image=4),
  'gemma4': _sees(
    dict(_SIGHT, model_type='gemma4_vision', head_dim=8, num_key_value_heads=2),
    'gemma4_text', **OPTIONS['gemma4_text'],
  ) | dict(audio_config=None),
  'idefics3': _sees(
    dict(_SIGHT, model_type='idefics3_vision'), 'llama', **_ROPED,
  ) | dict(scale_factor=2),
  'internvl': _sees(
    dict(_SIGHT, image_size=[28, 28], patch_size=[14, 14]), 'qwen2', **_SHORT,
  ),
  'llava': _sees(
    dict(_SIGHT, model_type='clip_vision_model'), 'llama', **_ROPED,
  ),
  'smolvlm': _sees(
    dict(_SIGHT, model_type='smolvlm_vision'), 'llama', **_ROPED,
  ) | dict(scale_factor=2),
  'mistral3': _sees(
    dict(_SIGHT, model_type='pixtral', head_dim=8), 'mistral', **_ROPED,
  ),
  'qwen2_vl': _sees(
    dict(_QWEN_SIGHT, embed_dim=16), 'qwen2_vl_text', **_NO_HEAD_DIM,
    rope_parameters=_MROPE,
  ),
  'qwen2_5_vl': _sees(
    dict(_QWEN_SIGHT, out_hidden_size=24, fullatt_block_indexes=[0]),
    'qwen2_5_vl_text', **_NO_HEAD_DIM, rope_parameters=_MROPE,
  ),
  'qwen3_vl': _sees(
    dict(
      _QWEN_SIGHT, out_hidden_size=24, num_position_embeddings=16,
      deepstack_visual_indexes=[0],
    ),
    'qwen3_vl_text', **_LLAMA,
    rope_parameters=_MROPE | dict(
      mrope_interleaved=True, mrope_section=[2, 2, 1],
    ),
  ),
}  # fmt: skip
_HALF = _LLAMA | dict(
  head_dim=8, rope_parameters=_ROPE | dict(partial_rotary_factor=0.5)
)
_WINDOW = dict(_SHORT, sliding_window=5, layer_types=_TYPES_OF_LAYERS)
# What a state gives is normed, and near 0 so is its rounding: hence the eps.
_STATES = dict(
  _LLAMA, rms_norm_eps=0.03, num_hidden_layers=3, head_dim=8,
  layer_types=['linear_attention', 'full_attention', 'linear_attention'],
  linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
  linear_value_head_dim=5, rope_parameters=_HALF['rope_parameters'],
)  # fmt: skip
_SHARED = dict(
  num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12,
  shared_expert_intermediate_size=14,
)  # fmt: skip
OPTIONS |= {
  'qwen3_next': _STATES | _SHARED | dict(mlp_only_layers=[1]),
  'qwen3_5_text': _STATES,
  'qwen3_5_moe_text': _STATES | _SHARED,
  'qwen3_5': _sees(
    dict(_QWEN_SIGHT, out_hidden_size=24, num_position_embeddings=16),
    'qwen3_5_text', **_STATES,
  ),
  'smollm3': dict(_ROPED, no_rope_layer_interval=2),
  'olmo2': _SHORT,
  'olmo3': _WINDOW | dict(
    rope_parameters={
      'full_attention': _YARN,
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 300.0},
    },
  ),
  'granite': dict(
    _SHORT, embedding_multiplier=3.0, logits_scaling=0.7,
    residual_multiplier=0.6, attention_multiplier=0.3,
  ),
  'glm4': _HALF,
  'glm': _HALF,
  'seed_oss': _ROPED,
  'cohere2': dict(_WINDOW, logit_scale=0.9),
  'cohere': dict(_SHORT, logit_scale=0.9),
  'ministral3': dict(
    _LLAMA, rope_parameters=_YARN | dict(llama_4_scaling_beta=0.4),
  ),
  'starcoder2': dict(_SHORT, sliding_window=6),
  'exaone4': _WINDOW,
  'ernie4_5': _ROPED,
  'hunyuan_v1_dense': _ROPED,
  'arcee': _ROPED,
  'helium': dict(_SHORT, head_dim=6),
  'phi': dict(
    _SHORT, hidden_size=32, rope_parameters=_HALF['rope_parameters'],
  ),
}  # fmt: skip
OPTIONS |= {
  'mistral3 of ministral3': _sees(
    dict(_SIGHT, model_type='pixtral', head_dim=8), 'ministral3',
    **OPTIONS['ministral3'],
  ),
  'gpt_oss': dict(
    _LLAMA, num_local_experts=5, num_experts_per_tok=2, sliding_window=5,
    layer_types=_TYPES_OF_LAYERS, rope_parameters=_YARN | dict(truncate=False),
  ),
  'olmoe': dict(_SHORT, num_experts=5, num_experts_per_tok=2),
  'ministral': dict(_ROPED, sliding_window=5, layer_types=_TYPES_OF_LAYERS),
  'nemotron': dict(OPTIONS['phi'], head_dim=8),
  'stablelm': OPTIONS['phi'],
  'hyperclovax': dict(
    _SHORT, embedding_multiplier=3.0, logits_scaling=1.4,
    residual_multiplier=0.6, attention_multiplier=0.3,
  ),
  'jais2': _SHORT,
  'vaultgemma': OPTIONS['gemma2'] | dict(head_dim=6),
}  # fmt: skip
_EXPERTS = dict(
  n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=8, n_group=3,
  topk_group=2, routed_scaling_factor=1.7, first_k_dense_replace=1,
)  # fmt: skip
_LATENT = _SHORT | dict(
  num_key_value_heads=4, q_lora_rank=14, kv_lora_rank=10, qk_rope_head_dim=4,
  qk_nope_head_dim=6, v_head_dim=5,
)  # fmt: skip
_CONVOLVED = _SHORT | dict(
  num_hidden_layers=3, layer_types=['conv', 'full_attention', 'conv']
)
# As for states above.
_DECAYING = _SHORT | dict(
  rms_norm_eps=1.0, num_hidden_layers=3, mamba_n_heads=4, mamba_n_groups=2,
  mamba_d_state=6, mamba_chunk_size=8,
)  # fmt: skip
_GROWN = _YARN | dict(mscale=1.0, mscale_all_dim=0.8)
OPTIONS |= {
  'deepseek_v2': _LATENT | _EXPERTS | dict(
    n_shared_experts=2, topk_method='group_limited_greedy',
    rope_parameters=_GROWN,
  ),
  'deepseek_v3': _LATENT | _EXPERTS | dict(rope_parameters=_GROWN),
  'glm4_moe_lite': {
    k: v for k, v in (_LATENT | _EXPERTS).items() if k[:5] != 'first'
  },
  # Norms of latents have an epsilon of their own.
  'youtu': dict(_LATENT, rms_norm_eps=0.03),
  'glm4_moe': _HALF | _EXPERTS | dict(use_qk_norm=True),
  'lfm2': _CONVOLVED | dict(block_multiple_of=7),
  'lfm2_moe': _CONVOLVED | dict(
    num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8,
  ) | dict(num_dense_layers=1, routed_scaling_factor=1.7),
  'granitemoehybrid': _DECAYING | dict(
    layer_types=['linear_attention', 'full_attention', 'linear_attention'],
    num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=14,
    embedding_multiplier=3.0, logits_scaling=1.4, residual_multiplier=0.6,
    attention_multiplier=0.3,
  ),
  'bamba': _DECAYING | dict(attn_layer_indices=[1], head_dim=8),
  'falcon_h1': _DECAYING | dict(
    num_hidden_layers=2, mamba_d_ssm=40, mamba_rms_norm=True,
    embedding_multiplier=3.0, lm_head_multiplier=0.8, key_multiplier=0.4,
    attention_in_multiplier=1.3, attention_out_multiplier=0.7,
    mlp_multipliers=[1.2, 0.6], ssm_in_multiplier=1.4,
    ssm_multipliers=[0.9, 1.1, 0.7, 1.3, 0.6], ssm_out_multiplier=0.8,
  ),
}  # fmt: skip
_BLOCKS = 'linear_attention', 'mlp', 'full_attention', 'moe'
OPTIONS['nemotron_h'] = {
  k: v
  for k, v in (_LLAMA | _EXPERTS).items()
  if k not in ('num_hidden_layers', 'first_k_dense_replace')
} | dict(
  layer_norm_epsilon=3.0, layers_block_type=[*_BLOCKS, 'linear_attention'],
  ssm_state_size=6, mamba_num_heads=4, mamba_head_dim=5, n_groups=2,
  chunk_size=8, moe_shared_expert_intermediate_size=14,
)  # fmt: skip
_UNTIED, _TIED = ({'tie_word_embeddings': tied} for tied in (False, True))
# Each changes one choice of the options above.
SWITCHES = {
  'llama': [
    _TIED, {'hidden_act': 'gelu'},
    {'hidden_act': 'relu', 'num_key_value_heads': 4},
    {'attention_bias': False, 'mlp_bias': False, 'rope_parameters': _ROPE},
  ],
  'qwen2': [_UNTIED, {'use_sliding_window': False}],
  'qwen3': [_TIED, {'num_key_value_heads': 1}],
  'gpt2': [_UNTIED, {'scale_attn_weights': False}],
  'gpt_neox': [{'use_parallel_residual': False}, _TIED],
  'opt': [{'enable_bias': False}, _UNTIED],
  'mistral': [{'sliding_window': None}, {'num_key_value_heads': 4}],
  'phi3': [_TIED, {'sliding_window': None}],
  'gemma': [_UNTIED, {'attention_bias': True}],
  'gemma2': [_TIED, {'attn_logit_softcapping': None}],
  'gemma3_text': [{'final_logit_softcapping': 7.0}, _TIED],
  'gemma4_text': [
    _UNTIED | {'attention_bias': True},
    {'num_global_key_value_heads': 1, 'attention_k_eq_v': True},
    {'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': 0} | {
      'final_logit_softcapping': 7.0, 'use_bidirectional_attention': 'vision',
    },
    {'enable_moe_block': True, 'num_experts': 5, 'top_k_experts': 2} | {
      'moe_intermediate_size': 8, 'use_double_wide_mlp': False,
    },
  ],
  'gpt_neo': [_UNTIED, {'window_size': 6}],
  'mixtral': [{'num_local_experts': 40}, {'sliding_window': None}],
  'qwen3_moe': [{'norm_topk_prob': True}, {'decoder_sparse_step': 2}],
  't5': [
    {'feed_forward_proj': 'gelu', 'num_layers': 3, 'num_decoder_layers': 2},
  ],
  't5_v1_1': [{'feed_forward_proj': 'gated-silu', 'd_kv': 3}],
  'gemma3': [_UNTIED], 'gemma4': [], 'idefics3': [_TIED], 'internvl': [_UNTIED],
  'llava': [_TIED], 'smolvlm': [_TIED], 'mistral3': [_UNTIED],
  'mistral3 of ministral3': [], 'qwen2_vl': [_TIED], 'qwen2_5_vl': [_TIED],
  'smollm3': [
    _UNTIED, {'attention_bias': True, 'mlp_bias': True},
    {'no_rope_layers': [1, 1]},
    {'use_sliding_window': True, 'sliding_window': 5},
  ],
  'olmo2': [_TIED, {'attention_bias': True}, {'num_key_value_heads': 4}],
  'olmo3': [{'layer_types': _TYPES_OF_LAYERS[::-1]}, {'attention_bias': True}],
  'granite': [
    _TIED, {'attention_bias': True, 'mlp_bias': True},
    {'embedding_multiplier': 1.0, 'residual_multiplier': 1.0},
    {'attention_multiplier': 1.0, 'logits_scaling': 1.0},
  ],
  'glm4': [_TIED, {'attention_bias': False}, {'rope_parameters': _ROPE}],
  'glm': [_TIED, {'attention_bias': False}, {'num_key_value_heads': 1}],
  'seed_oss': [
    _TIED, {'attention_bias': False}, {'attention_out_bias': True},
    {'mlp_bias': True},
  ],
  'cohere2': [
    {'attention_bias': True}, {'layer_types': _TYPES_OF_LAYERS[1:] * 2},
    {'logit_scale': 1.0},
  ],
  'cohere': [{'attention_bias': True}],
  'ministral3': [
    _TIED, {'sliding_window': 5},
    {'rope_parameters': _YARN | dict(llama_4_scaling_beta=0.4, mscale=2.0)},
  ],
  'starcoder2': [_UNTIED, {'use_bias': False}, {'sliding_window': None}],
  'exaone4': [
    _TIED, {'sliding_window': None, 'layer_types': _TYPES_OF_LAYERS[1:] * 2},
    {'layer_types': _TYPES_OF_LAYERS[1:] * 2},
  ],
  'ernie4_5': [_UNTIED, {'use_bias': True}],
  'hunyuan_v1_dense': [
    _TIED, {'attention_bias': True},
    {
      'rope_parameters': _ROPE | dict(
        rope_type='dynamic', factor=1.0, alpha=20.0,
      ),
    },
  ],
  'arcee': [_TIED, {'attention_bias': True, 'mlp_bias': True}],
  'helium': [_TIED], 'phi': [{'hidden_act': 'relu'}],
  'gpt_oss': [
    _TIED, {'attention_bias': False},
    {'swiglu_limit': 0.7, 'swiglu_alpha': 1.0}, {'num_local_experts': 150},
    {'layer_types': _TYPES_OF_LAYERS[::-1]},
  ],
  'olmoe': [{'norm_topk_prob': True}, {'attention_bias': True}],
  'ministral': [{'layer_types': _TYPES_OF_LAYERS[::-1]}],
  'nemotron': [_TIED, {'attention_bias': True, 'mlp_bias': True}],
  'stablelm': [{'use_parallel_residual': True}, {'use_qkv_bias': True}, _TIED],
  'hyperclovax': [
    {'use_post_norm': False},
    {'attention_multiplier': None, 'logits_scaling': 1.0},
    {'attention_bias': True, 'mlp_bias': True},
  ],
  'jais2': [{'attention_bias': False}, {'mlp_bias': False}],
  'vaultgemma': [_TIED, {'attn_logit_softcapping': None}], 'qwen3_vl': [_TIED],
  'qwen3_next': [
    _TIED, {'linear_conv_kernel_dim': 2, 'linear_num_key_heads': 4},
    {'norm_topk_prob': False, 'attention_bias': True},
    {'layer_types': ['full_attention'] * 2 + ['linear_attention']},
    {'decoder_sparse_step': 2, 'mlp_only_layers': []},
  ],
  'qwen3_5_text': [
    _TIED, {'linear_conv_kernel_dim': 3, 'linear_num_key_heads': 1},
    {'attention_bias': True}, {'num_hidden_layers': 4, 'layer_types': None},
  ],
  'qwen3_5_moe_text': [_TIED], 'qwen3_5': [],
  'deepseek_v2': [
    _TIED, {'q_lora_rank': None, 'topk_method': 'greedy', 'n_group': None},
    {'attention_bias': True, 'mlp_bias': True},
    {'rope_parameters': _ROPE, 'first_k_dense_replace': 0},
  ],
  'deepseek_v3': [
    _TIED, {'q_lora_rank': None, 'attention_bias': True},
    {'norm_topk_prob': False, 'n_group': 1, 'topk_group': 1},
    {'rope_interleave': False, 'n_shared_experts': 2},
    {'rope_parameters': _YARN, 'first_k_dense_replace': 2},
  ],
  'glm4_moe_lite': [
    _TIED, {'mlp_layer_types': ['sparse', 'dense']},
    {'rope_interleave': False, 'attention_bias': True},
  ],
  'youtu': [_UNTIED, {'q_lora_rank': None}],
  'lfm2': [
    _UNTIED, {'conv_L_cache': 2, 'conv_bias': True},
    {'block_auto_adjust_ff_dim': False, 'layer_types': None},
    {'block_ffn_dim_multiplier': 1.5},
  ],
  'lfm2_moe': [{'norm_topk_prob': False}],
  'granitemoehybrid': [
    _TIED, {'num_local_experts': 0, 'num_experts_per_tok': 0},
    {'position_embedding_type': 'rope', 'attention_bias': True},
    {'mamba_conv_bias': False, 'mamba_proj_bias': True, 'mamba_d_conv': 2},
    {'hidden_act': 'gelu', 'mamba_n_groups': 1, 'mamba_expand': 3},
    {'layer_types': ['full_attention'] * 3},
  ],
  'bamba': [
    _TIED | {'mamba_proj_bias': True},
    {'attention_bias': True, 'mlp_bias': True},
  ],
  'falcon_h1': [
    _TIED | {'mamba_d_ssm': None},
    {'mamba_rms_norm': False, 'projectors_bias': True},
    {'mamba_norm_before_gate': False, 'key_multiplier': 1.0},
    {'mamba_proj_bias': True, 'attention_bias': True, 'mlp_bias': True},
    {'ssm_multipliers': None, 'ssm_in_multiplier': 1.0} | {
      'ssm_out_multiplier': 1.0, 'mamba_conv_bias': False,
    },
    {'attention_in_multiplier': 1.0, 'attention_out_multiplier': 1.0} | {
      'mlp_multipliers': None,
    },
  ],
  'nemotron_h': [
    {'moe_latent_size': 12, 'mlp_bias': True},
    {'use_bias': True, 'use_conv_bias': False, 'conv_kernel': 2},
    {'mlp_hidden_act': 'silu', 'mamba_hidden_act': 'gelu'},
    {'norm_topk_prob': False, 'n_group': 1, 'topk_group': 1},
    {'layers_block_type': [*_BLOCKS[1:3], *_BLOCKS[:2]]},
  ],
  'glm4_moe': [
    {'use_qk_norm': False}, {'attention_bias': True},
    {'rope_parameters': _ROPE, 'norm_topk_prob': False},
  ],
}  # fmt: skip
# Entries that are not called as their `model_type`.
_TYPES = {'t5_v1_1': 't5', 'mistral3 of ministral3': 'mistral3'}


def type_of(name: str) -> str:
  """Returns the `model_type` of an entry."""
  return _TYPES.get(name, name)


def make_config(name: str, **options) -> transformers.PreTrainedConfig:
  """Returns the configuration of an entry, with other choices."""
  own = copy.deepcopy(OPTIONS[name] | options)  # transformers writes into it.
  return transformers.AutoConfig.for_model(type_of(name), **own)


def attributes(name: str, **options) -> dict[str, Any]:
  """Returns what `config.json` says of an entry."""
  return json.loads(make_config(name, **options).to_json_string(use_diff=False))
