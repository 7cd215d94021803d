"""The kernel of SGLang that verifies drawn chains, run as plain Python.

  specjax certify --foreign=experiments.foreign.sglang.chain

Its target probabilities are made by other kernels: here they are ours. As its
sampling parameters say, a greedy row has temperature 1 and top-k 1.
"""

import numpy as np
import torch

from experiments import foreign
from experiments.foreign import kernels
from specjax.certify.foreign import processed

kernels.install()
_PLACE = 'kernels/ops/speculative/reject_sampling.py'
_sampler = foreign.load(foreign.folder('sglang') / _PLACE)


def _chain(draft, q, logits, values, uniforms, block_verification):
  if q is None:
    raise NotImplementedError('chosen drafts are verified by a kernel of CUDA')
  cold = values['temperature'] == 0
  if cold.all():
    raise NotImplementedError('greedy batches are verified by another kernel')
  values = values | {
    'temperature': np.where(cold, 1, values['temperature']),
    'top_k': np.where(cold, 1, values['top_k']),
  }
  rows, gamma = draft.shape
  slots = gamma + 1
  # Node 0 is the last committed token.
  nodes = torch.from_numpy(np.pad(draft, ((0, 0), (1, 0))))
  predicts = torch.zeros(rows * slots, dtype=torch.int32)
  accepted = torch.full((rows, slots), -1, dtype=torch.int32)
  count = torch.zeros(rows, dtype=torch.int32)
  target = processed(logits, values).astype(np.float32)
  coins = torch.from_numpy(uniforms.astype(np.float32))
  coins = coins.clamp_(max=1 - 2**-24)
  _sampler.chain_speculative_sampling_triton(
    predicts,
    accepted,
    count,
    nodes,
    torch.arange(rows * slots).reshape(rows, slots),
    None,
    None,
    coins,
    coins[:, -1].contiguous(),
    torch.from_numpy(target),
    torch.from_numpy(q),
    1.0,
    1.0,
    True,
    block_verification=block_verification,
  )
  tokens = predicts[accepted.clamp(min=0).long()]
  return torch.where(accepted >= 0, tokens, -1).numpy()


def chain(draft, q, logits, values, uniforms):
  return _chain(draft, q, logits, values, uniforms, False)


def block(draft, q, logits, values, uniforms):
  return _chain(draft, q, logits, values, uniforms, True)
