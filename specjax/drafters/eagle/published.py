"""EAGLE heads: of SafeAILab, SpecForge and the speculators library.

Tensors say of which version a head is, and which optional parts it has;
config.json says the rest, flat or, in speculators' form, for its layer apart.

  version 3  one layer, whose attention reads token and feature side by side
             behind a norm each (Li et al., arXiv:2503.01840); midlayer.* or
             layers.0.*
  version 1  fc over token and feature, then a layer without a norm before
             attention (arXiv:2401.15077); layers.0.*, or transformer.* and
             fusion_fc.*

Layers of the target are counted in two ways. speculators' ids, and the default
(2, L / 2, L - 3), are of what a layer reads: the output of the layer before,
which is our tap id - 1. Ids inside `eagle_config` are of outputs: our taps.
"""

from typing import Any

from specjax.checkpoints.families import rope, values
from specjax.checkpoints.families.llama import size_rows
from specjax.checkpoints.families.values import attribute
from specjax.checkpoints.files import CheckpointError
from specjax.drafters.eagle import sizes
from specjax.drafters.eagle import tensors as eagle_tensors
from specjax.drafters.eagle.tensors import FC_NORM
from specjax.drafters.heads.published import vocabulary
from specjax.drafters.heads.published.formats import (
  UNUSED,
  Files,
  Format,
  Found,
)

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
  if named in ('eagle', 'eagle3'):
    return 3 if named == 'eagle3' else 1, f'speculators_model_type = {named!r}'
  names = attributes.get('architectures') or ()
  for name in map(str, names if isinstance(names, list) else (names,)):
    short = name.lower().replace('-', '')
    if 'eagle' in short:
      return 3 if 'eagle3' in short else 1, f'architectures = [{name!r}]'
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
    values.activation_row('hidden_act', 'silu'),
    attribute('rms_norm_eps', 'norm_eps', values.number, 1e-6),
  )
  fields: dict[str, Any] = {}
  try:
    for row in rows:
      fields |= row.read(rest, fields)
  except ValueError as error:
    raise CheckpointError(f'{files.directory}: config.json: {error}') from None
  if fields['width'] != width or fields['num_layers'] != 1:
    raise CheckpointError(
      f'{files.directory}: config.json has {fields["num_layers"]} layers of '
      f'width {fields["width"]}, and its tensors one of width {width}: only '
      'heads of one layer are read, with the config.json that is theirs'
    )
  if 'sliding_attention' in (rest.get('layer_types') or ()):
    raise CheckpointError(
      f'{files.directory}: config.json has a layer with sliding attention, '
      'which no head here has'
    )
  return fields


def _activation(files: Files, function) -> str:
  for name, known in sizes.ACTIVATIONS.items():
    if known is function:
      return name
  raise CheckpointError(
    f'{files.directory}: config.json: hidden_act must be one of '
    f'{", ".join(sizes.ACTIVATIONS)}'
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


def _describe(files: Files, name: str, version: int, **options: Any) -> Found:
  """What all layouts share.

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
  else:
    last = files.target.num_layers - 1 if files.target else 0
    options['taps'] = (last,)
  attention = f'{layer}self_attn.'
  config = {
    'kind': 'eagle',
    'version': version,
    'vocab_size': vocab,
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
    **vocabulary.options(files, vocab),
    **options,
  }  # fmt: skip
  sources = eagle_tensors.sources(
    sizes.sizes_of(config), vocab, tensors, layer, fused
  )
  whole = () if config.get('draft_vocab') else ('d2t',)
  return Found(
    name,
    'eagle',
    config,
    sources,
    features,
    vocab,
    files.verifier,
    fields['max_positions'],
    UNUSED + whole,
  )


def _norms(files: Files) -> tuple[str, ...]:
  """What a head of version 3 norms."""
  switches = {
    'residual': _flag(files, 'norm_before_residual'),
    'fused': _flag(files, 'norm_before_fc', 'input_norm.weight'),
    'taps': _flag(files, 'fc_norm', f'{FC_NORM}0.weight'),
    'carried': _flag(files, 'norm_output'),
  }
  more = (name for name, here in switches.items() if here)
  return ('token', 'feature', 'last', *more)


def _third(files: Files, name: str) -> Found:
  return _describe(files, name, 3, join=sizes.PAIR)


def _first(files: Files, name: str) -> Found:
  if files.attributes.get('layernorms'):
    raise CheckpointError(
      f'{files.directory}: config.json has layernorms, which no published head '
      'of version 1 has'
    )
  return _describe(files, name, 1, norms=(), projects=False)


FORMATS = (
  Format('EAGLE-3', _is_third, _third),
  Format('EAGLE-1', _is_first, _first),
)
