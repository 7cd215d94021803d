"""Models that see images or hear, of which the language model is read.

On a text their language model is one of the families: nothing is added to its
stream, and rotary positions of several axes (M-RoPE) have the same position on
each of them.
"""

from collections.abc import Mapping
from typing import Any

from specjax.checkpoints.families.table import HARMLESS

TIED = 'tie_word_embeddings'
# By model type: the class, and the type of the text where a file has none.
WRAPPERS = {
  'gemma3': ('Gemma3ForConditionalGeneration', 'gemma3_text'),
  'gemma4': ('Gemma4ForConditionalGeneration', 'gemma4_text'),
  'idefics3': ('Idefics3ForConditionalGeneration', 'llama'),
  'internvl': ('InternVLForConditionalGeneration', 'qwen2'),
  'llava': ('LlavaForConditionalGeneration', 'llama'),
  'mistral3': ('Mistral3ForConditionalGeneration', 'mistral'),
  'qwen2_5_vl': ('Qwen2_5_VLForConditionalGeneration', 'qwen2_5_vl_text'),
  'qwen2_vl': ('Qwen2VLForConditionalGeneration', 'qwen2_vl_text'),
  'qwen3_5': ('Qwen3_5ForConditionalGeneration', 'qwen3_5_text'),
  'qwen3_5_moe': (
    'Qwen3_5MoeForConditionalGeneration',
    'qwen3_5_moe_text',
  ),
  'qwen3_vl': ('Qwen3VLForConditionalGeneration', 'qwen3_vl_text'),
  'smolvlm': ('SmolVLMForConditionalGeneration', 'llama'),
}
# Sizes that the text of a LLaVA lacks, as transformers has them.
_SIZES = {
  'vocab_size': 32000,
  'hidden_size': 4096,
  'intermediate_size': 11008,
  'num_hidden_layers': 32,
  'num_attention_heads': 32,
}
# Attributes that say how images are read, or which tokens stand for them, and
# those of the texts of Idefics 3 and SmolVLM that no text reads.
_WORDS = """
  _flash_attn_2_enabled _pad_token_id audio_config audio_token_id boa_token_id
  boi_token_id boi_token_index downsample_ratio eoa_token_id eoa_token_index
  eoi_token_id eoi_token_index ignore_index image_seq_len image_seq_length
  image_token_id image_token_index initializer_range mm_tokens_per_image
  multimodal_projector_bias neftune_noise_alpha perceiver_config
  pixel_shuffle_factor projector_hidden_act qk_layer_norms scale_factor
  spatial_merge_size use_resampler video_token_id vision_config
  vision_end_token_id vision_feature_layer vision_feature_select_strategy
  vision_start_token_id vision_token_id
"""
_OF_IMAGES = frozenset(_WORDS.split())
_TEXTS = 'model.language_model.', 'language_model.model.', 'model.text_model.'
_IMAGES = (
  'audio_tower.',
  'connector.',
  'embed_audio.',
  'embed_vision.',
  'multi_modal_projector.',
  'vision_model.',
  'vision_tower.',
  'visual.',
)


def is_wrapper(attributes: Mapping[str, Any]) -> bool:
  """Returns true if a `config.json` is of a model that sees images, too."""
  kind = attributes.get('model_type')
  return isinstance(kind, str) and kind in WRAPPERS


def take_architecture(rest: dict[str, Any], architecture: str) -> None:
  """Takes the class out of the attributes; raises unless it is this one."""
  given = rest.pop('architectures', None)
  if given is not None and given != [architecture]:
    raise ValueError(
      f'architectures = {given!r}; only [{architecture!r}] has the head of a '
      'language model'
    )


def refuse_unknown(
  rest: Mapping[str, Any], known: frozenset[str], what: str
) -> None:
  """Raises a ValueError if attributes are left that may change something."""
  if unknown := sorted(rest.keys() - known):
    listed = ', '.join(f'{name} = {rest[name]!r}' for name in unknown)
    raise ValueError(
      f'unsupported config attribute {listed}; remove it if it does not '
      f'change {what}'
    )


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the attributes of the language model inside a `config.json`.

  Args:
    attributes: the file's content; of a language model it is returned.

  Raises:
    ValueError: an attribute is unknown; the message names it.
  """
  if not is_wrapper(attributes):
    return dict(attributes)
  rest = dict(attributes)
  architecture, kind = WRAPPERS[rest['model_type']]
  take_architecture(rest, architecture)
  nested = rest.pop('text_config', None)
  if nested is None:  # The first files of Qwen have all in one place.
    nested = rest
    rest = {name: nested.pop(name) for name in _OF_IMAGES & nested.keys()}
    nested['model_type'] = kind
  if not isinstance(nested, dict):
    raise ValueError(f'text_config = {nested!r} must be an object')
  text = {k: v for k, v in nested.items() if k not in _OF_IMAGES}
  text.pop('architectures', None)
  if text.setdefault('model_type', kind) == 'llama':
    text = _SIZES | text
  tied = rest.pop(TIED, None)
  if tied is not None:
    text[TIED] = tied
  unread = {'is_encoder_decoder', 'vocab_size'}  # The text has its own.
  known = _OF_IMAGES | HARMLESS | unread
  refuse_unknown(rest, known, 'the logits of a text')
  return text


def text_tensors(
  attributes: Mapping[str, Any], tensors: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns tensors by the names that the language model alone has for them.

  Those of a language model are returned. Tensors of images are left out; what
  is neither keeps its name, and is then refused.

    model.language_model.layers.0.mlp.up_proj.weight   5.x
    language_model.model.layers.0.mlp.up_proj.weight   4.x
                   model.layers.0.mlp.up_proj.weight   here
  """
  if not is_wrapper(attributes):
    return dict(tensors)
  named = {}
  for name, tensor in tensors.items():
    if name.removeprefix('model.').startswith(_IMAGES):
      continue
    for prefix in _TEXTS:
      if name.startswith(prefix):
        name = 'model.' + name.removeprefix(prefix)
    named[name.removeprefix('language_model.')] = tensor
  return named
