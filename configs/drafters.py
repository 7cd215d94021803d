"""Every drafter beside every other, on the embedded target.

  python -m experiments.run --config configs/drafters.py \\
    --config.results=results/drafters/timed
  python -m experiments.run --config configs/drafters.py:acceptance \\
    --config.results=results/drafters/acceptance

The first measures times and runs 12 to 18 minutes on two cores of an AMD EPYC.
The second measures none, so the machine may be busy, and runs about 20 minutes;
it has more prompts, on which differences between drafters are paired.
`--config.quick` runs the first two drafters, and
`--config.drafters="('medusa', 'ngram')"` others.

All draft four tokens deep, and trees have eight nodes; a drafter is judged by
the plain exact rule for its drafts, and some by another one, too. Drafts of up
to six tokens are those of draft-128: constant, and by the policies of
`specjax.drafters.shapes.policies`.

  draft-64, -128, -256    independent models: configs/embedded_pair.py
  own vocabulary          a draft with a tokenizer of its own:
                          configs/own_vocabulary.py
  undistilled, control    the draft that others are distilled from, and the
                          same after more of its own training; `distilled` is
                          the best of the others: configs/distill.py
  exit 1, exit 2          the target's first layers, with and without adapter
  medusa, eagle1, eagle3  heads on the target's features
  dflash                  a block of masks on them, filled in one pass
  ngram                   copies from the text, from several places of it, or
                          from the text that models are trained on, too
  cascade                 draft-64, for which ngram drafts
  int8                    weights in eight bits, also the target's own

The trees of Medusa and DFlash and `distilled` were chosen on other windows of
the same held-out documents; no weights were trained on these documents.
"""

import pathlib

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.errors import UserError

PARTS = ('timed', 'acceptance')
_TREE_RULE = ('recursive',)
_GAMMA, _LONG, _NODES = 4, 6, 8
# Three children of the root, two and one of the first of them, then the best.
_TREE = (0, 0, 0, 1, 1, 2, 4, 7)


def _path(name: str) -> str:
  """Of a part of the pair; loading it tells whether it exists."""
  return str(pathlib.Path(pair.__file__).parent / name)


def _lm(name: str, gamma: int = _GAMMA, *rules: str, **options) -> Candidate:
  return Candidate('lm', gamma, _path(name), options, rules)


def _head(kind: str, name: str, *rules: str, **options) -> Candidate:
  return Candidate(kind, _GAMMA, _path(name) if name else '', options, rules)


def _independent() -> dict[str, Candidate]:
  return {
    'draft-64': _lm('draft-64'),
    'draft-256': _lm('draft-256'),
    'draft-128 tree': _lm('draft-128', _GAMMA, *_TREE_RULE, parents=_TREE),
    'undistilled': _lm('undistilled'),
    'control': _lm('control'),
    'distilled': _lm('distilled'),
    'bigram': Candidate('counts', 2, _path('bigram')),
    'own vocabulary': _lm('own-vocabulary'),
  }


def _lengths() -> dict[str, Candidate]:
  policies = {
    'confidence': 'confidence:0.4',
    'heuristic': 'heuristic',
    'expected': 'expected:0.07,0.04',  # c and (v - 1) / gamma of draft-128
  }
  return {'draft-128 long': _lm('draft-128', _LONG)} | {
    f'draft-128 {name}': _lm('draft-128', _LONG, policy=policy)
    for name, policy in policies.items()
  }


def _heads() -> dict[str, Candidate]:
  exact_and_typical = (*_TREE_RULE, 'typical')
  return {
    'exit 1': _head('early_exit', '', layers=1),
    'exit 2': _head('early_exit', '', layers=2),
    'exit 1 adapter': _head('early_exit', 'early_exit_1'),
    'exit 2 adapter': _head('early_exit', 'early_exit_2'),
    'medusa': _head('medusa', 'medusa'),
    'medusa tree': _head('medusa', 'medusa', *exact_and_typical, tree=_NODES),
    'eagle1': _head('eagle', 'eagle1'),
    'eagle3 tree': _head('eagle', 'eagle3', *_TREE_RULE, parents=_TREE),
    'eagle3 dynamic tree': _head(
      'eagle', 'eagle3', *_TREE_RULE, beam=3, nodes=_NODES
    ),
    'dflash': _head('dflash', 'dflash'),
    'dflash tree': _head('dflash', 'dflash', *_TREE_RULE, tree=_NODES),
  }


def _others() -> dict[str, Candidate]:
  every = {'domains': ('code', 'documentation', 'structured')}
  return {
    'ngram': Candidate('ngram', _GAMMA),
    'ngram candidates': Candidate(
      'ngram', _GAMMA, options={'candidates': 2}, verifiers=_TREE_RULE
    ),
    'ngram corpus': Candidate(
      'specjax.training.corpus_lookup.load', _GAMMA, _path('target'), every
    ),
    'cascade': Candidate(
      'cascade',
      _GAMMA,
      _path('draft-64'),
      {'inner': Candidate('ngram', _GAMMA - 1)},
    ),
    'draft-128 int8': Candidate('quantized', _GAMMA, _path('draft-128')),
    'target int8': Candidate('quantized', _GAMMA),
  }


def _first() -> dict[str, Candidate]:
  """Others are compared with the first; the quick version has these two."""
  rules = 'token', 'block'
  return {
    'draft-128': _lm('draft-128', _GAMMA, *rules),
    'eagle3': _head('eagle', 'eagle3'),
  }


def get_config(part: str = 'timed') -> Experiment:
  if part not in PARTS:
    raise UserError(f'the parts are {", ".join(PARTS)}, got {part!r}')
  x = Experiment(
    name='drafters',
    target=Checkpoint(_path('target')),
    candidates=_first() | _independent() | _lengths() | _heads() | _others(),
    temperatures=(0.0, 0.5, 1.0),
    prompts=Prompts(count=12),
    max_new_tokens=64,
  )
  if part == 'acceptance':
    x.name, x.timed = 'drafters_acceptance', False
    x.prompts.count = x.batch = 24
    x.max_new_tokens, x.temperatures = 48, (0.0, 1.0)
  return x
