"""Chen et al.: Chinchilla 70B with a draft of 4B.

  python -m experiments.run --config configs/papers/chen.py:table1/humaneval \\
    --config.target.path=TARGET --config.draft.path=DRAFT

Table 1: speed-ups at K = 4, on 16 TPU v4 (xsum_nucleus, xsum_greedy,
humaneval). Figure 1, read off: tokens of a step over K + 1, at K = 7 (humaneval
at temperature 0.8 and top-p 0.95, xsum at top-p 0.8). The models are not
published; another large model with a wide and shallow draft of the same
tokenizer shows the same quantities. The shape of the figure, which falls with
K, at the scale of the embedded pair: results/findings.md.
"""

from configs.papers import TASKS, Paper
from experiments.papers.published import Metric, Published
from specjax.bench.config import SamplingValues

# Data, what the paper calls the sampling, temperature, top-p, new tokens.
_SAMPLED = {
  'xsum_greedy': ('xsum', 'SpS greedy', 0.0, None, 128),
  'xsum_nucleus': ('xsum', 'SpS nucleus p=0.8', 1.0, 0.8, 128),
  'humaneval': ('humaneval', 'SpS nucleus p=0.95 T=0.8', 0.8, 0.95, 512),
}
# Part -> the same sampling, and its column.
_FIGURE = {
  'humaneval': ('humaneval', 'HumanEval'),
  'xsum': ('xsum_nucleus', 'XSum'),
}


def _sampled(name: str, **fields) -> Published:
  data, _, temperature, top_p, tokens = _SAMPLED[name]
  return Published(
    drafters=('lm',),
    temperatures=(temperature,),
    sampling=SamplingValues(top_p=top_p),
    prompts=TASKS[data],
    max_new_tokens=tokens,
    axes={'K': 'gamma'},
    needs=('Chinchilla 70B and its draft, which are not published',),
    **fields,
  )


def table1(part: str) -> Published:
  return _sampled(
    part,
    gammas=(4,),
    table='Table 1',
    part={'sampling': _SAMPLED[part][1]},
    compared=(Metric('speedup', 'speedup'),),
  )


def figure1(part: str) -> Published:
  sampling, column = _FIGURE[part]
  return _sampled(
    sampling,
    gammas=(1, 2, 3, 4, 5, 6, 7),
    table='Figure 1',
    part={'K': 7},
    compared=(Metric(column, 'tau', scale=1 / 8),),
  )


get_config = Paper(
  'chen', {'table1': (table1, _SAMPLED), 'figure1': (figure1, _FIGURE)}
)
