"""Leviathan et al., Table 3: alpha of unigrams, bigrams and small models.

  python -m experiments.run --config configs/papers/leviathan_table3.py:wmt

Parts: wmt and cnn (T5-XXL, see leviathan_table2.py for the weights), lm1b (a
model of 97M parameters), lamda (never published). The paper's estimator is
ours: the mean of sum(min(p, q)) over 10,000 tokens that the target generates.
Times play no part. Unigram and bigram tables are made from the task's texts
with `specjax.drafters.counts`; put them into counts/PART/unigram and bigram.
"""

from configs.papers import TASKS, lm, task
from experiments.papers.published import Metric, Published
from experiments.settings import Candidate, Checkpoint, Prompts

PARTS = ('wmt', 'cnn', 'lm1b', 'lamda')
_TARGETS = {
  'wmt': ('T5-XXL 11B (WMT EnDe)', 'google/t5-v1_1-xxl'),
  'cnn': ('T5-XXL 11B (CNN/DM)', 'google/t5-v1_1-xxl'),
  'lm1b': ('GPT-like 97M (lm1b, unconditional)', ''),
  'lamda': ('LaMDA 137B (dialog)', ''),
}
_NEEDS = {
  'wmt': ('T5 v1.1 XXL and its drafts fine-tuned on WMT EnDe', 'WMT 14'),
  'cnn': ('T5 v1.1 XXL and its drafts fine-tuned on CNN/DM', 'CNN/DailyMail'),
  'lm1b': ('models of 97M and 6M parameters trained on LM1B', 'LM1B'),
  'lamda': ('LaMDA, which is not published',),
}


def get_config(part: str = 'wmt') -> Published:
  part = task(part, PARTS)
  target, path = _TARGETS[part]
  counted = {
    name: Candidate('counts', 1, f'counts/{part}/{name}')
    for name in ('unigram', 'bigram')
  }
  sizes = ('small', 'base', 'large') if path else ('small',)
  trained = {
    size: lm(f'google/t5-v1_1-{size}' if path else '', 1) for size in sizes
  }
  return Published(
    name=f'leviathan_table3_{part}',
    results=f'results/papers/leviathan_table3_{part}',
    target=Checkpoint(path),
    candidates=counted | trained,
    prompts=TASKS.get(part, Prompts(count=100)),
    max_new_tokens=100,
    batch=10,
    timed=False,
    paper='leviathan',
    table='Table 3',
    part={'target': target},
    axes={'draft': 'drafter', 'temperature': 'temperature'},
    names={
      'draft': {
        'unigram': 'unigram',
        'bigram': 'bigram',
        'T5-small': 'small',
        'T5-base': 'base',
        'T5-large': 'large',
        'GPT-like 6M': 'small',
      }
    },
    compared=(Metric('alpha', 'alpha'),),
    needs=_NEEDS[part],
  )
