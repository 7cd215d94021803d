"""Every drafter beside every other, on the embedded target.

  specjax run drafters --results=results/drafters/timed
  specjax run drafters:acceptance --results=results/drafters/acceptance

The first measures times and runs 12 to 18 minutes on two cores of an AMD EPYC.
The second measures none, so the machine may be busy, and runs about 20 minutes;
it has more prompts, on which differences between drafters are paired.
`--quick` runs the first two drafters, and
`--drafters="('medusa', 'ngram')"` others.

All draft four tokens deep, and trees have eight nodes; a drafter is judged by
the plain exact rule for its drafts, and some by another one, too. Drafts of up
to six tokens are those of draft-128: constant, and by the policies of
`specjax.drafters.shapes.policies`.

  draft-64, -128, -256    independent models: configs/embedded_pair.py
  own vocabulary          a draft with a tokenizer of its own:
                          configs/own_vocabulary.py
  undistilled, control    the draft that others are distilled from, and the
                          same after more of its own training; `distilled` is
                          the best of the others: the config `distill`
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

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.errors import need

_TREE_RULE = ('recursive',)
_EXACT_AND_TYPICAL = (*_TREE_RULE, 'typical')
_GAMMA, _LONG, _NODES = 4, 6, 8
# Three children of the root, two and one of the first of them, then the best.
_TREE = (0, 0, 0, 1, 1, 2, 4, 7)


def _of(load: str, name: str = '', *rules: str, **options) -> Candidate:
  """A candidate of four tokens with weights of the pair, if it has any."""
  path = pair.path(name) if name else ''
  return Candidate(load, _GAMMA, path, options, rules)


def _long(**options) -> Candidate:
  return Candidate('lm', _LONG, pair.path('draft-128'), options)


def _candidates() -> dict[str, Candidate]:
  every = {'domains': ('code', 'documentation', 'structured')}
  return {
    # Others are compared with the first; the quick version has these two.
    'draft-128': _of('lm', 'draft-128', 'token', 'block'),
    'eagle3': _of('eagle', 'eagle3'),
    'draft-64': _of('lm', 'draft-64'),
    'draft-256': _of('lm', 'draft-256'),
    'draft-128 tree': _of('lm', 'draft-128', *_TREE_RULE, parents=_TREE),
    'undistilled': _of('lm', 'undistilled'),
    'control': _of('lm', 'control'),
    'distilled': _of('lm', 'distilled'),
    'bigram': Candidate('counts', 2, pair.path('bigram')),
    'own vocabulary': _of('lm', 'own-vocabulary'),
    'draft-128 long': _long(),
    'draft-128 confidence': _long(policy='confidence:0.4'),
    'draft-128 heuristic': _long(policy='heuristic'),
    # c and (v - 1) / gamma of draft-128.
    'draft-128 expected': _long(policy='expected:0.07,0.04'),
    'exit 1': _of('early_exit', layers=1),
    'exit 2': _of('early_exit', layers=2),
    'exit 1 adapter': _of('early_exit', 'early_exit_1'),
    'exit 2 adapter': _of('early_exit', 'early_exit_2'),
    'medusa': _of('medusa', 'medusa'),
    'medusa tree': _of('medusa', 'medusa', *_EXACT_AND_TYPICAL, tree=_NODES),
    'eagle1': _of('eagle', 'eagle1'),
    'eagle3 tree': _of('eagle', 'eagle3', *_TREE_RULE, parents=_TREE),
    'eagle3 dynamic tree': _of(
      'eagle', 'eagle3', *_TREE_RULE, beam=3, nodes=_NODES
    ),
    'dflash': _of('dflash', 'dflash'),
    'dflash tree': _of('dflash', 'dflash', *_TREE_RULE, tree=_NODES),
    'ngram': _of('ngram'),
    'ngram candidates': _of('ngram', '', *_TREE_RULE, candidates=2),
    'ngram corpus': _of(
      'specjax.training.corpus_lookup.load', 'target', **every
    ),
    'cascade': _of('cascade', 'draft-64', inner=Candidate('ngram', _GAMMA - 1)),
    'draft-128 int8': _of('quantized', 'draft-128'),
    'target int8': _of('quantized'),
  }


def get_config(part: str = 'timed') -> Experiment:
  parts = 'timed', 'acceptance'
  need(part in parts, f'the parts are {", ".join(parts)}, got {part!r}')
  x = Experiment(
    name='drafters',
    target=Checkpoint(pair.path('target')),
    candidates=_candidates(),
    temperatures=(0.0, 0.5, 1.0),
    prompts=Prompts(count=12),
    max_new_tokens=64,
  )
  if part == 'acceptance':
    x.name, x.timed = 'drafters_acceptance', False
    x.prompts.count = x.batch = 24
    x.max_new_tokens, x.temperatures = 48, (0.0, 1.0)
  return x
