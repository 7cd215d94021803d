"""What the tables of the papers calculate from: a row's settings and numbers.

Leviathan et al., arXiv:2211.17192, Theorems 3.8 and 3.11.
"""

from specjax import theory


def speed(row: dict) -> float:
  """Expected speed-up; the cost c and gamma are those of the row."""
  return theory.speedup(row['alpha'], row['gamma'], row['c'])


def operations(row: dict) -> float:
  """Expected factor of operations."""
  return theory.operations(row['alpha'], row['gamma'], row['c_hat'])
