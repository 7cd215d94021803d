"""EAGLE-2, Table 1, its column MT-Bench: drafters of the field beside it.

  python -m experiments.run --config configs/papers/eagle2.py:vicuna-7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: vicuna-7b, vicuna-13b, llama2-7b, llama2-13b. EAGLE-2 is EAGLE's head
with a tree made anew at every step: ten nodes are expanded at each of six
levels, and 60 (7B) or 50 (13B) are kept. EAGLE's own tree is not printed; this
one is ours. Lookahead and Hydra are not in the project. SpS, with Vicuna-68M,
and PLD need no trained heads: --config.drafters="('sps', 'ngram')".
"""

from configs.papers import CHAT, Paper, beside_eagle, mt_bench
from experiments.papers.published import Metric, Published

_NODES = {'vicuna-7b': 60, 'vicuna-13b': 50, 'llama2-7b': 60, 'llama2-13b': 50}
_METHODS = {
  'SpS': 'sps',
  'PLD': 'ngram',
  'Medusa': 'medusa',
  'EAGLE': 'eagle',
  'EAGLE-2': 'eagle2',
}


def table1(part: str) -> Published:
  return mt_bench(
    CHAT[part],
    candidates=beside_eagle(part, *_METHODS.values(), nodes=_NODES[part]),
    table='Table 1',
    axes={'method': 'drafter', 'temperature': 'temperature'},
    names={'method': _METHODS},
    compared=(Metric('tau', 'tau'), Metric('speedup', 'speedup')),
  )


get_config = Paper('eagle2', {'table1': (table1, _NODES)})
