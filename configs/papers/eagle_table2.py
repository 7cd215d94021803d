"""EAGLE, Table 2: tokens per step, and n-alpha.

  python -m experiments.tables --config configs/papers/eagle_table2.py

n-alpha, the acceptance of a token drafted from n features that were drafted
themselves, is `acceptance_by_position_conditional` of a chain. There is no
drafter for EAGLE heads yet: see `missing`.
"""

from experiments.published import Metric, Published


def get_config() -> Published:
  return Published(
    name='eagle_table2',
    results='results/papers/eagle_table2',
    paper='eagle',
    table='Table 2',
    compared=(
      Metric('tau'),
      *(Metric(f'alpha_{n}') for n in range(5)),
    ),
    missing='drafter for EAGLE heads',
  )
