"""Spec-Bench: speed-ups of its tasks, greedy, float16, batch 1.

  python -m experiments.run --config configs/papers/spec_bench.py:7b \\
    --config.prompts.path=question.jsonl --config.prompts.chat

Parts: 7b, 13b, 33b (Vicuna, A100). SpS (Vicuna-68M drafts) and PLD (prompt
lookup) are run; the other methods of the board are not in the project. There,
a speed-up is a ratio of means of the prompts' rates over all turns; here it is
the ratio of total times of the first turns. The tasks of MT-Bench, one column
there, are domains of their own here, so that column stays empty.
"""

from configs.papers import lm, task
from experiments.published import Metric, Published
from experiments.settings import Candidate, Checkpoint, Prompts

_DOMAINS = {
  'translation': 'translation',
  'summarization': 'summarization',
  'qa': 'qa',
  'math': 'math_reasoning',
  'rag': 'rag',
}
PARTS = ('7b', '13b', '33b')


def get_config(part: str = '7b') -> Published:
  part = task(part, PARTS)
  return Published(
    name=f'spec_bench_{part}',
    results=f'results/papers/spec_bench_{part}',
    target=Checkpoint(f'lmsys/vicuna-{part}-v1.3'),
    candidates={
      'sps': lm('double7/vicuna-68m', 7),
      'ngram': Candidate('specjax.drafters.ngram.load', 10),
    },
    temperatures=(0.0,),
    prompts=Prompts(count=80),
    max_new_tokens=1024,
    paper='spec_bench',
    table='Leaderboard.md',
    part={'device': 'A100', 'target': f'Vicuna-{part.upper()}-v1.3'},
    axes={'method': 'drafter'},
    names={'method': {'SpS': 'sps', 'PLD': 'ngram'}},
    compared=(
      Metric('mean_accepted_tokens', 'tau'),
      *(
        Metric(f'{column}_speedup', 'speedup', {'domain': domain})
        for column, domain in _DOMAINS.items()
      ),
    ),
    needs=(
      f'Vicuna-{part.upper()} v1.3 and Vicuna-68M',
      'question.jsonl of Spec-Bench',
      'an A100 or like it',
    ),
  )
