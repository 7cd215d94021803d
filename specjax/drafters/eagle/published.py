"""EAGLE and P-EAGLE heads: of SafeAILab, SpecForge and speculators.

Tensors say of which version a head is, and which optional parts it has;
config.json says the rest, flat or, in speculators' form, for its layer apart.

  version 3  one layer, whose attention reads token and feature side by side
             behind a norm each (Li et al., arXiv:2503.01840); midlayer.* or
             layers.0.*, and layers.1.* on where there are more; with
             mask_hidden it is a head of P-EAGLE (arXiv:2602.01469)
  version 1  fc over token and feature, then a layer without a norm before
             attention (arXiv:2401.15077); layers.0.*, or transformer.* and
             fusion_fc.*

Layers of the target are counted in two ways. speculators' ids, and the default
(2, L / 2, L - 3), are of what a layer reads: the output of the layer before,
which is our tap id - 1. Ids inside `eagle_config` are of outputs: our taps.
"""

from collections.abc import Collection
from typing import Any

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import size_rows
from specjax.checkpoints.families.table import (
  GROUPS,
  KEEP,
  LINEAR,
  WAYS,
  Tensors,
)
from specjax.checkpoints.families.values import attribute
from specjax.checkpoints.files import CheckpointError
from specjax.drafters.eagle import module
from specjax.drafters.eagle.module import PAIR, Sizes
from specjax.drafters.heads import formats, speculators
from specjax.drafters.heads.formats import UNUSED, Files, Format, Found, Made
from specjax.models.config import TransformerConfig

FC_NORM = 'fc_norm.'  # before the numbers of norms of the target's layers
_MASK = 'mask_hidden'
# Names of the token of a mask: of speculators, and of vLLM.
_MASK_TOKENS = 'mask_token_id', 'pard_token', 'ptd_token_id'


def sources(
  sizes: Sizes,
  vocab: int,
  names: Collection[str],
  layer: str,
  fused: str = 'fc',
) -> dict[str, Tensors | Made]:
  """Returns the tensors of every parameter that a head has.

  Args:
    sizes: of the head.
    vocab: tokens of the target.
    names: of all tensors.
    layer: before the names of the first layer's.
    fused: before that of the map of the joined or fused features.
  """
  third = sizes.version == 3
  found: dict[str, tuple[Any, tuple[str, ...]]] = {
    f'{"fuse" if third else "join"}/w': (LINEAR, (f'{fused}.weight',))
  }
  for i in range(sizes.layers):
    found |= _layer_sources(
      sizes, f'layer{i or ""}', f'layers.{i}.' if i else layer
    )
    if i:
      norm = f'layers.{i}.input_layernorm.weight'
      found[f'layer{i}/norm1/scale'] = KEEP, (norm,)
  options = {
    'join/b': (sizes.join_bias, KEEP, f'{fused}.bias'),
    'mask_hidden': (sizes.mask_token is not None, KEEP, _MASK),
  }
  norms = {
    'token': ('norm_token', f'{layer}input_layernorm'),
    'feature': ('norm_feature', f'{layer}hidden_norm'),
    'fused': ('norm_fused', 'input_norm'),
    'last': ('norm', 'norm'),
  }
  for name, (key, tensor) in norms.items():
    here = name in sizes.norms
    options[f'{key}/scale'] = here, KEEP, f'{tensor}.weight'
  for i in range(sum(FC_NORM in name for name in names)):
    options[f'norm_taps_{i}/scale'] = True, KEEP, f'{FC_NORM}{i}.weight'
  for key, (here, split, name) in options.items():
    if here:
      found[key] = split, (name,)
  made: dict[str, Tensors | Made] = {k: Tensors(*v) for k, v in found.items()}
  return made | formats.sources(names, sizes, vocab)


def _layer_sources(
  sizes: Sizes, ours: str, theirs: str
) -> dict[str, tuple[Any, tuple[str, ...]]]:
  """Returns the tensors of the parameters that every layer has."""
  attention, mlp = f'{theirs}self_attn.', f'{theirs}mlp.'
  qkv = [f'{attention}{x}_proj.' for x in 'qkv']
  up = [f'{mlp}{x}_proj.' for x in ('gate', 'up')]
  maps = {
    'qkv': (GROUPS, qkv, sizes.qkv_bias),
    'out': (LINEAR, [f'{attention}o_proj.'], sizes.out_bias),
    'up': (WAYS, up, sizes.mlp_bias),
    'down': (LINEAR, [f'{mlp}down_proj.'], sizes.mlp_bias),
  }
  found: dict[str, tuple[Any, tuple[str, ...]]] = {}
  for name, (split, tensors, bias) in maps.items():
    found[f'{ours}/{name}/w'] = split, tuple(x + 'weight' for x in tensors)
    if bias:
      found[f'{ours}/{name}/b'] = split, tuple(x + 'bias' for x in tensors)
  norms = {'norm2': f'{theirs}post_attention_layernorm'}
  if sizes.qk_norm:
    norms |= {f'{x}_norm': f'{attention}{x}_norm' for x in 'qk'}
  for name, tensor in norms.items():
    found[f'{ours}/{name}/scale'] = KEEP, (f'{tensor}.weight',)
  return found


_IDS = 'eagle_aux_hidden_state_layer_ids'
_LAYERS = ('midlayer.', 'layers.0.', 'transformer.')


def _layer(names: frozenset[str]) -> str:
  """Before the names of the layer's tensors."""
  here = (x for x in _LAYERS if f'{x}self_attn.q_proj.weight' in names)
  return next(here, '')


def _is_third(names: frozenset[str]) -> bool:
  layer = _layer(names)
  return bool(layer) and f'{layer}hidden_norm.weight' in names


def _is_first(names: frozenset[str]) -> bool:
  fused = {'fc.weight', 'fusion_fc.weight'} & names
  # Those of other drafters have norms of their own around fc.
  alone = not {'hidden_norm.weight', 'norm.weight'} & names
  return bool(fused and _layer(names)) and alone and not _is_third(names)


def _claimed(attributes: dict[str, Any]) -> tuple[int, str] | None:
  """The version that config.json says, and where; None where nowhere."""
  named = attributes.get('speculators_model_type')
  if named in ('eagle', 'eagle3', 'peagle'):
    return 1 if named == 'eagle' else 3, f'speculators_model_type = {named!r}'
  names = attributes.get('architectures') or ()
  for name in map(str, names if isinstance(names, list) else (names,)):
    short = name.lower().replace('-', '')
    if 'eagle' in short:
      third = 'eagle3' in short or 'peagle' in short
      return 3 if third else 1, f'architectures = [{name!r}]'
  return None


def _check_claim(files: Files, version: int) -> None:
  claimed = _claimed(files.attributes)
  if claimed is not None and claimed[0] != version:
    raise CheckpointError(
      f'{files.directory}: config.json calls it version {claimed[0]} of EAGLE '
      f'({claimed[1]}), but its tensors are those of version {version}: copy '
      'the config.json that belongs to them'
    )


def _read_layer(files: Files, width: int, prefix: str) -> dict[str, Any]:
  """Fields of `TransformerConfig` that config.json says of the layer."""
  rest = files.layer
  # Files leave out what is their library's default, or what tensors show.
  apart = 'transformer_layer_config'
  inside = (apart,) if files.attributes.get(apart) else ()
  heads = files.take('num_attention_heads', values.size, 32, *inside)
  names = (f'self_attn.{x}_proj' for x in 'qk')
  queries, keys, inner = (
    files.shape(f'{prefix}{name}.weight', 2)[0]
    for name in (*names, 'mlp.gate_proj')
  )
  head_dim = files.take('head_dim', values.size, queries // heads, *inside)
  vocab = (('t2d', 1), ('embed_tokens.weight', 2))
  known = (files.shape(*x) for x in vocab if x[0] in files.tensors)
  default = 151936 if rest.get('model_type') == 'qwen3' else 32000
  usual = {
    'vocab_size': next(known, (default,))[0],
    'hidden_size': width,
    'num_hidden_layers': 1,
    'num_attention_heads': heads,
    'num_key_value_heads': keys // head_dim,
    'head_dim': head_dim,
    'intermediate_size': inner,
  }
  rest = usual | {
    k: v for k, v in rest.items() if v is not None or k not in usual
  }
  rows = (
    *size_rows(2048),
    rope.rope_row(),
    values.SILU,
    attribute('rms_norm_eps', 'norm_eps', values.number, 1e-6),
  )
  fields: dict[str, Any] = {}
  try:
    for row in rows:
      fields |= row(rest, fields)
  except ValueError as error:
    raise CheckpointError(f'{files.directory}: config.json: {error}') from None
  if fields['width'] != width:
    raise CheckpointError(
      f'{files.directory}: config.json has layers of width {fields["width"]}, '
      f'and its tensors of width {width}: copy the config.json that is theirs'
    )
  if 'sliding_attention' in (rest.get('layer_types') or ()):
    raise CheckpointError(
      f'{files.directory}: config.json has a layer with sliding attention, '
      'which no head here has'
    )
  return fields


def _activation(files: Files, function) -> str:
  for name, known in module.ACTIVATIONS.items():
    if known is function:
      return name
  raise CheckpointError(
    f'{files.directory}: config.json: hidden_act must be one of '
    f'{", ".join(module.ACTIVATIONS)}'
  )


def _flag(files: Files, name: str, tensor: str = '') -> bool:
  """A switch of config.json; a tensor of its own has to agree with it."""
  value = files.attributes.get(name)
  if not tensor:
    return bool(value)
  here = tensor in files.tensors
  if value is not None and bool(value) != here:
    raise CheckpointError(
      f'{files.directory}: config.json has {name} = {value}, but {tensor} is '
      f'{"" if here else "not "}among the tensors'
    )
  return here


def _taps(files: Files, count: int) -> tuple[int, ...]:
  """Layers of the target that are read; () where nothing says so."""
  layers = files.target and files.target.num_layers
  taps = files.take(_IDS, values.layers, None, 'eagle_config')
  ids = files.take(_IDS, values.layers, None)
  if ids is None and taps is None and layers:
    ids = [2, layers // 2, layers - 3]
  if ids is not None:
    taps = [i - 1 for i in ids]
  if taps is None:
    return ()
  told = f'{files.directory}: {_IDS} {[*(taps if ids is None else ids)]}'
  if len(taps) != count:
    raise CheckpointError(
      f'{told} are {len(taps)} layers of the target, and fc reads {count}'
    )
  if min(taps) < 0 or (layers and max(taps) >= layers):
    raise CheckpointError(
      f'{told} name layers that do not exist: the target has {layers}'
    )
  return tuple(taps)


def _mask_token(files: Files, vocab: int) -> int | None:
  """The token of the masks of P-EAGLE; None where a head has no masks."""
  told = files.attributes
  names = told.get('speculators_model_type'), told.get('architectures')
  masked = 'peagle' in f'{names}'.lower() or told.get('parallel_drafting')
  here = _MASK in files.tensors
  if not here and not masked:
    return None
  if not here:
    raise CheckpointError(
      f'{files.directory}: config.json is of P-EAGLE, but {_MASK} is not among '
      'the tensors: copy the config.json that belongs to them'
    )
  for name in _MASK_TOKENS:
    token = files.take(name, values.index, None)
    if token is not None:
      break
  if token is None or token >= vocab:
    raise CheckpointError(
      f'{files.directory}: config.json must name the token of {_MASK} as '
      f'{_MASK_TOKENS[0]}, one of the {vocab} of the target; got {token}'
    )
  return token


def _describe(files: Files, name: str, version: int, **options: Any) -> Found:
  """Reads what all layouts share.

  Args:
    files: of the head.
    name: of the format.
    version: of EAGLE.
    **options: of `Sizes`, those of the layout.
  """
  _check_claim(files, version)
  tensors = files.tensors
  layer = _layer(frozenset(tensors))
  fused = 'fusion_fc' if 'fusion_fc.weight' in tensors else 'fc'
  width, inputs = files.shape(f'{fused}.weight', 2)
  fields = _read_layer(files, width, layer)
  features, vocab = width, fields['vocab_size']
  if version == 3:
    # Where only the tensors know how wide the target is, it is as wide.
    features = files.take('target_hidden_size', values.size, width)
    if inputs % features:
      raise CheckpointError(
        f'{files.directory}: fc reads {inputs} numbers, no multiple of the '
        f'width of the target, {features}'
      )
    options['taps'] = _taps(files, inputs // features)
    options['norms'] = _norms(files)
    options['mask_token'] = _mask_token(files, vocab)
    name = name if options['mask_token'] is None else 'P-EAGLE'
  else:
    last = files.target.num_layers - 1 if files.target else 0
    options['taps'] = (last,)
  attention = f'{layer}self_attn.'
  config = {
    'kind': 'eagle',
    'version': version,
    'vocab_size': vocab,
    'layers': fields['num_layers'],
    **{
      key: fields[key]
      for key in (
        'width', 'num_heads', 'num_kv_heads', 'head_dim', 'mlp_width',
        'rope_theta', 'rope_scaling', 'norm_eps',
      )
    },
    'activation': _activation(files, fields['activation']),
    'join_bias': f'{fused}.bias' in tensors,
    'own_embedding': 'embed_tokens.weight' in tensors,
    'qk_norm': f'{attention}q_norm.weight' in tensors,
    'qkv_bias': f'{attention}q_proj.bias' in tensors,
    'out_bias': f'{attention}o_proj.bias' in tensors,
    'mlp_bias': f'{layer}mlp.down_proj.bias' in tensors,
    **formats.options(files, vocab),
    **options,
  }  # fmt: skip
  found = sources(module.sizes_of(config), vocab, tensors, layer, fused)
  whole = () if config.get('draft_vocab') else ('d2t',)
  return Found(
    name,
    'eagle',
    config,
    found,
    features,
    vocab,
    files.verifier,
    fields['max_positions'],
    UNUSED + whole,
  )


def _norms(files: Files) -> tuple[str, ...]:
  """Returns the norms of a head of version 3."""
  switches = {
    'residual': _flag(files, 'norm_before_residual'),
    'fused': _flag(files, 'norm_before_fc', 'input_norm.weight'),
    'taps': _flag(files, 'fc_norm', f'{FC_NORM}0.weight'),
    'carried': _flag(files, 'norm_output'),
  }
  more = (name for name, here in switches.items() if here)
  return ('token', 'feature', 'last', *more)


def _first(files: Files, name: str) -> Found:
  if files.attributes.get('layernorms'):
    raise CheckpointError(
      f'{files.directory}: config.json has layernorms, which no published head '
      'of version 1 has'
    )
  return _describe(files, name, 1, norms=(), projects=False)


FORMATS = (
  Format(
    'EAGLE-3',
    _is_third,
    lambda files, name: _describe(files, name, 3, join=PAIR),
  ),
  Format('EAGLE-1', _is_first, _first),
)


_LAYER = 'layers.0.'
_SWITCHES = {
  'norm_before_residual': 'residual',
  'norm_before_fc': 'fused',
  'fc_norm': 'taps',
  'norm_output': 'carried',
}


def form(sizes: Sizes, target: TransformerConfig) -> speculators.Form:
  """The form in which speculators has a head of EAGLE-3 or P-EAGLE.

  Args:
    sizes: of the head.
    target: of its target.

  Raises:
    ValueError: the form does not have an option of the head.
  """
  wrong = {
    'version': sizes.version != 3,
    'join': sizes.join != PAIR,
    'norms': not {'token', 'feature', 'last'} <= {*sizes.norms},
    'own_unembedding': not sizes.own_unembedding,
    'qkv_bias': sizes.qkv_bias != sizes.out_bias,
    'mlp_bias': sizes.mlp_bias and sizes.qk_norm,
    'width': not sizes.own_embedding and sizes.width != target.width,
  }
  speculators.refuse(
    sizes,
    wrong,
    f"train one with join = '{PAIR}', version 3 and the width of its target, "
    f'{target.width}',
  )
  masked = sizes.mask_token is not None
  names = [f'{FC_NORM}{i}.weight' for i in range(len(sizes.taps))]
  names = [*(names if 'taps' in sizes.norms else ()), 'd2t', 't2d']
  return speculators.Form(
    'peagle' if masked else 'eagle3',
    'PEagleSpeculator' if masked else 'Eagle3Speculator',
    speculators.layer_config(
      sizes,
      target,
      hidden_size=sizes.width,
      hidden_act=sizes.activation,
      attention_bias=sizes.qkv_bias,
      mlp_bias=sizes.mlp_bias,
    ),
    {
      **({'mask_token_id': sizes.mask_token} if masked else {}),
      # Of what a layer reads; ours are of what it returns.
      _IDS: [tap + 1 for tap in sizes.taps],
      **{switch: name in sizes.norms for switch, name in _SWITCHES.items()},
    },
    sources(sizes, target.vocab_size, names, _LAYER),
    sizes.draft_vocab,
  )
