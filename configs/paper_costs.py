"""Where speculation pays on accelerators, calculated: Llama 3 8B and 70B.

  python -m experiments.paper_costs --config configs/paper_costs.py

Nothing is timed and no accelerator is needed; it takes seconds. Drafts are
Llama 3.2 1B and a head of one layer. Expect short contexts to pay up to some
batch, where arithmetic becomes the limit, and long ones at every batch that
fits: there the cache, which all tokens of a row share, outweighs the weights.

Published peaks, of one device, the interconnect in one direction (half of what
is printed for both):

  H100, H200   SXM; NVIDIA's data sheets: 3.35 and 4.8 TB/s, 1,979 TFLOPS of
               bfloat16 with sparsity, so half without; NVLink 900 GB/s;
               80 and 141 GB
  v5e          docs.cloud.google.com/tpu/docs/v5e: 819 GB/s, 197 TFLOPS,
               ICI 400 GB/s, 16 GB
  v5p          docs.cloud.google.com/tpu/docs/v5p: 2,765 GB/s, 459 TFLOPS,
               ICI 1,200 GB/s, 95 GB
  v6e          docs.cloud.google.com/tpu/docs/v6e: 1,638 GB/s, 918 TFLOPS,
               ICI 800 GB/s, 32 GB
"""

from specjax.bench.config import Accelerator, Deployment, PaperCosts, PaperModel

_WORDS = 128_256


def get_config() -> PaperCosts:
  return PaperCosts(
    name='paper_costs',
    models={
      '8B': PaperModel(4096, 32, 32, 8, 128, 14_336, _WORDS),
      '70B': PaperModel(8192, 80, 64, 8, 128, 28_672, _WORDS),
      '1B': PaperModel(2048, 16, 32, 8, 64, 8192, _WORDS, tied=True),
    },
    accelerators={
      'H100': Accelerator(3.35e12, 989e12, 450e9, 80e9),
      'H200': Accelerator(4.8e12, 989e12, 450e9, 141e9),
      'v5e': Accelerator(819e9, 197e12, 200e9, 16e9),
      'v5p': Accelerator(2765e9, 459e12, 600e9, 95e9),
      'v6e': Accelerator(1638e9, 918e12, 400e9, 32e9),
    },
    deployments=(
      Deployment('8B', 'H100'),
      Deployment('8B', 'H200'),
      Deployment('8B', 'v5e', 4),
      Deployment('8B', 'v5p'),
      Deployment('8B', 'v6e', 4),
      Deployment('70B', 'H100', 8),
      Deployment('70B', 'H200', 8),
      Deployment('70B', 'v5p', 8),
      Deployment('70B', 'v6e', 8),
    ),
    drafts=('1B', 'head'),
  )
