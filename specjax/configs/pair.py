"""Your own target, with your own draft or none.

  specjax run pair \\
    --target.path=TARGET --draft.path=DRAFT \\
    --prompts.path=HumanEval.jsonl.gz

TARGET and DRAFT are Hugging Face directories, or names of models on the Hub
(owner/name); without a draft the n-gram lookup drafts alone. Without a file the
embedded corpus gives the prompts. This says what would be refused, before
anything heavy is loaded, and guesses the cost:

  specjax inspect pair \\
    --target.path=TARGET --draft.path=DRAFT

Prompts of benchmarks are recognised by their fields, which
`specjax/prompts/forms.py` lists. To translate the lines of a text, and to
chat:

  --prompts.path=source.en \\
    --prompts.form='translate English to German: {line}'
  --prompts.path=question.jsonl --prompts.chat \\
    --prompts.turns=0

Where greedy texts of this pair part from those of plain decoding, and why:

  specjax parity pair:parity \\
    --target.path=TARGET --draft.path=DRAFT \\
    --dtype=bfloat16

On several devices, for example eight of a TPU slice (see docs/devices.md):

  --mesh.data=2 --mesh.model=4 --batch=2

An encoder-decoder target (T5, Flan-T5) reads the prompt with its encoder, and
its text begins anew. Drafts of the same family read it too: give the target's
directory and, for example, that of a smaller T5.
"""

from specjax.bench.config import Candidate, Checkpoint, Experiment, Parity
from specjax.errors import UserError

PARTS = {'run': Experiment, 'parity': Parity}


def get_config(part: str = 'run') -> Experiment:
  if part not in PARTS:
    raise UserError(f'the parts are {", ".join(PARTS)}, got {part!r}')
  return PARTS[part](
    name='pair',
    target=Checkpoint(),
    candidates={'ngram': Candidate('ngram', 4)},
  )
