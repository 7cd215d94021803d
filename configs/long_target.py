"""A small target with 4,096 positions: what drafts accept at long contexts.

  python -m experiments.train --config configs/long_target.py

The embedded pair ends at 512 positions, where no window of a draft shows. This
target is runs/long_target/pair/target: two layers x 192, 1.7M parameters, by
Muon on 4.3M tokens of the library; every fourth batch is one window of all
4,096 positions. About half an hour on two idle cores of an AMD EPYC; a run
that was stopped resumes with the same command. Nothing of it is shipped.
`configs/long_windows.py` measures drafts on it. `--config.quick` shows in a
minute that it runs.
"""

from specjax.bench.config import Size
from specjax.training.recipes import Optimization, Recipe


def get_config() -> Recipe:
  return Recipe(
    folder='runs/long_target',
    vocab_size=2048,
    target=Size(
      width=192,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=48,
      mlp_width=576,
    ),
    target_training=Optimization(
      schedule=((50, 6e-3), (650, 6e-3), (1050, 0.0)),
      batch=2,
      length=2048,
      checkpoint_every=50,
      muon=True,
    ),
    drafts=None,
    max_positions=4096,
  )
