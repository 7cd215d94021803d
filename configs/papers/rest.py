"""REST, Table 1: drafts from a corpus, speed-up over plain decoding, greedy.

  python -m experiments.run --config configs/papers/rest.py:codellama-7b \\
    --config.prompts.path=HumanEval.jsonl.gz

Parts: codellama-7b, codellama-13b (HumanEval, one shot), vicuna-7b, vicuna-13b
(MT-Bench). The corpus is a file of tokens, corpora/<part>.npy, see
`specjax.drafters.ngram.retrieval.read`. REST verifies a tree of what follows
all matches; here eight of them are merged.
"""

from configs.papers import Paper
from experiments.papers.published import Metric, Published
from specjax.bench.config import Candidate, Checkpoint, Prompts

_TARGETS = {
  'codellama-7b': ('CodeLlama-7B', 'codellama/CodeLlama-7b-Instruct-hf'),
  'codellama-13b': ('CodeLlama-13B', 'codellama/CodeLlama-13b-Instruct-hf'),
  'vicuna-7b': ('Vicuna-7B', 'lmsys/vicuna-7b-v1.5'),
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.5'),
}


def table1(part: str) -> Published:
  name, path = _TARGETS[part]
  code = part.startswith('code')
  corpus = f'corpora/{part}.npy'
  rest = Candidate(
    'ngram',
    10,
    options={'longest': 16, 'candidates': 8, 'corpus': corpus},
    verifiers=('recursive',),
  )
  return Published(
    target=Checkpoint(path),
    candidates={'rest': rest},
    temperatures=(0.0,),
    prompts=Prompts(count=200),
    max_new_tokens=512,
    table='Table 1',
    part={
      'target': name,
      'dataset': 'HumanEval 1-shot' if code else 'MT-Bench',
      'sampling': 'greedy',
    },
    compared=(
      Metric('SD_speedup'),
      Metric('REST_speedup', 'speedup', {'drafter': 'rest'}),
    ),
    needs=(
      name,
      'a corpus of code or chats as tokens (the paper: The Stack, UltraChat)',
      'HumanEval' if code else 'question.jsonl of MT-Bench',
      'a GPU (the paper: A6000)',
    ),
  )


get_config = Paper('rest', {'table1': (table1, _TARGETS)})
