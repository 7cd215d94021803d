"""A draft that was never distilled learns while it drafts.

  specjax train online

Thirty rounds: each decodes sixteen new prompts of one domain with the draft as
it is, and trains it for ten steps on the texts of the last eight rounds (Liu et
al., arXiv:2310.07177). runs/online/rounds.jsonl has alpha and tau of each
round, beside those of the draft that was never changed on the same prompts, and
runs/online/weights is the draft in the end. `--prompts.path=FILE` makes
prompts of your own the stream, and any head can learn so:

  --trainable=medusa --start=HEAD --options="{'count': 4}"
"""

from specjax import pair
from specjax.bench.config import Prompts
from specjax.training.recipes import Online, Optimization


def get_config() -> Online:
  return Online(
    folder='runs/online',
    target=pair.path('target'),
    trainable='lm',
    options={'path': pair.path('undistilled')},
    optimization=Optimization(
      schedule=((10, 2e-3), (300, 2e-3)),
      batch=8,
      length=160,
      weight_decay=0.0,
      checkpoint_every=50,
    ),
    prompts=Prompts(domains=('structured',), count=16),
  )
