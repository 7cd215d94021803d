"""EAGLE, Table 2: tokens per step with a tree, and n-alpha with a chain.

  python -m experiments.run --config configs/papers/eagle_table2.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, -13b, -33b, llama2-7b, -13b, -70b. n-alpha is the acceptance
of a token that was drafted from n features that were drafted themselves: place
n of a chain, of the steps that accepted all before it. The tree of the paper is
not printed there; this one is ours.
"""

from configs.papers import MT_BENCH, OWN_HEADS, head, task
from experiments.papers.published import Metric, Published
from experiments.settings import Candidate, Checkpoint, Prompts

_TARGETS = {
  'vicuna-7b': ('Vicuna-7B', 'lmsys/vicuna-7b-v1.3'),
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.3'),
  'vicuna-33b': ('Vicuna-33B', 'lmsys/vicuna-33b-v1.3'),
  'llama2-7b': ('LLaMA2-Chat-7B', 'meta-llama/Llama-2-7b-chat-hf'),
  'llama2-13b': ('LLaMA2-Chat-13B', 'meta-llama/Llama-2-13b-chat-hf'),
  'llama2-70b': ('LLaMA2-Chat-70B', 'meta-llama/Llama-2-70b-chat-hf'),
}
PARTS = tuple(_TARGETS)
_WIDTHS = (4, 2, 2, 1, 1)


def candidates(part: str) -> dict[str, Candidate]:
  path = f'heads/{part}/eagle1'
  return {
    'chain': head('eagle', path, 5),
    'tree': head('eagle', path, 5, 'recursive', widths=_WIDTHS),
  }


def get_config(part: str = 'vicuna-7b') -> Published:
  name, path = _TARGETS[task(part, PARTS)]
  return Published(
    name=f'eagle_table2_{part}',
    results=f'results/papers/eagle_table2_{part}',
    target=Checkpoint(path),
    candidates=candidates(part),
    prompts=Prompts(count=80),
    max_new_tokens=512,
    paper='eagle',
    table='Table 2',
    part={'target': name},
    axes={'temperature': 'temperature'},
    compared=(
      Metric('tau', 'tau', {'drafter': 'tree'}),
      *(
        Metric(f'alpha_{n}', 'unit_histogram', {'drafter': 'chain'}, place=n)
        for n in range(5)
      ),
    ),
    needs=(name, OWN_HEADS, MT_BENCH, 'a GPU with enough memory'),
  )
