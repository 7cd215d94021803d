"""Methods of 2024 and 2025 beside those they are compared with.

  python -m experiments.run --config configs/methods.py \\
    --config.results=results/methods

No time is taken, so the machine may be busy; the run takes some ten minutes of
its cores. The target and the prompts are those of configs/drafters.py.

  draft-128 tree  trees that are drawn, judged node by node and from the leaves
                  upwards (traversal verification)
  suffix          what follows all earlier places like the end of the text, in
                  drafts of up to four nodes for each token of the match
                  (SuffixDecoding), beside ngram, which copies K tokens from
                  the last place
  recycling       a tree of what the target nearly said after each token (Token
                  Recycling), beside trees of eight nodes that lookup makes
  skip            the target without a layer, or without its MLP, beside its
                  first layers (Draft & Verify, SWIFT; LayerSkip)

The sub-layers to skip were chosen by `specjax.drafters.skip.search` on texts of
the target that continue other windows of the held-out documents.
"""

import pathlib

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts

_GAMMA, _LONG, _NODES = 4, 8, 8
_TREE = (0, 0, 0, 1, 1, 2, 4, 7)  # That of configs/drafters.py.
_DEEP = (0, 0, 1, 1, 2, 2, 3, 4, 5, 6)  # Two children each, then one.
_RULES = ('recursive', 'traversal')


def _path(name: str) -> str:
  return str(pathlib.Path(pair.__file__).parent / name)


def _trees() -> dict[str, Candidate]:
  shapes = {'draft-128 tree': _TREE, 'draft-128 deep tree': _DEEP}
  return {
    name: Candidate(
      'lm', _GAMMA, _path('draft-128'), {'parents': parents}, _RULES
    )
    for name, parents in shapes.items()
  }


def _text() -> dict[str, Candidate]:
  two = {'candidates': 2}
  return {
    'ngram': Candidate('ngram', _LONG),
    'suffix': Candidate('suffix', _LONG, options={'factor': 4.0}),
    'ngram tree': Candidate('ngram', _GAMMA, '', two, _RULES[:1]),
    'suffix tree': Candidate(
      'suffix', _GAMMA, '', two | {'factor': 4.0}, _RULES[:1]
    ),
    'recycling': Candidate(
      'recycling', _GAMMA, '', {'nodes': _NODES}, _RULES[:1]
    ),
  }


def _own_layers() -> dict[str, Candidate]:
  return {
    'exit 2': Candidate('early_exit', _GAMMA, options={'layers': 2}),
    'skip 1': Candidate('skip', _GAMMA, options={'skip': (1,)}),
    'skip mlp 1': Candidate('skip', _GAMMA, options={'skip_mlp': (1,)}),
  }


def get_config() -> Experiment:
  return Experiment(
    name='methods',
    target=Checkpoint(_path('target')),
    candidates=_trees() | _text() | _own_layers(),
    temperatures=(0.0, 1.0),
    prompts=Prompts(domains=('code', 'structured'), count=24),
    max_new_tokens=48,
    batch=24,
    timed=False,
  )
