"""A published pair as people run it on a CPU: Qwen2.5-Coder, 1.5B and 0.5B.

  specjax predict configs/real_pair.py:FOLDER \\
    --prompts.path=HumanEval.jsonl.gz --prompts.chat \\
    --drafters=sibling,smollm2,ngram --timed=False

FOLDER has the three GGUF files that `get_config` names: Qwen2.5-Coder-Instruct
of 1.5B and 0.5B in Q4_K_M, and SmolLM2-135M-Instruct in Q4_1. Weights are held
in the bits of the files, and activations are rounded to eight bits, as
llama.cpp does. The drafters are the sibling and SmolLM2 (another vocabulary) as
stored, the sibling in four bits with all tokens and with the 32,768 most
frequent ones, the sibling as stored with copies drafted for it (`cascade`),
copies of text (`ngram-2` only where two tokens agree), tokens that an earlier
pass nearly gave (`recycling`, a chain, and `recycling-16`, a tree of 16), and
the target without some of its layers. A run that was stopped keeps its rows,
and the same command goes on. `specjax predict` does not replay recycling.

Any other pair: `specjax run pair --target.path=... --draft.path=... --rounds`.
"""

import os

from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts


def get_config(folder: str = '.') -> Experiment:
  names = 'qwen2.5-coder-1.5b', 'qwen2.5-coder-0.5b', 'smollm2-135m'
  target, sibling, other = (os.path.join(folder, f'{n}.gguf') for n in names)
  few = {'bits': 4, 'rounds': True}
  return Experiment(
    name='real_pair',
    target=Checkpoint(target),
    rounds=True,
    candidates={
      'sibling': Candidate('lm', 4, sibling),
      'sibling-int4': Candidate('quantized', 4, sibling, few),
      'sibling-int4-32k': Candidate(
        'quantized', 4, sibling, {**few, 'vocabulary': 32_768}
      ),
      'smollm2': Candidate('lm', 4, other),
      'ngram': Candidate('ngram', 4),
      'ngram-2': Candidate('ngram', 4, options={'shortest': 2}),
      'suffix': Candidate('suffix', 4),
      'cascade': Candidate(
        'cascade', 4, sibling, {'inner': Candidate('ngram', 3)}
      ),
      'recycling': Candidate('recycling', 4, options={'nodes': 4}),
      'recycling-16': Candidate(
        'recycling', 4, options={'nodes': 16}, verifiers=('recursive',)
      ),
      'skip': Candidate('skip', 2, options={'skip': tuple(range(8, 20))}),
    },
    prompts=Prompts(count=40),
    max_new_tokens=128,
  )
