"""Leviathan et al., Table 4: expected speed-ups from alpha, gamma and c.

  python -m experiments.tables --config configs/papers/leviathan_table4.py

Nothing runs. alpha and c are printed with two digits, which moves a speed-up by
up to 0.07; one digit of it is printed.
"""

from experiments.papers.published import Calculated


def get_config() -> Calculated:
  return Calculated(
    name='leviathan_table4',
    paper='leviathan',
    table='Tables 2 and 4',
    formulas={'speed_expected': 'experiments.papers.formulas.speed'},
    tolerance=0.07,
  )
