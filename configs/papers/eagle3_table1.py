"""EAGLE-3, Table 1, its column MT-Bench: EAGLE, EAGLE-2 and EAGLE-3.

  python -m experiments.run \\
    --config configs/papers/eagle3_table1.py:llama3-8b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-13b, llama3-8b, llama3-70b, deepseek-8b. EAGLE-3's tree is made as
that of EAGLE-2: see `eagle2_table1`; Lookahead, Hydra and HASS are not in the
project.
"""

from configs.papers import MT_BENCH, OWN_HEADS, head, task
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts

_TARGETS = {
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.3'),
  'llama3-8b': ('LLaMA3.1-8B-Instruct', 'meta-llama/Llama-3.1-8B-Instruct'),
  'llama3-70b': ('LLaMA3.3-70B-Instruct', 'meta-llama/Llama-3.3-70B-Instruct'),
  'deepseek-8b': (
    'DeepSeek-R1-Distill-LLaMA-8B',
    'deepseek-ai/DeepSeek-R1-Distill-Llama-8B',
  ),
}
PARTS = tuple(_TARGETS)
_WIDTHS = (4, 2, 2, 1, 1)


def get_config(part: str = 'vicuna-13b') -> Published:
  name, path = _TARGETS[task(part, PARTS)]
  eagle, eagle3 = (f'heads/{part}/{kind}' for kind in ('eagle1', 'eagle3'))
  tree = {'beam': 10, 'nodes': 60}
  return Published(
    name=f'eagle3_table1_{part}',
    results=f'results/papers/eagle3_table1_{part}',
    target=Checkpoint(path),
    candidates={
      'eagle': head('eagle', eagle, 5, 'recursive', widths=_WIDTHS),
      'eagle2': head('eagle', eagle, 6, 'recursive', **tree),
      'eagle3': head('eagle', eagle3, 6, 'recursive', **tree),
    },
    prompts=Prompts(count=80),
    max_new_tokens=512,
    paper='eagle3',
    table='Table 1',
    part={'target': name},
    axes={'method': 'drafter', 'temperature': 'temperature'},
    names={
      'method': {'EAGLE': 'eagle', 'EAGLE-2': 'eagle2', 'EAGLE-3': 'eagle3'}
    },
    compared=(Metric('tau', 'tau'), Metric('speedup', 'speedup')),
    needs=(name, OWN_HEADS, MT_BENCH, 'a GPU with enough memory'),
  )
