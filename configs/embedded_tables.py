"""The published tables at the scale of the embedded pair: acceptance only.

  for part in drafters gammas distillation lenience candidates lookup online; do
    specjax run configs/embedded_tables.py:$part \\
      --results=results/embedded/$part
  done

No time is taken, so the machine may be busy. Each part goes on where it was
stopped, and says which prompts of a cell it decodes and how long they take.

  drafters      alpha of unigrams, bigrams and three sizes of drafts, and of
                lookup, at temperature 0 and 1 (Leviathan et al., Table 3)
  gammas        tokens per step by draft length, token and block verification
                (Chen et al., Figure 1; Sun et al., Table 1)
  distillation  drafts before and after they were trained on the target's own
                text (Zhou et al., Table D.1)
  lenience      alpha and tau by lenience (Leviathan et al., Table 5)
  candidates    k candidates for a token, with and without replacement
                (Yang et al., Table 8; Chen et al., Sequoia)
  lookup        prompt lookup, places that vote, several candidates, and the
                training text of the pair as a reference (He et al., REST)
  online        a draft before and after it learned from what it drafted for, on
                other prompts of the same domain (Liu et al., 2023)

`distillation` needs runs/embedded_pair, which is where `specjax train
--config configs/embedded_pair.py` puts the drafts of both stages, and `online`
runs/online, by the config of that name. The rest needs nothing but the package.
What the rows say about the papers' claims is in results/findings.md, which
`python -m experiments.tables results` makes.
"""

import copy

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.errors import need


def _lm(path: str, gamma: int = 4, **options) -> Candidate:
  path = path if '/' in path else pair.path(path)
  return Candidate('lm', gamma, path, options)


def _tree(count: int, replacement: bool) -> Candidate:
  return _lm('draft-128', 2, widths=(count,), replacement=replacement)


def _ngram(**options) -> Candidate:
  return Candidate('ngram', 4, '', options)


def _reference(candidates: int) -> Candidate:
  load, options = 'corpus_lookup.load', {'candidates': candidates}
  return Candidate(f'specjax.training.{load}', 4, pair.path('target'), options)


_COUNTS = {
  n: Candidate('counts', 4, pair.path(n)) for n in ('unigram', 'bigram')
}
_CODE = Prompts(domains=('code',), count=40)
_RECURSIVE = {'verifiers': ('recursive',)}
# The candidates of a part, and the other fields of its experiment.
_PARTS: dict[str, tuple[dict[str, Candidate], dict]] = {
  'drafters': (
    _COUNTS
    | {name: _lm(name) for name in ('draft-64', 'draft-128', 'draft-256')}
    | {'ngram': _ngram()},
    {},
  ),
  'gammas': (
    {'draft-128': _lm('draft-128')},
    {'verifiers': ('token', 'block'), 'gammas': (1, 2, 4, 8), 'prompts': _CODE},
  ),
  'distillation': (
    {
      'before': _lm('runs/embedded_pair/corpus-only/draft-128'),
      'after': _lm('runs/embedded_pair/pair/draft-128'),
    },
    {},
  ),
  'lenience': (
    {'bigram': _COUNTS['bigram'], 'draft-128': _lm('draft-128')},
    {
      'verifiers': ('token', 'lenience:0.5', 'lenience:0.3', 'lenience:0.1'),
      'prompts': _CODE,
    },
  ),
  'candidates': (
    {
      'one': _lm('draft-128', 2),
      'two with': _tree(2, True),
      'four with': _tree(4, True),
      'two without': _tree(2, False),
      'four without': _tree(4, False),
    },
    _RECURSIVE | {'prompts': _CODE},
  ),
  'lookup': (
    {
      'prompt lookup': _ngram(),
      'places that vote': _ngram(places=16),
      'two candidates': _ngram(candidates=2),
      'four candidates': _ngram(candidates=4),
      'reference': _reference(1),
      'reference, two': _reference(2),
      'reference, four': _reference(4),
    },
    _RECURSIVE,
  ),
  'online': (
    {'before': _lm('undistilled'), 'after': _lm('runs/online/weights')},
    # Windows that were drawn for its training have seed 0.
    {'prompts': Prompts(domains=('structured',), count=40), 'seed': 1},
  ),
}


def get_config(part: str = 'drafters') -> Experiment:
  need(part in _PARTS, f'the parts are {", ".join(_PARTS)}, got {part!r}')
  candidates, fields = copy.deepcopy(_PARTS[part])
  return Experiment(
    name=f'embedded_{part}',
    target=Checkpoint(pair.path('target')),
    candidates=candidates,
    max_new_tokens=64,
    batch=40,
    timed=False,
    **{'prompts': Prompts(count=40)} | fields,
  )
