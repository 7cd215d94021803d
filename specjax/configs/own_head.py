"""A head for a target of your own, trained on conversations of your own.

  specjax train own_head \\
    --target=TARGET --examples.prompts.path=chats.jsonl

Every line of chats.jsonl is a conversation (`messages`), a question with its
answer, or what `specjax answers` wrote: best are answers of the target
itself, since that is what the head will be asked to draft. Where the target has
a chat template, `--examples.prompts.chat` puts it around them. A tenth
of the questions is held out, chosen by a hash; training ends when tau on those
has not risen for four checkpoints, and keeps the best. Then:

  specjax run pair \\
    --target.path=TARGET --draft.path=runs/own_head/weights

`--trainable` chooses eagle, medusa, early_exit, dflash or lm (an
independent draft that learns on: `--options="{'path': 'DRAFT'}"`). The
options here are eagle's: medusa, early_exit and dflash refuse them, so give
`--options="{}"` with these, or options of their own.
`--divergence` chooses what is minimised.
`--optimization.accumulate` and `--devices` make batches larger;
without a file the embedded corpus is learned.
"""

from specjax import pair
from specjax.training.recipes import Heads, HeldOut, Optimization


def get_config() -> Heads:
  return Heads(
    folder='runs/own_head',
    target=pair.path('target'),
    trainable='eagle',
    options={'version': 3, 'start': 'target'},
    optimization=Optimization(
      schedule=((50, 2e-3), (4000, 0.0)),
      batch=8,
      curve='cosine',
      checkpoint_every=200,
      patience=4,
    ),
    data='runs/own_head-data',
    held_out=HeldOut(prompts=24, prompt_length=256, new_tokens=64),
  )
