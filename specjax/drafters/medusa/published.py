"""Medusa's heads: of its authors, and as vLLM has them.

Head i, counted from 0, is our head i + 1: a linear map with a residual, and an
output layer of its own (Cai et al., arXiv:2401.10774). How many heads there are
the tensors say; config.json of the authors may say another number, since it is
that of the heads that are used.
"""

import re

from specjax.checkpoints.families.table import LINEAR, Tensors, TensorSplit
from specjax.drafters.heads.formats import Files, Format, Found, text
from specjax.drafters.medusa.module import KIND

# Of head i: the linear map, and the output layer.
_AUTHORS = '{}.0.linear', '{}.1.weight'
_VLLM = 'blocks.{}.layers.0', 'lm_heads.{}.weight'
_LATER = re.compile(r'\d+\.[1-9]\d*\.linear\.|blocks\.\d+\.layers\.[1-9]')


def _side_by_side(count: int, width: int) -> TensorSplit:
  """[.., K * E]: a tensor for each head."""

  def views(x):
    return tuple(x[..., i * width : (i + 1) * width] for i in range(count))

  return TensorSplit(views)


def _describe(files: Files, name: str, linear: str, output: str) -> Found:
  tensors = files.tensors
  deep = [name for name in tensors if _LATER.match(name)]
  if deep:
    files.refuse(
      f'{deep[0]} is of a second residual block, and heads here have one'
    )
  count = 0
  while f'{linear}.weight'.format(count) in tensors:
    count += 1
  width = files.shape(f'{linear}.weight'.format(0), 2)[0]
  split = _side_by_side(count, width)

  def every(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(count))

  outputs = every(output)
  config = {
    'count': count,
    'bias': f'{linear}.bias'.format(0) in tensors,
    'unembedding': outputs[0] in tensors,
  }
  table = {
    'residual': Tensors(split, every(f'{linear}.weight')),
    'bias': Tensors(split, every(f'{linear}.bias')),
  } | {
    f'unembedding/head{i + 1}': Tensors(LINEAR, (own,))
    for i, own in enumerate(outputs)
  }
  vocab = _vocabulary(files, outputs[0])
  verifier = files.take('base_model_name_or_path', text, '')
  return Found(name, config, table, width, vocab, verifier)


def _vocabulary(files: Files, output: str) -> int:
  """Tokens of the target: those of an output layer, or what is said."""
  if output in files.tensors:
    return files.shape(output, 2)[0]
  said = files.attributes.get('vocab_size')
  if type(said) is int:
    return said
  files.refuse(
    'it has no output layers, and its config.json no vocab_size: nothing says '
    'for which vocabulary it is'
  )


FORMATS = (
  Format(
    'Medusa',
    KIND,
    lambda names: '0.0.linear.weight' in names,
    lambda files, name: _describe(files, name, *_AUTHORS),
  ),
  Format(
    'Medusa of vLLM',
    KIND,
    lambda names: 'blocks.0.layers.0.weight' in names,
    lambda files, name: _describe(files, name, *_VLLM),
  ),
)
