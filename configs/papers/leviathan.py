"""Leviathan et al.: T5 drafts for T5-XXL, and what theory gives.

  python -m experiments.run --config configs/papers/leviathan.py:table2/wmt
  python -m experiments.tables --config configs/papers/leviathan.py:table1

Table 2 (wmt, cnn): translation and summaries. The paper ran on one TPU v4, with
models fine-tuned on each task; the public T5 v1.1 checkpoints are only
pre-trained, so name fine-tuned ones with `--config.target.path=...`, or take
the first T5 (google-t5/t5-11b with its small, base and large), which was
trained on both tasks and gives other numbers. 45 GB of float32 weights; hours
on one accelerator (not measured).

Table 3 (wmt, cnn, lm1b: a model of 97M parameters, lamda: never published):
alpha of unigrams, bigrams and small models. The paper's estimator is ours: the
mean of sum(min(p, q)) over 10,000 tokens that the target generates. Unigram and
bigram tables are made from the task's texts with `specjax.drafters.counts`; put
them into counts/PART/unigram and bigram.

Table 5: alpha by lenience, translation at temperature 1. alpha(l) is the mean
of sum(min(p / l, q)); here it is the mean chance that the rule accepts the
first drafted token, which is the same. Rows for l = 1 are token verification.
Times play no part in Tables 3 and 5.

Nothing runs for Table 1 (operations and speed by alpha and gamma), Table 4
(expected speed-ups) and A.5 (the same with lenience, at temperature 0): the
theorems are evaluated. Table 4 prints alpha and c with two digits, which moves
a speed-up by up to 0.07; one digit of it is printed. For temperature 1 the
appendix does not print gamma, so its speeds cannot be calculated.
"""

from configs.papers import TASKS, Paper, lm
from experiments.papers.published import Calculated, Metric, Published
from specjax.bench.config import Candidate, Checkpoint, Prompts
from specjax.stats import theory

_T5 = {
  'T5-small 77M': 'small',
  'T5-base 250M': 'base',
  'T5-large 800M': 'large',
}
# What Table 3 calls the target, its path and what is needed.
_TARGETS = {
  'wmt': (
    'T5-XXL 11B (WMT EnDe)',
    'google/t5-v1_1-xxl',
    ('T5 v1.1 XXL and its drafts fine-tuned on WMT EnDe', 'WMT 14'),
  ),
  'cnn': (
    'T5-XXL 11B (CNN/DM)',
    'google/t5-v1_1-xxl',
    ('T5 v1.1 XXL and its drafts fine-tuned on CNN/DM', 'CNN/DailyMail'),
  ),
  'lm1b': (
    'GPT-like 97M (lm1b, unconditional)',
    '',
    ('models of 97M and 6M parameters trained on LM1B', 'LM1B'),
  ),
  'lamda': ('LaMDA 137B (dialog)', '', ('LaMDA, which is not published',)),
}
_FACTORS = ('0.5', '0.3', '0.1')


def _t5(gamma: int, *sizes: str) -> dict[str, Candidate]:
  return {size: lm(f'google/t5-v1_1-{size}', gamma) for size in sizes}


def _counts(part: str) -> dict[str, Candidate]:
  return {
    name: Candidate('counts', 1, f'counts/{part}/{name}')
    for name in ('unigram', 'bigram')
  }


def _alpha(**fields) -> Published:
  """A table of acceptance alone."""
  return Published(max_new_tokens=100, batch=10, timed=False, **fields)


def _names(*drafts: str, **more: str) -> dict[str, str]:
  """What our rows call the drafts of Tables 3 and 5."""
  counted = {name: name for name in ('unigram', 'bigram')}
  return counted | {f'T5-{size}': size for size in drafts} | more


def _operations(row: dict) -> float:
  """Theorem 3.11; the cost c_hat and gamma are those of the row."""
  return theory.operations(row['alpha'], row['gamma'], row['c_hat'])


def _speed(row: dict) -> float:
  """Theorem 3.8; the cost c and gamma are those of the row."""
  return theory.speedup(row['alpha'], row['gamma'], row['c'])


def table1() -> Calculated:
  return Calculated('Table 1', {'operations': _operations, 'speed': _speed})


def table2(part: str) -> Published:
  dataset = {'wmt': 'WMT EnDe', 'cnn': 'CNN/DM'}[part]
  return Published(
    target=Checkpoint('google/t5-v1_1-xxl'),
    candidates=_t5(7, *_T5.values()),
    gammas=(3, 5, 7),
    prompts=TASKS[part],
    table='Tables 2 and 4',
    part={'dataset': dataset},
    axes={'draft': 'drafter', 'temperature': 'temperature', 'gamma': 'gamma'},
    names={'draft': _T5},
    compared=(
      Metric('alpha', 'alpha'),
      Metric('c', 'c'),
      Metric('speed_expected', 'predicted_speedup'),
      Metric('speed_empirical', 'speedup'),
    ),
    needs=(
      'T5 v1.1 XXL and its drafts fine-tuned on the task',
      f'the test set of {dataset}',
      'an accelerator with 64 GB of memory or more',
    ),
  )


def table3(part: str) -> Published:
  target, path, needs = _TARGETS[part]
  trained = _t5(1, *_T5.values()) if path else {'small': lm('', 1)}
  return _alpha(
    target=Checkpoint(path),
    candidates=_counts(part) | trained,
    prompts=TASKS.get(part, Prompts(count=100)),
    table='Table 3',
    part={'target': target},
    axes={'draft': 'drafter', 'temperature': 'temperature'},
    names={'draft': _names(*_T5.values(), **{'GPT-like 6M': 'small'})},
    compared=(Metric('alpha', 'alpha'),),
    needs=needs,
  )


def table4() -> Calculated:
  return Calculated(
    'Tables 2 and 4', {'speed_expected': _speed}, tolerance=0.07
  )


def table5() -> Published:
  return _alpha(
    target=Checkpoint('google/t5-v1_1-xxl'),
    candidates=_counts('wmt') | _t5(1, 'small', 'base'),
    verifiers=(
      'token',
      *(f'lenience:{x}' for x in _FACTORS),
    ),
    temperatures=(1.0,),
    prompts=TASKS['wmt'],
    table='Table 5',
    axes={'draft': 'drafter', 'lenience': 'verifier'},
    names={
      'draft': _names('small', 'base'),
      'lenience': {'1': 'token'} | {x: f'lenience:{x}' for x in _FACTORS},
    },
    compared=(Metric('alpha', 'alpha_of_rule'),),
    needs=('T5 v1.1 XXL, small and base fine-tuned on WMT EnDe', 'WMT 14'),
  )


def a5() -> Calculated:
  return Calculated('A.5, lenience at T 0', {'speed_expected': _speed})


get_config = Paper(
  'leviathan',
  {
    'table2': (table2, ('wmt', 'cnn')),
    'table1': (table1, ()),
    'table3': (table3, _TARGETS),
    'table4': (table4, ()),
    'table5': (table5, ()),
    'a5': (a5, ()),
  },
)
