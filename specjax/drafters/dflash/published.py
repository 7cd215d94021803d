"""DFlash heads and those that correct it, as others publish them.

Layers are those of Qwen3, and fc joins what is read of the target's layers
(Chen et al., arXiv:2602.06036). config.json is flat, with `dflash_config`, or,
in speculators' form, has the layers' sizes apart. Neither the embedding nor the
output layer is among the tensors, where they are the target's.

Layers of the target are counted in two ways: `target_layer_ids` of the authors
are of outputs, which are our taps, and `aux_hidden_state_layer_ids` of
speculators are of inputs, one more.

Three more formats have the same body and a correction (`corrections`): each is
known by its tensors, and config.json has to name it, too. DSpark (arXiv:
2607.05147) is written by speculators, SpecForge and DeepSpec. SpecForge trains
it with the last token saying the first place, and samples as if the first mask
did: `sample_from_anchor` decides here, by default as it is trained. Domino is
written by SpecForge, where `shift_label` says the same of it. DFlash2 (z-lab)
has convolutions and windows, too.
"""

import functools
from collections.abc import Iterable
from typing import Any

from specjax.checkpoints.families import conversion, values
from specjax.checkpoints.families.llama import size_rows
from specjax.checkpoints.families.table import (
  KEEP,
  LINEAR,
  Tensors,
  TensorSplit,
  linear,
  scale,
)
from specjax.checkpoints.families.values import attribute
from specjax.drafters.dflash import module
from specjax.drafters.dflash.corrections import MARKOV
from specjax.drafters.dflash.module import KIND
from specjax.drafters.heads import formats, speculators
from specjax.drafters.heads.formats import UNUSED, Files, Format, Found

_AUTHORS, _SPECULATORS = 'target_layer_ids', 'aux_hidden_state_layer_ids'
_ATTENTION = 'layers.0.self_attn.'
# Of heads that do more, with the values at which they do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
  'input_embedding_scale': (None, 1),
  'output_multiplier': (None, 1),
  'final_logit_softcapping': (None, 0),
}
# [E, G, H/G, D], and keys and values in [E, G, 2, D].
_QUERIES = TensorSplit(lambda x: (x,), 3)
_BOTH = TensorSplit(lambda x: (x[..., :1, :], x[..., 1:, :]), 3)
_GATES = TensorSplit(lambda x: (x,), 2)  # [in, 3, R], and [3, R]
_KERNELS = TensorSplit(lambda x: (x,), 3)  # [E, 2, taps, groups]
DSPARK, DOMINO, DFLASH2 = 'DSpark', 'Domino', 'DFlash2'
_CONFIDENCE = 'confidence_head.proj'
_GATE = {'gated': 'markov_head.gate_proj', 'rnn': 'markov_head.joint_proj'}
# The tensor that a format is known by.
_MARKS = {
  DSPARK: 'markov_head.markov_w1.weight',
  DOMINO: 'prefix_gru.weight_hh_l0',
  DFLASH2: 'candidate_selector.predecessor_codebook',
}
_BODY = {
  'fuse/w': Tensors(LINEAR, ('fc.weight',)),
  **scale('hidden_norm', 'norm_context'),
  **linear('layer{}/q', _QUERIES, 'layers.{}.self_attn.q_proj'),
  **linear(
    'layer{}/kv', _BOTH, *(f'layers.{{}}.self_attn.{x}_proj' for x in 'kv')
  ),
  **linear('confidence', LINEAR, 'confidence_head.proj'),
}
_BODY |= {
  f'layer{{}}/{part}/{ours}': Tensors(split, (f'layers.{{}}.{part}.{name}',))
  for part in ('attention_conv', 'mlp_conv')
  for ours, split, name in (
    ('base', KEEP, 'base_kernel'),
    ('own/w', _KERNELS, 'kernel_projection.weight'),
  )
}
_MARKOV = {
  'embedding': Tensors(KEEP, (_MARKS[DSPARK],)),
  'unembedding': Tensors(LINEAR, ('markov_head.markov_w2.weight',)),
}
# Of corrections, each parameter with its tensor.
_CORRECTIONS: dict[str, dict[str, Tensors]] = {
  '': {},
  'markov': _MARKOV,
  'gated': _MARKOV | linear('gate', LINEAR, _GATE['gated']),
  'rnn': _MARKOV | linear('gate', _GATES, _GATE['rnn']),
  'gru': {
    'read/w': Tensors(_GATES, ('prefix_gru.weight_ih_l0',)),
    'recall/w': Tensors(_GATES, (_MARKS[DOMINO],)),
    'join/w': Tensors(LINEAR, ('embed_proj.0.weight',)),
    'unembedding': Tensors(LINEAR, ('embed_proj.2.weight',)),
  },
  'selector': {
    'before': Tensors(KEEP, (_MARKS[DFLASH2],)),
    'after': Tensors(KEEP, ('candidate_selector.successor_codebook',)),
    'read/w': Tensors(LINEAR, ('candidate_selector.hidden_projection.weight',)),
  },
}


def _table(correction: str, names: Iterable[str], vocab: int) -> formats.Table:
  """Returns where the parameters of a head are."""
  own = _CORRECTIONS[correction]
  return {
    **formats.table_of(names, vocab),
    **_BODY,
    **{f'correction/{key}': source for key, source in own.items()},
  }


def _holds(mark: str, names: frozenset[str]) -> bool:
  own = {mark, 'fc.weight', 'hidden_norm.weight', 'norm.weight'}
  return own <= names and f'{_ATTENTION}q_proj.weight' in names


def _attribute(files: Files, name: str) -> Any:
  """The attributes of config.json; the authors keep some of them apart."""
  apart = files.take(name, lambda value: value, None, 'dflash_config')
  return files.attributes.get(name) if apart is None else apart


def _check_name(files: Files, name: str) -> None:
  """Refuses a config.json that calls the head something else, or nothing."""
  kind, named = name.lower(), False
  for field in ('projector_type', 'speculators_model_type'):
    value = _attribute(files, field)
    named |= value is not None
    if value not in (None, kind):
      files.refuse(
        f'config.json has {field} = {value!r}, but its tensors are those of '
        f'{name}: copy the config.json that is theirs'
      )
  known = str(files.attributes.get('architectures')).lower()
  if name in _MARKS and not named and kind not in known:
    files.refuse(
      f'config.json has no projector_type, and its tensor {_MARKS[name]} is of '
      f'{name}: add projector_type = {kind!r} to dflash_config if it is such a '
      'head'
    )


def _check_plain(files: Files) -> None:
  """Refuses heads that only begin as these."""
  for name, plain in _PLAIN.items():
    value = _attribute(files, name)
    if value not in plain:
      files.refuse(
        f'config.json has {name} = {value!r}, which no DFlash head here has'
      )


def _taps(files: Files, inputs: int, width: int) -> tuple[int, ...]:
  """Layers of the target that are read."""
  name, first = _SPECULATORS, 1
  ids = _attribute(files, name)
  if ids is None:
    name, first = _AUTHORS, 0
    ids = _attribute(files, name)
  if not isinstance(ids, list) or not all(type(i) is int for i in ids):
    files.refuse(
      f'config.json: {name} {ids}: a list of layers of the target is needed'
    )
  return files.read_taps(name, ids, first, inputs / width)


def _number(files: Files, name: str, least: int, bound: int | None = None):
  value = _attribute(files, name)
  good = type(value) is int and value >= least
  if not good or (bound is not None and value >= bound):
    more = '' if bound is None else f' and below {bound}'
    files.refuse(
      f'config.json: {name} must be a whole number of at least {least}{more}, '
      f'got {value!r}'
    )
  return value


def _agreed(files: Files, field: str, tensor: str, axis: int) -> int:
  """A size of a matrix, which config.json may not contradict."""
  size = files.shape(tensor, 2)[axis]
  if (value := _attribute(files, field)) not in (None, size):
    files.refuse(
      f'tensor {tensor} has shape {files.tensors[tensor].shape}, and '
      f'config.json {field} = {value!r}'
    )
  return size


def _body(files: Files, layers: int, width: int) -> dict[str, Any]:
  """What `Sizes` says of convolutions, windows and masks."""
  found: dict[str, Any] = {}
  conv = 'layers.0.attention_conv'
  if f'{conv}.base_kernel' in files.tensors:
    taps = files.shape(f'{conv}.base_kernel', 3)[1]
    group = _number(files, 'conv_group_size', 1)
    rows = files.shape(f'{conv}.kernel_projection.weight', 2)[0]
    if rows * group != 2 * taps * width:
      files.refuse(
        f'tensor {conv}.kernel_projection.weight has {rows} rows, and '
        f'conv_group_size = {group} of config.json makes it '
        f'{2 * taps * width / group:g}'
      )
    found |= {'conv': taps, 'conv_group': group}
  kinds = files.layer.get('layer_types') or ()
  slides = [kind == 'sliding_attention' for kind in kinds]
  causal = _attribute(files, 'is_causal')
  if any(slides):
    window = files.layer.get('sliding_window')
    if type(window) is not int or window < 1 or len(slides) != layers:
      files.refuse(
        'config.json: layers with sliding attention need sliding_window and '
        f'{layers} layer_types, got {window!r} and {kinds}'
      )
    found['windows'] = tuple(window if x else None for x in slides)
    if causal is None:
      causal = not _attribute(files, 'sliding_window_non_causal')
    if causal and _attribute(files, 'is_causal') and not all(slides):
      files.refuse(
        'config.json has is_causal = true and some layers with sliding '
        'attention, which no DFlash head here has'
      )
  return found | {'causal': bool(causal)}


def _correction(files: Files, name: str, width: int) -> dict[str, Any]:
  """What `Sizes` says of a correction."""
  given = (_attribute(files, x) for x in ('sample_from_anchor', 'shift_label'))
  first = next((x for x in given if x is not None), name == DSPARK)
  found: dict[str, Any] = {'anchored': bool(first)}
  if name == DOMINO:
    rank, recalled = (
      _agreed(files, field, tensor, axis)
      for field, tensor, axis in (
        ('emb_dim', 'embed_proj.0.weight', 0),
        ('gru_hidden_dim', _MARKS[name], 1),
      )
    )
    plain = _attribute(files, 'pure_draft_prefix_len')
    plain = 0 if plain is None else _number(files, 'pure_draft_prefix_len', 0)
    more = {'rank': rank, 'recalled': recalled, 'plain': plain}
    return found | {'correction': 'gru', **more}
  if name == DFLASH2:
    return found | {
      'correction': 'selector',
      'rank': _agreed(files, 'selector_rank', _MARKS[name], 1),
      'candidates': _number(files, 'selector_top_k', 1),
    }
  if name not in _MARKS:
    return found
  named = _attribute(files, 'markov_head_type') or 'vanilla'
  kind = {'vanilla': 'markov'}.get(named, named)
  here = [x for x, gate in _GATE.items() if f'{gate}.weight' in files.tensors]
  if [kind] != (here or ['markov']):
    files.refuse(
      f'config.json has markov_head_type = {named!r}, but its tensors are '
      f'those of {here or "vanilla"}'
    )
  rank = _agreed(files, 'markov_rank', _MARKS[name], 1)
  found |= {'correction': kind, 'rank': rank}
  if f'{_CONFIDENCE}.weight' in files.tensors:
    inputs = files.shape(f'{_CONFIDENCE}.weight', 2)[1]
    found['confidence'] = 'place' if inputs == width else 'token'
  return found


def _describe(files: Files, name: str) -> Found:
  _check_name(files, name)
  _check_plain(files)
  tensors = files.tensors
  width, inputs = files.shape('fc.weight', 2)
  bias = attribute('attention_bias', 'bias', values.flag, False)
  rows = *size_rows(32768, 32, 128), bias
  fields = files.read_layers(files.layer, width, ('silu',), *rows)
  vocab = fields['vocab_size']
  config = {
    **fields,
    'taps': _taps(files, inputs, width),
    'block': _number(files, 'block_size', 2),
    'mask_token': _number(files, 'mask_token_id', 0, vocab),
    'qk_norm': f'{_ATTENTION}q_norm.weight' in tensors,
    **_body(files, fields['layers'], width),
    **_correction(files, name, width),
    **formats.options(files, vocab),
  }
  correction = config.get('correction', '')
  return Found(
    name,
    config,
    _table(correction, tensors, vocab),
    width,
    vocab,
    files.verifier,
    fields['max_positions'],
    UNUSED,
  )


FORMATS = tuple(
  Format(name, KIND, functools.partial(_holds, mark), _describe)
  for name, mark in {**_MARKS, 'DFlash': 'fc.weight'}.items()
)


def _spark(sizes: module.Sizes) -> dict[str, Any]:
  """Returns what config.json of DSpark has besides that of DFlash."""
  kind = sizes.correction
  return {
    'sample_from_anchor': sizes.anchored,
    'markov_rank': sizes.rank,
    'markov_head_type': 'vanilla' if kind == 'markov' else kind,
    'enable_confidence_head': bool(sizes.confidence),
    'confidence_head_with_markov': sizes.confidence == 'token',
  }


def form(head: module.Head) -> speculators.Form:
  """The form in which speculators has a head.

  Raises:
    ValueError: the form does not have an option of the head.
  """
  sizes = head.sizes
  spark = sizes.correction in MARKOV
  wrong = {
    'mask_token': sizes.mask_token is None,
    'qk_norm': not sizes.qk_norm,
    'causal': sizes.causal,
    'correction': bool(sizes.correction) and not spark,
    # The state of an rnn has seen the token before the draft there.
    'anchored': (
      not sizes.anchored
      if sizes.correction == 'rnn'
      else sizes.anchored and not spark
    ),
    'confidence': bool(sizes.confidence) and not spark,
    'conv': bool(sizes.conv),
    'windows': any(sizes.windows),
  }
  remedy = (
    'train one of DFlash or DSpark (rnn: anchored) with qk_norm and a '
    'mask_token that no text has'
  )
  speculators.refuse(sizes, wrong, remedy)
  return speculators.Form(
    'dspark' if spark else 'dflash',
    'DSparkSpeculator' if spark else 'DFlashSpeculator',
    conversion.llama_attributes(head.config)
    | {
      'attention_bias': sizes.bias,
      'layer_types': ['full_attention'] * sizes.layers,
    },
    {
      'block_size': sizes.block,
      'mask_token_id': sizes.mask_token,
      # Of what a layer reads; ours are of what it returns.
      _SPECULATORS: [tap + 1 for tap in sizes.taps],
      **(_spark(sizes) if spark else {}),
    },
    _table(sizes.correction, ('d2t', 't2d'), head.config.vocab_size),
    sizes.draft_vocab,
    sizes.depth,
  )
