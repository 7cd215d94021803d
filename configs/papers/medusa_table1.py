"""Medusa, Table 1: tokens per step, cost of a step and speed-up, MT-Bench.

  python -m experiments.tables --config configs/papers/medusa_table1.py

There is no drafter for Medusa heads yet: see `missing`. The rule, typical
acceptance, is `specjax.verify.typical`.
"""

from experiments.published import Metric, Published


def get_config() -> Published:
  return Published(
    name='medusa_table1',
    results='results/papers/medusa_table1',
    paper='medusa',
    table='Table 1',
    compared=(
      Metric('acceleration_rate'),
      Metric('overhead'),
      Metric('S_Medusa'),
    ),
    missing='drafter for Medusa heads',
  )
