"""EAGLE-2, Table 1, its column MT-Bench: drafters of the field beside it.

  python -m experiments.run \\
    --config configs/papers/eagle2_table1.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, vicuna-13b, llama2-7b, llama2-13b. EAGLE-2 is EAGLE's head
with a tree made anew at every step: ten nodes are expanded at each of six
levels, and 60 (7B) or 50 (13B) are kept. EAGLE's own tree is not printed; this
one is ours. Lookahead and Hydra are not in the project. SpS, with Vicuna-68M,
and PLD need no trained heads: --config.drafters="('sps', 'ngram')".
"""

from configs.papers import MT_BENCH, OWN_HEADS, head, lm, task
from experiments.papers.published import Metric, Published
from experiments.settings import Candidate, Checkpoint, Prompts

_TARGETS = {
  'vicuna-7b': ('Vicuna-7B', 'lmsys/vicuna-7b-v1.3', 60),
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.3', 50),
  'llama2-7b': ('LLaMA2-Chat-7B', 'meta-llama/Llama-2-7b-chat-hf', 60),
  'llama2-13b': ('LLaMA2-Chat-13B', 'meta-llama/Llama-2-13b-chat-hf', 50),
}
PARTS = tuple(_TARGETS)
_WIDTHS = (4, 2, 2, 1, 1)


def get_config(part: str = 'vicuna-7b') -> Published:
  name, path, nodes = _TARGETS[task(part, PARTS)]
  heads = f'heads/{part}'
  eagle = f'{heads}/eagle1'
  return Published(
    name=f'eagle2_table1_{part}',
    results=f'results/papers/eagle2_table1_{part}',
    target=Checkpoint(path),
    candidates={
      'sps': lm('double7/vicuna-68m', 7),
      'ngram': Candidate('ngram', 10),
      'medusa': head('medusa', f'{heads}/medusa', 4, 'recursive', tree=64),
      'eagle': head('eagle', eagle, 5, 'recursive', widths=_WIDTHS),
      'eagle2': head('eagle', eagle, 6, 'recursive', beam=10, nodes=nodes),
    },
    prompts=Prompts(count=80),
    max_new_tokens=512,
    paper='eagle2',
    table='Table 1',
    part={'target': name},
    axes={'method': 'drafter', 'temperature': 'temperature'},
    names={
      'method': {
        'SpS': 'sps',
        'PLD': 'ngram',
        'Medusa': 'medusa',
        'EAGLE': 'eagle',
        'EAGLE-2': 'eagle2',
      }
    },
    compared=(Metric('tau', 'tau'), Metric('speedup', 'speedup')),
    needs=(name, OWN_HEADS, MT_BENCH, 'a GPU with enough memory'),
  )
