"""The pair that ships with the package.

  python -m experiments.train --config configs/embedded_pair.py

trains the tokenizer, the target and its drafts into runs/embedded_pair, and
resumes there when it was stopped.
"""

from experiments.settings import Drafts, Optimization, Recipe, Size


def get_config() -> Recipe:
  return Recipe(
    folder='runs/embedded_pair',
    vocab_size=2048,
    target=Size(
      width=512,
      num_layers=3,
      num_heads=8,
      num_kv_heads=4,
      head_dim=64,
      mlp_width=1536,
    ),
    target_training=Optimization(
      schedule=((100, 2e-3), (1200, 1.2414e-3), (2400, 0.0)), batch=8
    ),
    drafts=Drafts(
      widths=(64, 128, 256),
      on_corpus=Optimization(schedule=((50, 4e-3), (350, 3e-3)), batch=8),
      on_samples=Optimization(schedule=((20, 3e-3), (750, 0.0)), batch=8),
      samples=1536,
    ),
  )
