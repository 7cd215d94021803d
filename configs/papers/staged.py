"""Staged speculative decoding, Table 1: bytes read, relative to plain decoding.

  python -m experiments.tables --config configs/papers/staged.py

A model of 40M parameters drafts, and counts of three tokens draft for it.
`specjax.drafters.cascade` drafts like that, and rows say what a draft costs in
time; how many bytes are read is not counted.
"""

from configs.papers import Paper
from experiments.papers.published import Metric, Published


def table1() -> Published:
  return Published(
    table='Table 1',
    compared=tuple(
      Metric(f'{sampling}_{kind}')
      for sampling in ('deterministic', 'topk')
      for kind in ('spec', 'staged')
    ),
    needs=('a draft of 40M parameters for GPT-2-L, which is not published',),
  )


get_config = Paper('staged', {'table1': (table1, ())})
