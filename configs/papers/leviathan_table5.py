"""Leviathan et al., Table 5: alpha by lenience, translation, temperature 1.

  python -m experiments.run --config configs/papers/leviathan_table5.py

Weights and tables of counts as in leviathan_table3.py. alpha(l) is the mean of
sum(min(p / l, q)); here it is the mean chance that the rule accepts the first
drafted token, which is the same. Rows for l = 1 are token verification. Times
play no part.
"""

from configs.papers import TASKS, lm
from experiments.papers.published import Metric, Published
from experiments.settings import Candidate, Checkpoint

_FACTORS = ('0.5', '0.3', '0.1')


def get_config() -> Published:
  return Published(
    name='leviathan_table5',
    results='results/papers/leviathan_table5',
    target=Checkpoint('google/t5-v1_1-xxl'),
    candidates={
      'unigram': Candidate('counts', 1, 'counts/wmt/unigram'),
      'bigram': Candidate('counts', 1, 'counts/wmt/bigram'),
      'small': lm('google/t5-v1_1-small', 1),
      'base': lm('google/t5-v1_1-base', 1),
    },
    verifiers=(
      'token',
      *(f'lenience:{x}' for x in _FACTORS),
    ),
    temperatures=(1.0,),
    prompts=TASKS['wmt'],
    max_new_tokens=100,
    batch=10,
    timed=False,
    paper='leviathan',
    table='Table 5',
    axes={'draft': 'drafter', 'lenience': 'verifier'},
    names={
      'draft': {
        'unigram': 'unigram',
        'bigram': 'bigram',
        'T5-small': 'small',
        'T5-base': 'base',
      },
      'lenience': {'1': 'token'} | {x: f'lenience:{x}' for x in _FACTORS},
    },
    compared=(Metric('alpha', 'alpha_of_rule'),),
    needs=('T5 v1.1 XXL, small and base fine-tuned on WMT EnDe', 'WMT 14'),
  )
