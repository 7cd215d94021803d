"""Leviathan et al., A.5: expected speed-ups with lenience, at temperature 0.

  python -m experiments.tables --config configs/papers/leviathan_a5.py

Nothing runs. For temperature 1 the paper does not print gamma, so its speeds
cannot be calculated.
"""

from experiments.papers.published import Calculated


def get_config() -> Calculated:
  return Calculated(
    name='leviathan_a5',
    paper='leviathan',
    table='A.5, lenience at T 0',
    formulas={'speed_expected': 'experiments.papers.formulas.speed'},
  )
