"""The parts of a family: rows of attributes, and sources of parameters."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from specjax.models.config import TransformerConfig

# Attributes of `config.json` that belong together: row(rest, fields) -> fields
# of `TransformerConfig`. It takes its attributes out of `rest`; `fields` are
# those of the rows before. It raises a ValueError that names the attribute.
Row = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


class TensorSplit(NamedTuple):
  """Cuts one parameter into the tensors of a checkpoint.

  views(x) -> parts: slices of x, one for each tensor. Where a source has a
    single name for several parts, its tensor is their concatenation along the
    outputs.
  outputs: axes of a part, the last ones, that are the outputs of a linear map.
    What comes before are inputs: none for a bias, one for a weight. 0 means
    that the tensor is the part itself.
  transpose: whether tensors of weights are [.., out, in] (PyTorch's Linear) or
    [.., in, out] as ours are.
  """

  views: Callable[[Any], tuple[Any, ...]]
  outputs: int = 1
  transpose: bool = True

  def _shape(self, part) -> tuple[int, ...]:
    """Returns the shape of a part with its outputs in one axis."""
    split = part.ndim - self.outputs
    return (*part.shape[:split], math.prod(part.shape[split:]))

  def _turn(self, x):
    return x.swapaxes(-1, -2) if self.transpose and x.ndim > 1 else x

  def cut(self, x: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Returns the `count` tensors of a parameter; copies only where it must."""
    parts = self.views(x)
    if self.outputs:
      parts = tuple(part.reshape(self._shape(part)) for part in parts)
    if count < len(parts):
      parts = (np.concatenate(parts, -1),)
    return tuple(self._turn(part) for part in parts) if self.outputs else parts

  def shapes(self, shape: tuple[int, ...], count: int):
    """Shapes of the tensors of a parameter."""
    # No memory: every stride is 0.
    parts = self.views(np.broadcast_to(np.uint8(0), shape))
    if not self.outputs:
      return tuple(part.shape for part in parts)
    flat = [self._shape(part) for part in parts]
    if count < len(parts):
      flat = [(*flat[0][:-1], sum(s[-1] for s in flat))]
    if not self.transpose:
      return tuple(flat)
    return tuple(s[:-2] + s[-2:][::-1] for s in flat)

  def pieces(self, shape: tuple[int, ...], count: int, cut):
    """Finds a part x[cut] of a parameter in its tensors.

    Args:
      shape: of the parameter.
      count: of its tensors.
      cut: a slice for each axis. Of the outputs of a part only the first axis
        may be cut: what is left is then side by side in the tensor.

    Returns:
      For each tensor the indices of its pieces, one for each part in it.
    """
    # Nobody looks at the entries; strides tell which axis is which.
    ones = range(1, len(shape) + 1)
    marked = np.lib.stride_tricks.as_strided(np.uint8(0), shape, tuple(ones))
    indices, end = [], 0
    for part in self.views(marked):
      split = part.ndim - self.outputs
      # Axes inside an output may be parts of one of x.
      outer = part.strides[: split + 1]
      index = [cut[stride - 1] for stride in outer]
      if self.outputs:
        inner = math.prod(part.shape[split + 1 :])
        first, last, _ = index[split].indices(part.shape[split])
        begin = end if count == 1 else 0
        end = begin + part.shape[split] * inner
        side = slice(begin + first * inner, begin + last * inner)
        index = [*index[:split], side]
        if self.transpose:
          index[-2:] = index[-2:][::-1]
      indices.append(tuple(index))
    return [indices] if count == 1 else [[index] for index in indices]

  def fill(self, x: np.ndarray, count: int, index: int, pieces) -> None:
    """Writes the pieces of the tensor at `index` into their places in x."""
    parts = self.views(x)
    if count == len(parts):
      parts = parts[index : index + 1]
    for part, piece in zip(parts, pieces, strict=True):
      part[...] = (self._turn(piece) if self.outputs else piece).reshape(
        part.shape
      )


class Tensors(NamedTuple):
  """The tensors that one parameter is made of.

  {} stands for the layer. Names with {expert} stand for one tensor an expert,
  expert after expert.
  """

  split: TensorSplit
  names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Family:
  """Models that share the names in their files.

  Attributes:
    model_type: their name in `config.json`.
    architecture: name of the class with the language modelling head.
    rows: attributes that are handled, in order.
    fixed: fields that are the same for the whole family.
    only: attributes that are no choice here, beyond `ONLY`: any other value
      is rejected.
    harmless: attributes that do not change the logits, beyond `HARMLESS`, with
      spaces between.
    sources: of each parameter, '/' between the keys and {} for the layer.
      Rows of parameters that a configuration lacks are not used.
    varying: config -> sources that it decides about, beside those.
    copies: tensors that some files have beside the embedding or in its place,
      and that are the same; so is the head's where the two are tied.
    spare_head: whether the head is the embedding where a file has none.
    prefix: of tensor names; files of the model without its head lack it.
    ignored: endings of tensor names that hold no parameters.
    unread: beginnings of names of tensors that logits do not depend on; {}
      stands for the number of layers.
    stacked: sources in place of others, of files that have all experts of a
      layer in one tensor.
  """

  model_type: str
  architecture: str
  rows: tuple[Row, ...]
  fixed: Mapping[str, Any]
  sources: Mapping[str, Tensors]
  only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  harmless: str = ''
  varying: Callable[[TransformerConfig], Mapping[str, Tensors]] = lambda _: {}
  copies: tuple[str, ...] = ()
  spare_head: bool = False
  prefix: str = 'model.'
  ignored: tuple[str, ...] = ()
  unread: tuple[str, ...] = ()
  stacked: Mapping[str, Tensors] = dataclasses.field(default_factory=dict)

  def table(self, config: TransformerConfig) -> dict[str, Tensors]:
    """Returns the sources of all parameters that there may be."""
    return {**self.sources, **self.varying(config)}

  def of(self, names: Iterable[str]) -> 'Family':
    """Returns the family with the sources that a file's tensors have."""
    if not any(name.endswith('.experts.gate_up_proj') for name in names):
      return self
    return dataclasses.replace(self, sources={**self.sources, **self.stacked})


# Splits, by what a part holds.
KEEP = TensorSplit(lambda x: (x,), 0)
LINEAR = TensorSplit(lambda x: (x,))
# Outputs that lie head by head, [heads, outputs].
HEADS = TensorSplit(lambda x: (x,), 2)
# The same with several maps in each group of heads: [G, maps, D].
MAPS = TensorSplit(lambda x: (x,), 3)
# Of these maps the last one apart.
LAST_APART = TensorSplit(lambda x: (x[..., :-1, :], x[..., -1:, :]), 3)
# Queries, keys and values, which we group by key-value head: [G, H/G + 2, D].
GROUPS = TensorSplit(
  lambda x: (x[..., :-2, :], x[..., -2:-1, :], x[..., -1:, :]), 3
)


def _pairs(x):
  """Puts entries [..., D] that are half a head apart side by side."""
  *outer, step = x.strides
  half = x.shape[-1] // 2
  shape = *x.shape[:-1], half, 2
  return np.lib.stride_tricks.as_strided(x, shape, (*outer, step, half * step))


# The same, of files whose rotary positions turn entries that are side by side:
# [G, H/G + 2, 0 2 4 1 3 5] is stored as 0 1 2 3 4 5.
TURNED = TensorSplit(
  lambda x: (
    _pairs(x[..., :-2, :]),
    _pairs(x[..., -2:-1, :]),
    x[..., -1:, :, None],
  ),
  4,
)
# [ways, F]: the gate before what it gates, or one way without a gate.
WAYS = TensorSplit(lambda x: tuple(x[..., i, :] for i in range(x.shape[-2])))
# The experts of a layer: [X, E, ways, F] as above, and [X, F, E].
EXPERT_WAYS = TensorSplit(
  lambda x: tuple(w[:, i] for w in x for i in range(x.shape[-2]))
)
EXPERTS = TensorSplit(tuple)


def untransposed(split: TensorSplit) -> TensorSplit:
  """Returns a split with the same parts in tensors that are [in, out]."""
  return split._replace(transpose=False)


def kept(before: str, names: Mapping[str, str]) -> dict[str, Tensors]:
  """Returns sources of a layer's parameters that are tensors as they are.

  Args:
    before: the names of all tensors.
    names: the rest of them, by parameter.
  """
  return {
    f'layer{{}}/{ours}': Tensors(KEEP, (before + theirs,))
    for ours, theirs in names.items()
  }


def scale(name: str, key: str) -> dict[str, Tensors]:
  """Returns the source of a norm without a bias."""
  return {f'{key}/scale': Tensors(KEEP, (f'{name}.weight',))}


def norm(name: str, key: str) -> dict[str, Tensors]:
  """Returns the sources of a norm with a bias."""
  return scale(name, key) | {f'{key}/bias': Tensors(KEEP, (f'{name}.bias',))}


def linear(key: str, split: TensorSplit, *names: str) -> dict[str, Tensors]:
  """Returns the sources of a linear map with a bias."""
  return {
    f'{key}/{ours}': Tensors(split, tuple(f'{name}.{kind}' for name in names))
    for ours, kind in (('w', 'weight'), ('b', 'bias'))
  }


def experts(block: str, *up: str, down: str) -> dict[str, Tensors]:
  """Returns the sources of a mixture, whose experts are tensors of their own.

  Args:
    block: before the names of all of them.
    *up: names of an expert's maps to its width, the gate's first.
    down: name of the map back.
  """
  one = block + 'experts.{expert}.'
  return {
    'layer{}/experts/router': Tensors(LINEAR, (block + 'gate.weight',)),
    'layer{}/experts/up': Tensors(
      EXPERT_WAYS, tuple(f'{one}{name}.weight' for name in up)
    ),
    'layer{}/experts/down': Tensors(EXPERTS, (f'{one}{down}.weight',)),
  }


# No choice of any family, unless its table has another value.
ONLY = {
  'add_cross_attention': False,
  'is_decoder': False,
  'is_encoder_decoder': False,
  'pretraining_tp': 1,
  'tie_encoder_decoder': False,
}
# What transformers writes for any family: its own bookkeeping, training, and
# what only `generate` looks at.
_HARMLESS = """
  _attn_implementation_autoset _name_or_path _num_labels attention_dropout
  attn_implementation auto_map bos_token_id cache_implementation
  chunk_size_feed_forward classifier_dropout do_sample dtype embd_pdrop
  eos_token_id finetuning_task gradient_checkpointing id2label
  initializer_range label2id max_length max_sequence_length model_type
  num_labels output_attentions output_hidden_states output_router_logits
  pad_token_id pard2 pard2_proj_bias pard2_scale pard2_target_dim
  pard2_target_layers pard_token problem_type resid_pdrop return_dict
  router_aux_loss_coef spd_type
  task_specific_params temperature tokenizer_class top_k top_p torch_dtype
  transformers.js_config transformers_version unsloth_fixed unsloth_version
  use_cache
"""
HARMLESS = frozenset(_HARMLESS.split())
