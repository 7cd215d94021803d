"""Spec-Bench: speed-ups of its tasks, greedy, float16, batch 1.

  python -m experiments.run --config configs/papers/spec_bench.py:7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: 7b, 13b, 33b (Vicuna, A100). SpS (Vicuna-68M drafts) and PLD (prompt
lookup) need nothing else: --config.drafters="('sps', 'ngram')". Medusa and the
EAGLEs need trained heads; REST, Hydra, Lookahead, Recycling and SAMD have no
cell here. Ours are defined as theirs: the speed-up is a ratio of means of the
prompts' rates, and tau is a mean over steps; there over all turns, here over
the first ones. The tasks of MT-Bench, one column there, are domains of their
own here, so that column stays empty.
"""

from configs.papers import OWN_HEADS, Paper, beside_eagle
from experiments.papers.published import Metric, Published
from experiments.settings import Checkpoint, Prompts

_DOMAINS = {
  'translation': 'translation',
  'summarization': 'summarization',
  'qa': 'qa',
  'math': 'math_reasoning',
  'rag': 'rag',
}
_METHODS = {
  'SpS': 'sps',
  'PLD': 'ngram',
  'Medusa': 'medusa',
  'EAGLE': 'eagle',
  'EAGLE2': 'eagle2',
  'EAGLE3': 'eagle3',
}


def leaderboard(part: str) -> Published:
  return Published(
    target=Checkpoint(f'lmsys/vicuna-{part}-v1.3'),
    candidates=beside_eagle(f'vicuna-{part}', *_METHODS.values()),
    temperatures=(0.0,),
    prompts=Prompts(count=80),
    max_new_tokens=1024,
    table='Leaderboard.md',
    part={'device': 'A100', 'target': f'Vicuna-{part.upper()}-v1.3'},
    axes={'method': 'drafter'},
    names={'method': _METHODS},
    compared=(
      Metric('mean_accepted_tokens', 'tau_per_step'),
      *(
        Metric(f'{column}_speedup', 'speedup_of_rates', {'domain': domain})
        for column, domain in _DOMAINS.items()
      ),
    ),
    needs=(
      f'Vicuna-{part.upper()} v1.3 and Vicuna-68M',
      OWN_HEADS,
      'question.jsonl of Spec-Bench',
      'an A100 or like it',
    ),
  )


get_config = Paper('spec_bench', {'': (leaderboard, ('7b', '13b', '33b'))})
