"""EAGLE-3, Table 1, its column MT-Bench: EAGLE, EAGLE-2 and EAGLE-3.

  python -m experiments.run --config configs/papers/eagle3.py:llama3-8b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-13b, llama3-8b, llama3-70b, deepseek-8b. The heads are those that
the authors published; EAGLE has none for the last two. EAGLE-3's tree is made
as that of EAGLE-2: see `eagle2`; Lookahead, Hydra and HASS are not in the
project.
"""

from configs.papers import CHAT, Paper, beside_eagle, mt_bench
from experiments.papers.published import Metric, Published

_TARGETS = {
  'vicuna-13b': CHAT['vicuna-13b'],
  'llama3-8b': ('LLaMA3.1-8B-Instruct', 'meta-llama/Llama-3.1-8B-Instruct'),
  'llama3-70b': ('LLaMA3.3-70B-Instruct', 'meta-llama/Llama-3.3-70B-Instruct'),
  'deepseek-8b': (
    'DeepSeek-R1-Distill-LLaMA-8B',
    'deepseek-ai/DeepSeek-R1-Distill-Llama-8B',
  ),
}
_METHODS = {'EAGLE': 'eagle', 'EAGLE-2': 'eagle2', 'EAGLE-3': 'eagle3'}


def table1(part: str) -> Published:
  return mt_bench(
    _TARGETS[part],
    candidates=beside_eagle(part, *_METHODS.values()),
    table='Table 1',
    axes={'method': 'drafter', 'temperature': 'temperature'},
    names={'method': _METHODS},
    compared=(Metric('tau', 'tau'), Metric('speedup', 'speedup')),
  )


get_config = Paper('eagle3', {'table1': (table1, _TARGETS)})
