"""The speculative sampling of transformers, with its own warpers.

  specjax certify --foreign=experiments.foreign.huggingface.speculative

Greedy and chosen drafts are judged inside of its generation loop, by code that
cannot be called alone: they are refused here.
"""

from unittest import mock

import torch
import transformers
from transformers.generation import utils


def _warp(logits, temperature, top_k, top_p):
  """Logits [B, n, V] after the warpers that `generate` makes."""
  config = transformers.GenerationConfig(
    do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p
  )
  config._eos_token_tensor = None
  warpers = utils.GenerationMixin()._get_logits_processor(config, 1)
  # As in its loop, one position after the other.
  new = [warpers(None, logits[:, i]) for i in range(logits.shape[1])]
  return torch.stack(new, 1)


def _settings(values):
  each = [values[name].tolist() for name in ('temperature', 'top_k', 'top_p')]
  return list(zip(*each, strict=True))


def speculative(draft: torch.Tensor, q, logits, values, uniforms):
  settings = _settings(values)
  if q is None or any(temperature == 0 for temperature, _, _ in settings):
    raise NotImplementedError('its loop judges these without a function')
  warped = torch.empty_like(logits)
  for one in set(settings):
    at = torch.tensor([x == one for x in settings])
    warped[at] = _warp(logits[at], *one)
  coins: list = []

  def rand_like(ratio):
    return coins[-1][:-1].to(ratio.dtype).reshape(ratio.shape)

  def multinomial(probs, num_samples):
    del num_samples  # Unused.
    ends = probs.cumsum(1) / probs.sum(1, keepdim=True)
    return (coins[-1][-1] >= ends[:, :-1]).sum(1, keepdim=True)

  tokens = []
  with (
    mock.patch.object(torch, 'rand_like', rand_like),
    mock.patch.object(torch, 'multinomial', multinomial),
  ):
    for i, row in enumerate(uniforms):
      coins.append(row)
      new, _ = utils._speculative_sampling(
        draft[[i]], q[[i]].log(), draft.shape[1], warped[[i]]
      )
      tokens.append(new[0])
  return tokens
