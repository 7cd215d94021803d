"""DFlash, Table 1: blocks of 16 tokens in one pass beside EAGLE-3, Qwen3.

  python -m experiments.run --config configs/papers/dflash.py:gsm8k-8b

Parts: gsm8k, math500, humaneval, mbpp and mt-bench, each -8b or -4b; MT-Bench
needs --config.prompts.path=question.jsonl. The prompts are those of the
authors' benchmark, 128 of each task, behind the chat template without
thinking, and the acceptance length is the mean over requests. The heads are the
published ones: those of the authors, and those of AngelSlim for EAGLE-3, whose
trees of 16 and of 60 tokens are seven levels deep, ten wide. The columns AIME25
and LiveCodeBench have no part here.
"""

from configs.papers import Paper
from experiments.papers.published import Metric, Published
from specjax.bench.config import Candidate, Checkpoint, Prompts

_REASON = (
  '\nPlease reason step by step, and put your final answer within \\boxed{{}}.'
)
_SOLVE = (
  'Write a solution to the following problem and make sure that it passes the '
  'tests:\n```python\n{prompt}\n```'
)
# What the paper calls the task, where it is, and the prompt.
_TASKS = {
  'gsm8k': ('GSM8K', 'openai/gsm8k:main', '{question}' + _REASON),
  'math500': ('MATH-500', 'HuggingFaceH4/MATH-500', '{problem}' + _REASON),
  'humaneval': ('HumanEval', 'openai/openai_humaneval', _SOLVE),
  'mbpp': ('MBPP', 'google-research-datasets/mbpp:sanitized', '{prompt}'),
  'mt-bench': ('MT-Bench', '', ''),
}
_SIZES = {'8b': '8B', '4b': '4B'}
_PARTS = tuple(f'{task}-{size}' for size in _SIZES for task in _TASKS)
_METHODS = {
  'DFlash (16)': 'dflash',
  'EAGLE-3 (16)': 'eagle3-16',
  'EAGLE-3 (60)': 'eagle3-60',
}


def table1(part: str) -> Published:
  task, _, size = part.rpartition('-')
  name, dataset, form = _TASKS[task]
  model = f'Qwen3-{_SIZES[size]}'

  def eagle3(nodes: int) -> Candidate:
    path, options = f'AngelSlim/{model}_eagle3', {'beam': 10, 'nodes': nodes}
    return Candidate('eagle', 7, path, options, ('recursive',))

  return Published(
    target=Checkpoint(f'Qwen/{model}'),
    candidates={
      'dflash': Candidate('dflash', 15, f'z-lab/{model}-DFlash-b16'),
      'eagle3-16': eagle3(16),
      'eagle3-60': eagle3(60),
    },
    temperatures=(0.0, 1.0),
    prompts=Prompts(
      dataset=dataset,
      form=form,
      chat=True,
      template_kwargs={'enable_thinking': False},
      turns=0 if task == 'mt-bench' else 1,
      count=128,
    ),
    max_new_tokens=2048,
    table='Table 1',
    part={'target': model, 'dataset': name},
    axes={'method': 'drafter', 'temperature': 'temperature'},
    names={'method': _METHODS},
    compared=(Metric('tau', 'tau_per_request'), Metric('speedup', 'speedup')),
    needs=(
      model,
      'its heads of z-lab and of AngelSlim',
      dataset or 'question.jsonl of MT-Bench',
      'a GPU (the paper: H200)',
    ),
  )


get_config = Paper('dflash', {'table1': (table1, _PARTS)})
