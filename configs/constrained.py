"""The embedded pair within five JSON schemas, from a loose one to a tight one.

  python -m experiments.constrained --config configs/constrained.py

Their automata are stored beside the weights, so that nothing is compiled to
them here. A schema of your own, with `pip install 'specjax[constraints]'`:

  python -m experiments.run --config configs/quickstart.py \\
    --config.sampling.json_schema=FILE
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Languages, Prompts

# A string; up to eight records of two fields; one of five fields; choices
# alone; texts that are all but given.
_NAMES = ('note', 'table', 'character', 'choices', 'header')


def get_config() -> Languages:
  return Languages(
    name='constrained',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
      'draft-64': Candidate('lm', 3, pair.path('draft-64')),
      'ngram': Candidate('ngram', 4),
      'forced': Candidate('forced', 8),
      # The draft reads in one pass what leaves it no choice.
      'draft-128 and forced': Candidate(
        'cascade', 3, pair.path('draft-128'), {'inner': Candidate('forced', 3)}
      ),
    },
    languages={name: pair.constraint(name) for name in _NAMES},
    prompts=Prompts(domains=('structured',), count=24),
    max_new_tokens=96,
  )
