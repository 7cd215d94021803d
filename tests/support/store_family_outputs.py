"""Makes the references of `tests/support/family_outputs`: needs torch.

  python -m tests.support.store_family_outputs [family ...]

Every parameter is random: fresh models have biases 0 and norms 1, which would
hide a mix-up. Weights are rounded to float16, as they are stored, before
anything is computed. Of several seeds the first is taken whose greedy texts
nowhere hang on a rounding error.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers

from tests.support import family_outputs, tiny_families
from tests.support.tiny_families import STORED, VOCAB

MARGIN = 2e-3  # between the two largest logits of a greedy step
LENGTHS = tuple(range(1, 21))


def build(name: str, seed: int, **options):
  """A random model of transformers, in float32."""
  # No end of text: every text is as long as it may be.
  ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
  config = tiny_families.make_config(name, **ends, **options)
  tied = False
  if config.is_encoder_decoder:
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    tied = config.scale_decoder_outputs
    if not tied:  # No attribute unties it.
      head = model.lm_head.weight
      model.lm_head.weight = torch.nn.Parameter(head.detach().clone())
  elif hasattr(config, 'text_config'):
    model = transformers.AutoModelForImageTextToText.from_config(config)
  else:
    model = transformers.AutoModelForCausalLM.from_config(config)
  plus_one = 'gemma' in name and 'gemma4' not in name
  torch.manual_seed(seed)
  with torch.no_grad():
    for key, p in model.named_parameters():
      x = torch.randn_like(p)
      if p.ndim == 1:
        one = 'norm' in key or 'ln_' in key
        start = 1.0 if one and key.endswith('weight') else 0.0
        if tied and key == 'decoder.final_layer_norm.weight':
          start = 4.0  # The head divides by the root of the width.
        if plus_one or any(kind in name for kind in ('qwen3_next', 'qwen3_5')):
          # Their norms scale by 1 + x, but for those behind a state.
          start = 1.0 if 'linear_attn.norm' in key else 0.0
        if 'gemma4' in name and 'q_norm' in key:
          start = 0.1  # Nothing else makes its scores small.
        x = 0.3 * x + start
      elif 'relative' in key:
        x *= 1.5
      elif any(part in key for part in ('embed_', 'wte', 'wpe', 'shared')):
        # Small beside what the layers add, or tied heads repeat the input.
        x *= 0.2 if plus_one else 0.3
      else:
        large = any(part in key for part in ('head', '.o.', '.wo.'))
        x *= (3.0 if large else 1.5) * p.shape[-1] ** -0.5
      p.copy_(x.half().float())
    for key, p in model.named_buffers():
      if key.endswith(('e_score_correction_bias', 'expert_bias')):
        p.copy_((0.3 * torch.randn_like(p)).half().float())
      elif key.endswith('layer_scalar'):
        p.copy_((1 + 0.3 * torch.randn_like(p)).half().float())
  return model.eval()


def score(model, tokens, sources=None) -> torch.Tensor:
  """Logits [B, T, V]; sources are lists of token ids for an encoder."""
  tokens, rest = torch.as_tensor(tokens), {}
  if sources is not None:
    length = torch.tensor([len(source) for source in sources])
    padded = torch.zeros(len(sources), int(length.max())).long()
    for row, source in zip(padded, sources, strict=True):
      row[: len(source)] = torch.tensor(source)
    mask = torch.arange(padded.shape[1]) < length[:, None]
    rest = {'decoder_input_ids': tokens, 'attention_mask': mask.long()}
    tokens = padded
  with torch.no_grad():
    return model(tokens, **rest).logits


def margin_of(model, prompts, sources=None) -> float:
  """Smallest margin of greedy texts, without a cache and all at once."""
  length = torch.tensor([len(prompt) for prompt in prompts])
  rows = torch.arange(len(prompts))
  tokens = torch.zeros(len(prompts), max(LENGTHS) + family_outputs.NEW).long()
  for row, prompt in zip(tokens, prompts, strict=True):
    row[: len(prompt)] = torch.tensor(prompt)
  margin = float('inf')
  for _ in range(family_outputs.NEW):
    # Causal: what comes after a row's length does not matter yet.
    best = score(model, tokens, sources)[rows, length - 1].topk(2)
    gap = float((best.values[:, 0] - best.values[:, 1]).min())
    margin = min(margin, gap)
    if margin < MARGIN:
      break
    tokens[rows, length] = best.indices[:, 0]
    length += 1
  return margin


def decode(model, prompt: list[int]) -> list[int]:
  """Greedy text of transformers after a prompt."""
  out = model.generate(
    torch.tensor([prompt]),
    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
    max_new_tokens=family_outputs.NEW,
    do_sample=False,
  )
  return out[0, -family_outputs.NEW :].tolist()


def make(name: str, seeds=range(100), **options) -> family_outputs.Reference:
  """The reference of a family, from the first seed that is clear enough."""
  random = np.random.default_rng(0)
  tokens = random.integers(0, VOCAB, (2, 36))
  prompts = [random.integers(0, VOCAB, n).tolist() for n in LENGTHS]
  begun, sources, known = prompts, None, None
  for seed in seeds:
    model = build(name, seed, **options)
    if model.config.is_encoder_decoder:
      begun, sources, known = [[0]] * len(prompts), prompts, prompts[5::9]
      tokens[:, 0] = 0
    if margin_of(model, begun, sources) >= MARGIN:
      break
  else:
    raise ValueError(f'{name}: no seed keeps a margin of {MARGIN}')
  texts = [decode(model, prompt) for prompt in prompts]
  logits = score(model, tokens, known).numpy()
  with tempfile.TemporaryDirectory() as folder:
    model.half().save_pretrained(folder)
    file = pathlib.Path(folder) / 'model.safetensors'
    tensors = safetensors.numpy.load_file(file)
    config = json.loads((pathlib.Path(folder) / 'config.json').read_text())
  different = len({tuple(text) for text in texts})
  print(
    f'{name}: seed {seed}, logits std {logits.std():.2f}, {different} of '
    f'{len(texts)} texts differ, {sum(len(set(t)) for t in texts) / 20:.1f} '
    'different tokens in each'
  )
  return family_outputs.Reference(
    config, tensors, tokens, logits, prompts, texts, known
  )


if __name__ == '__main__':
  for name in sys.argv[1:] or STORED:
    make(name).store(name)
