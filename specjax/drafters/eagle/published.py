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

from collections.abc import Iterable
from typing import Any

from specjax.checkpoints.families import conversion, values
from specjax.checkpoints.families.llama import size_rows
from specjax.checkpoints.families.table import (
  KEEP,
  LINEAR,
  Tensors,
  linear,
  scale,
)
from specjax.drafters.eagle import module
from specjax.drafters.eagle.module import KIND, PAIR, Head
from specjax.drafters.heads import formats, speculators
from specjax.drafters.heads.formats import UNUSED, Files, Format, Found

FC_NORM = 'fc_norm.'  # before the numbers of norms of the target's layers
_MASK = 'mask_hidden'
# Names of the token of a mask: of speculators, and of vLLM.
_MASK_TOKENS = 'mask_token_id', 'pard_token', 'ptd_token_id'


def _table(
  names: Iterable[str],
  vocab: int,
  layer: str = 'layers.0.',
  fused: str = 'fc',
) -> formats.Table:
  """Returns where the parameters of a head are.

  Args:
    names: of all tensors.
    vocab: tokens of the target.
    layer: before the names of the first layer's.
    fused: before those of the map of the joined or fused features.
  """
  table = formats.table_of(names, vocab)
  first = {k.replace('{}', ''): x for k, x in table.items() if '{}' in k}
  for i in range(sum(FC_NORM in name for name in names)):
    first |= scale(f'{FC_NORM}{i}', f'norm_taps_{i}')
  first |= {
    'fuse/w': Tensors(LINEAR, (f'{fused}.weight',)),
    'mask_hidden': Tensors(KEEP, (_MASK,)),
    **linear('join', LINEAR, fused),
    **scale('layers.{}.input_layernorm', 'norm_token'),
    **scale('layers.{}.hidden_norm', 'norm_feature'),
    **scale('input_norm', 'norm_fused'),
  }
  own = formats.rename(first, lambda name: name.replace('layers.{}.', layer))
  return {**table, **own}


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
    files.refuse(
      f'config.json calls it version {claimed[0]} of EAGLE ({claimed[1]}), but '
      f'its tensors are those of version {version}: copy the config.json that '
      'belongs to them'
    )


def _read_layer(files: Files, width: int, prefix: str) -> dict[str, Any]:
  """Fields of `TransformerConfig` that config.json says of the layer."""
  rest = {k: v for k, v in files.layer.items() if v is not None}
  # Files leave out what is their library's default, or what tensors show.
  layer = files._replace(attributes=rest)
  heads = layer.take('num_attention_heads', values.size, 32)
  names = (f'self_attn.{x}_proj' for x in 'qk')
  queries, keys, inner = (
    files.shape(f'{prefix}{name}.weight', 2)[0]
    for name in (*names, 'mlp.gate_proj')
  )
  usual = max(queries // heads, 1)
  head_dim = layer.take('head_dim', values.size, usual)
  vocab = (('t2d', 1), ('embed_tokens.weight', 2))
  known = (files.shape(*x) for x in vocab if x[0] in files.tensors)
  default = 151936 if rest.get('model_type') == 'qwen3' else 32000
  rows = size_rows(
    2048,
    keys // head_dim,
    head_dim,
    vocab_size=next(known, (default,))[0],
    hidden_size=width,
    num_hidden_layers=1,
    num_attention_heads=heads,
    intermediate_size=inner,
  )
  fields = files.read_layers(rest, width, module.ACTIVATIONS, *rows)
  if 'sliding_attention' in (rest.get('layer_types') or ()):
    files.refuse(
      'config.json has a layer with sliding attention, which no head here has'
    )
  return fields


def _flag(files: Files, name: str, tensor: str = '') -> bool:
  """A switch of config.json; a tensor of its own has to agree with it."""
  value = files.attributes.get(name)
  if not tensor:
    return bool(value)
  here = tensor in files.tensors
  if value is not None and bool(value) != here:
    files.refuse(
      f'config.json has {name} = {value}, but {tensor} is '
      f'{"" if here else "not "}among the tensors'
    )
  return here


def _taps(files: Files, count: int) -> tuple[int, ...]:
  """Layers of the target that are read."""
  ids = files.take(_IDS, values.layers, None)
  if ids is not None:
    return files.read_taps(_IDS, ids, 1, count)
  taps = files.take(_IDS, values.layers, None, 'eagle_config')
  if taps is not None:
    return files.read_taps(_IDS, taps, 0, count)
  layers = files.target.num_layers
  return files.read_taps(_IDS, [2, layers // 2, layers - 3], 1, count)


def _mask_token(files: Files, vocab: int) -> int | None:
  """The token of the masks of P-EAGLE; None where a head has no masks."""
  told = files.attributes
  names = told.get('speculators_model_type'), told.get('architectures')
  masked = 'peagle' in f'{names}'.lower() or told.get('parallel_drafting')
  here = _MASK in files.tensors
  if not here and not masked:
    return None
  if not here:
    files.refuse(
      f'config.json is of P-EAGLE, but {_MASK} is not among the tensors: copy '
      'the config.json that belongs to them'
    )
  for name in _MASK_TOKENS:
    token = files.take(name, values.index, None)
    if token is not None:
      break
  if token is None or token >= vocab:
    files.refuse(
      f'config.json must name the token of {_MASK} as {_MASK_TOKENS[0]}, one '
      f'of the {vocab} of the target; got {token}'
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
      files.refuse(
        f'fc reads {inputs} numbers, no multiple of the width of the target, '
        f'{features}'
      )
    options['taps'] = _taps(files, inputs // features)
    options['norms'] = _norms(files)
    options['mask_token'] = _mask_token(files, vocab)
    name = name if options['mask_token'] is None else 'P-EAGLE'
  else:
    options['taps'] = (files.target.num_layers - 1,)
  attention = f'{layer}self_attn.'
  config = {
    **fields,
    'version': version,
    'join_bias': f'{fused}.bias' in tensors,
    'qk_norm': f'{attention}q_norm.weight' in tensors,
    'qkv_bias': f'{attention}q_proj.bias' in tensors,
    'out_bias': f'{attention}o_proj.bias' in tensors,
    'mlp_bias': f'{layer}mlp.down_proj.bias' in tensors,
    **formats.options(files, vocab),
    **options,
  }
  return Found(
    name,
    config,
    _table(tensors, vocab, layer, fused),
    features,
    vocab,
    files.verifier,
    fields['max_positions'],
    UNUSED,
  )


# Of config.json, the norm that each adds, and its tensor if it has one.
_SWITCHES = {
  'norm_before_residual': ('residual', ''),
  'norm_before_fc': ('fused', 'input_norm.weight'),
  'fc_norm': ('taps', f'{FC_NORM}0.weight'),
  'norm_output': ('carried', ''),
}


def _norms(files: Files) -> tuple[str, ...]:
  """Returns the norms of a head of version 3."""
  more = (
    norm
    for name, (norm, tensor) in _SWITCHES.items()
    if _flag(files, name, tensor)
  )
  return ('token', 'feature', 'last', *more)


def _first(files: Files, name: str) -> Found:
  if files.attributes.get('layernorms'):
    files.refuse(
      'config.json has layernorms, which no published head of version 1 has'
    )
  return _describe(files, name, 1, norms=(), projects=False)


FORMATS = (
  Format(
    'EAGLE-3',
    KIND,
    _is_third,
    lambda files, name: _describe(files, name, 3, join=PAIR),
  ),
  Format('EAGLE-1', KIND, _is_first, _first),
)


def form(head: Head) -> speculators.Form:
  """The form in which speculators has a head of EAGLE-3 or P-EAGLE.

  Raises:
    ValueError: the form does not have an option of the head.
  """
  sizes, target = head.sizes, head.target.config
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
    conversion.llama_attributes(head.config)
    | {
      'hidden_act': sizes.activation,
      'attention_bias': sizes.qkv_bias,
      'mlp_bias': sizes.mlp_bias,
    },
    {
      **({'mask_token_id': sizes.mask_token} if masked else {}),
      # Of what a layer reads; ours are of what it returns.
      _IDS: [tap + 1 for tap in sizes.taps],
      **{k: norm in sizes.norms for k, (norm, _) in _SWITCHES.items()},
    },
    _table(names, target.vocab_size),
    sizes.draft_vocab,
  )
