"""LayerSkip, Table 2: drafts from the first layers of the target itself.

  python -m experiments.tables --config configs/papers/layerskip_table2.py

There is no drafter that leaves a model early yet: see `missing`. The paper's
acceptance is accepted over drafted tokens.
"""

from experiments.published import Metric, Published


def get_config() -> Published:
  return Published(
    name='layerskip_table2',
    results='results/papers/layerskip_table2',
    paper='layerskip',
    table='Table 2',
    compared=(Metric('acceptance_pct', scale=100), Metric('speedup')),
    missing='drafter that leaves the target early',
  )
