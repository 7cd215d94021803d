"""DistillSpec, Figure 4: what tau gains by data and divergence.

  python -m experiments.tables --config configs/papers/distillspec_figure4.py

The numbers are differences of tau from the undistilled draft. The grid is
trained for the embedded pair by `configs/distill.py`, without the mixture of
texts of both models; results/findings.md compares it with the claims of the
figure.
"""

from experiments.papers.published import Metric, Published


def get_config() -> Published:
  return Published(
    name='distillspec_figure4',
    results='results/papers/distillspec_figure4',
    paper='distillspec',
    table='Figure 4',
    compared=tuple(Metric(x) for x in ('FKL', 'JSD', 'RKL', 'TVD')),
    needs=(
      'T5-XL and sixteen T5-small trained on XSum and GSM8K, which are not '
      'published',
    ),
  )
