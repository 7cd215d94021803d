"""Speed at the sizes of real models on a GPU or TPU, with random weights.

  python -m experiments.accelerator --config configs/accelerator.py

Plain decoding in bfloat16 over the limit of the memory's bandwidth, v and c
of gamma drafted tokens, the speed-up at simulated acceptance, and the ways to
attend over the cache: the sweeps of `experiments.step_costs`, whose rows and
table it writes. Weights are made on the device. On a CPU only `--config.quick`
runs: toy sizes, to see that it works.
"""

import jax

from experiments import step_costs
from specjax.bench.config import Speed
from specjax.cli import command
from specjax.errors import need


def main(x: Speed) -> None:
  need(
    jax.default_backend() != 'cpu' or x.quick,
    'jax sees no GPU or TPU, only a CPU; install the extra gpu or tpu, or see '
    'that it runs with --config.quick',
  )
  step_costs.run(x)


if __name__ == '__main__':
  command.run(main, Speed, resumes=True)
