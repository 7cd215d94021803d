"""The rejection sampler of vLLM, with its kernels run as plain Python.

  specjax certify --foreign=experiments.foreign.vllm.sampler

The bonus token, which another part of vLLM samples, is drawn from the same
processing of logits.
"""

import functools
import inspect
import sys
import types
from unittest import mock

import torch

from experiments import foreign
from experiments.foreign import kernels
from specjax.certify.cells import exponentials

_OPS = 'vllm.v1.sample.ops.topk_topp_sampler'
_WARMUP = 'vllm.model_executor.warmup.jit_warmup_triton_helper'


def _dispatcher(kernel, warmup_inputs):
  """Calls a kernel by the names of its parameters."""
  del warmup_inputs  # Unused.
  names = inspect.signature(kernel.function).parameters

  def decorate(function):
    @functools.wraps(function)
    def run(*given, **options):
      grid, constants = function(*given, **options)
      bound = inspect.signature(function).bind(*given, **options)
      known = bound.arguments | constants
      known |= {f'{name}_ptr': x for name, x in known.items()}
      kernel[grid](**{name: known[name] for name in names if name in known})

    return run

  return decorate


_folder = foreign.folder('vllm')
foreign.stub('vllm')
for _name, _members in {
  'vllm.triton_utils': {
    'tl': kernels.language,
    'triton': kernels.triton,
    'HAS_TRITON': False,
  },
  _WARMUP: {
    'triton_kernel_dispatcher_with_warmup': _dispatcher,
    'DispatchSpec': object,
    'TritonWarmupTensor': mock.MagicMock(),
    'WarmupChoices': mock.MagicMock(),
  },
}.items():
  sys.modules[_name] = types.ModuleType(_name)
  vars(sys.modules[_name]).update(_members)
_ops = foreign.load(_folder / 'v1/sample/ops/topk_topp_sampler.py')
sys.modules[_OPS] = _ops
_sampler = foreign.load(_folder / 'v1/sample/rejection_sampler.py')


def sampler(draft: torch.Tensor, q, logits, values, uniforms):
  rows, gamma = draft.shape
  vocab = logits.shape[2]
  cold = values['temperature'] == 0
  top_k, top_p = values['top_k'].int(), values['top_p']
  metadata = types.SimpleNamespace(
    all_greedy=bool(cold.all()),
    all_random=not cold.any(),
    temperature=values['temperature'],
    top_k=torch.where(top_k > 0, top_k, vocab) if top_k.any() else None,
    top_p=top_p if (top_p < 1).any() else None,
    generators={},
  )
  coins, race = uniforms[:, : gamma + 1], uniforms[:, gamma + 1 :]
  noise = torch.from_numpy(exponentials(race.numpy()))
  ends = torch.arange(1, rows + 1, dtype=torch.int32)
  last = _sampler.apply_sampling_constraints(
    logits[:, -1].clone(), ends, metadata
  )
  place = last.softmax(-1).cumsum(-1)[:, :-1]
  drawn = (coins[:, -1:] >= place).sum(-1)
  bonus = torch.where(cold, last.argmax(-1), drawn)
  target = logits[:, :-1].reshape(-1, vocab).clone()
  target = _sampler.apply_sampling_constraints(target, ends * gamma, metadata)
  with (
    mock.patch.object(torch, 'rand', return_value=coins[:, :-1].ravel()),
    mock.patch.object(torch.Tensor, 'exponential_', lambda x: x.copy_(noise)),
  ):
    return _sampler.rejection_sample(
      draft.int().ravel(),
      [gamma] * rows,
      gamma,
      ends * gamma,
      None if q is None else q.reshape(-1, vocab),
      target,
      bonus[:, None].contiguous(),
      metadata,
    )


# One race, which all positions of a row share.
sampler.coins = lambda gamma, vocab: (gamma + 1, 1)
