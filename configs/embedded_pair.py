"""The pair that ships with the package: 11.5M parameters, drafts up to 1.8M.

  python -m experiments.train --config configs/embedded_pair.py

trains the tokenizer, the target and its drafts into runs/embedded_pair, and
resumes there when it was stopped. The shipped weights are its folder `pair`.
About 70 minutes on two idle cores of an AMD EPYC (Zen 4), Python 3.11.7: 50 for
the target (4.9M tokens), 2 for the texts it writes, 14 for the three drafts.
(These times are its parts on idle cores. The shipped weights took longer by the
clock, beside other work, and were resumed at step 1200.)

Bits per byte on held-out text, from the stored 16-bit weights:

             code   documentation  structured
  draft-64   2.357  2.322          1.643
  draft-128  2.270  2.217          1.505
  draft-256  2.214  2.166          1.410
  target     2.015  1.988          1.116

The target has seen few tokens: it writes the shape of code, not its sense.
`--config.quick` shows in a minute that every stage runs.
"""

from experiments.recipes import Drafts, Optimization, Recipe
from experiments.settings import Size


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
    ),
  )
