"""A draft for the embedded target that has a tokenizer of its own.

  specjax train configs/own_vocabulary.py

Most targets have no small sibling with their tokenizer. This one is as large as
draft-128 but for its vocabulary of 1,024 tokens, learns from the corpus alone,
and never meets the target. It is runs/own_vocabulary/pair/target afterwards,
with its tokenizer, and drafts like any other:

  specjax run quickstart \\
    --draft.path=runs/own_vocabulary/pair/target
"""

from specjax.bench.config import Size
from specjax.training.recipes import Optimization, Recipe


def get_config() -> Recipe:
  return Recipe(
    folder='runs/own_vocabulary',
    vocab_size=1024,
    target=Size(
      width=128,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=32,
      mlp_width=384,
    ),
    target_training=Optimization(
      schedule=((100, 4e-3), (1000, 4e-3), (1600, 0.0)), batch=16, muon=True
    ),
    drafts=None,
    seed=1,
  )
