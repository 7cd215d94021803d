"""Leviathan et al., Table 1: operations and speed by alpha and gamma.

  python -m experiments.tables --config configs/papers/leviathan_table1.py

Nothing runs; the theorems are evaluated.
"""

from experiments.papers.published import Calculated


def get_config() -> Calculated:
  return Calculated(
    name='leviathan_table1',
    paper='leviathan',
    table='Table 1',
    formulas={
      'operations': 'experiments.papers.formulas.operations',
      'speed': 'experiments.papers.formulas.speed',
    },
  )
