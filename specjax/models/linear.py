"""Linear maps, and weights in blocks of columns for a CPU that decodes."""

import math

import flax.linen as nn

COLUMNS = 64  # of a block of weights
FEW_ROWS = 8  # up to which blocks pay


def multiply(x, w):
  """x [..., in] times w, which is [in, out] or [out/64, in, 64] in blocks.

  A library's matrix product repacks the weights even for two rows, and costs
  a CPU twice a single row. One pass over a block that fits the innermost
  cache serves up to eight rows at the price of reading it once. Up to six
  rows were seen to add in one order, so that one token and five give the same
  bits; nothing relies on it.
  """
  if w.ndim == 2:
    return x @ w
  rows = x.reshape(-1, w.shape[1])
  if len(rows) > FEW_ROWS:
    y = rows @ w.transpose(1, 0, 2).reshape(w.shape[1], -1)
  elif len(rows) == 1:
    y = (rows[0][:, None] * w).sum(1)
  else:
    y = (rows[:, :, None] * w[:, None]).sum(2).swapaxes(0, 1)
  return y.reshape(*x.shape[:-1], -1)


def declare_weight(module, name, blocked, inputs, outputs, axes, scale):
  """A weight [inputs, *outputs], as its product takes it.

  Where blocks are asked for and come out even it is [out/64, in, 64],
  otherwise [in, *outputs].
  """
  shape, total = (inputs, *outputs), math.prod(outputs)
  blocked = blocked and total % COLUMNS == 0
  if blocked:
    shape, axes = (total // COLUMNS, inputs, COLUMNS), (None, None, None)
  initializer = nn.initializers.normal(scale)
  w = module.param(name, nn.with_logical_partitioning(initializer, axes), shape)
  return w if blocked else w.reshape(inputs, -1)


class Linear(nn.Module):
  """x [..., inputs] -> [..., *outputs]."""

  blocked: bool
  inputs: int
  outputs: tuple[int, ...]
  axes: tuple[str | None, ...]  # logical names of (inputs, *outputs)
  bias: bool
  scale: float

  @nn.compact
  def __call__(self, x):
    w = declare_weight(
      self, 'w', self.blocked, self.inputs, self.outputs, self.axes, self.scale
    )
    y = multiply(x, w).reshape(*x.shape[:-1], *self.outputs)
    if self.bias:
      zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
      y += self.param('b', zeros, self.outputs)
    return y
