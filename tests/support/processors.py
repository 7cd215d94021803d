"""Cases of the logits pipeline, and what transformers makes of them.

  python -m tests.support.processors

writes `processors.json`, from which the tests run without torch. Every value is
exact in float32, and the small last digits of the logits keep them apart:
nothing hangs on rounding.
"""

import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_suffix('.json')
VOCAB = 12
ENDS = (10, 11)


def cases(count: int = 48) -> list[dict]:
  """Texts, logits and settings; a fifth of them at temperature 0."""
  random = np.random.default_rng(0)

  def some(*choices):
    return choices[random.integers(len(choices))]

  made = []
  for i in range(count):
    logits = random.permutation(VOCAB * 16)[:VOCAB] / 32 - 3
    tokens = random.integers(0, VOCAB, 9).tolist()
    cut = int(random.integers(1, 6))
    # Every fourth has one stage alone, to be seen by itself.
    stages = {
      'logit_bias': {int(random.integers(VOCAB)): some(-2.0, 0.5, 1.75)},
      'repetition_penalty': some(0.5, 1.25, 3.0),
      'presence_penalty': some(-1.5, 0.75, 2.0),
      'frequency_penalty': some(-0.5, 0.25, 1.125),
      'forbidden': random.choice(VOCAB - 3, 2, replace=False).tolist(),
      'min_new_tokens': int(random.integers(2, 8)),
      'top_k': some(3, 6),
      'top_p': some(0.5, 0.875),
      'min_p': some(0.0625, 0.25),
    }
    names = list(stages)
    alone = [names[i // 4 % len(names)]]
    kept = alone if i % 4 == 0 else [n for n in names if random.random() < 0.7]
    made.append(
      {
        'logits': (logits + np.arange(VOCAB) / 4096).tolist(),
        'prompt': tokens[:cut],
        'new': tokens[cut:],
        'temperature': 0.0 if i % 5 == 4 else some(0.5, 1.0, 1.5),
        'stages': {name: stages[name] for name in kept},
      }
    )
  return made


def by_transformers(case: dict) -> dict:
  """Logits before the temperature and probabilities, as `generate` does it.

  transformers has no presence and no frequency penalty; they are handed to it
  as a processor of one's own, as a user would.
  """
  import torch
  import transformers
  from transformers.generation import GenerationMixin

  stages = dict(case['stages'])
  presence = stages.pop('presence_penalty', 0)
  frequency = stages.pop('frequency_penalty', 0)
  bias = stages.pop('logit_bias', None)
  forbidden = stages.pop('forbidden', None)
  start = len(case['prompt'])

  def penalize(ids, scores):
    counts = torch.bincount(ids[0, start:], minlength=VOCAB)
    return scores - presence * (counts > 0) - frequency * counts

  class Model(GenerationMixin):
    config = transformers.PretrainedConfig()

  def apply(sample):
    warps = {'temperature', 'top_k', 'top_p', 'min_p'}
    off = {'temperature': None, 'top_k': None, 'top_p': None}
    chosen = stages | {'temperature': case['temperature'] or None}
    if not sample:
      chosen = {k: v for k, v in chosen.items() if k not in warps}
    config = transformers.GenerationConfig(
      do_sample=sample,
      sequence_bias=bias and {(int(k),): v for k, v in bias.items()},
      suppress_tokens=forbidden and forbidden[:1],
      bad_words_ids=forbidden and [[x] for x in forbidden[1:]],
      **(off | chosen),
    )
    config._eos_token_tensor = torch.tensor(ENDS)
    processors = Model()._get_logits_processor(
      config,
      input_ids_seq_length=start,
      logits_processor=transformers.LogitsProcessorList([penalize]),
      device='cpu',
    )
    ids = torch.tensor([case['prompt'] + case['new']])
    scores = torch.tensor([case['logits']], dtype=torch.float64)
    return processors(ids, scores)[0]

  logits = apply(sample=False)
  if case['temperature']:
    probs = torch.softmax(apply(sample=True), -1)
  else:
    probs = torch.nn.functional.one_hot(logits.argmax(), VOCAB)
  return {
    'logits': [x if np.isfinite(x) else None for x in logits.tolist()],
    'probs': probs.tolist(),
  }


def stored() -> list[tuple[dict, dict]]:
  """Cases and what transformers made of them."""
  return [(x['case'], x['expected']) for x in json.loads(FILE.read_text())]


def main() -> None:
  lines = [
    json.dumps({'case': case, 'expected': by_transformers(case)})
    for case in cases()
  ]
  FILE.write_text('[\n' + ',\n'.join(lines) + '\n]\n')


if __name__ == '__main__':
  main()
