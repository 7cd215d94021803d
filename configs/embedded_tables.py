"""The published tables at the scale of the embedded pair: acceptance only.

  for part in drafters gammas distillation divergences lenience candidates \\
      lookup online; do
    python -m experiments.run --config configs/embedded_tables.py:$part \\
      --config.results=results/embedded/$part
  done

No time is taken, so the machine may be busy. Each part goes on where it was
stopped, and its bar says how long it will take.

  drafters      alpha of unigrams, bigrams and three sizes of drafts, and of
                lookup, at temperature 0 and 1 (Leviathan et al., Table 3)
  gammas        tokens per step by draft length, token and block verification
                (Chen et al., Figure 1; Sun et al., Table 1)
  distillation  drafts before and after they were trained on the target's own
                text (Zhou et al., Table D.1)
  divergences   a draft distilled by five divergences on three kinds of data
                (Zhou et al., Figure 4)
  lenience      alpha and tau by lenience (Leviathan et al., Table 5)
  candidates    k candidates for a token, with and without replacement
                (Yang et al., Table 8; Chen et al., Sequoia)
  lookup        prompt lookup, places that vote, several candidates, and the
                training text of the pair as a reference (He et al., REST)
  online        a draft before and after it learned from what it drafted for, on
                other prompts of the same domain (Liu et al., 2023)

`distillation` needs runs/embedded_pair, which is where `experiments.train
--config configs/embedded_pair.py` puts the drafts of both stages;
`divergences` runs/distill and `online` runs/online, likewise by the configs of
these names. The rest needs nothing but the package. What the rows say about the
papers' claims is in results/findings.md, which `python -m experiments.tables
results` makes.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.errors import UserError

_GAMMA = 4

PARTS = (
  'drafters',
  'gammas',
  'distillation',
  'divergences',
  'lenience',
  'candidates',
  'lookup',
  'online',
)


def _experiment(part: str, candidates, **fields) -> Experiment:
  fields = {'prompts': Prompts(count=40)} | fields
  return Experiment(
    name=f'embedded_{part}',
    target=Checkpoint(pair.path('target')),
    candidates=candidates,
    max_new_tokens=64,
    batch=40,
    timed=False,
    **fields,
  )


def _drafters() -> Experiment:
  trained = {
    name: Candidate('lm', _GAMMA, pair.path(name))
    for name in ('draft-64', 'draft-128', 'draft-256')
  }
  counted = {
    name: Candidate('counts', _GAMMA, pair.path(name))
    for name in ('unigram', 'bigram')
  }
  lookup = Candidate('ngram', _GAMMA)
  return _experiment('drafters', counted | trained | {'ngram': lookup})


def _gammas() -> Experiment:
  return _experiment(
    'gammas',
    {'draft-128': Candidate('lm', _GAMMA, pair.path('draft-128'))},
    verifiers=('token', 'block'),
    gammas=(1, 2, 4, 8),
    prompts=Prompts(domains=('code',), count=40),
  )


def _distillation() -> Experiment:
  folder = 'runs/embedded_pair'
  return _experiment(
    'distillation',
    {
      'before': Candidate('lm', _GAMMA, f'{folder}/corpus-only/draft-128'),
      'after': Candidate('lm', _GAMMA, f'{folder}/pair/draft-128'),
    },
  )


def _divergences() -> Experiment:
  folder = 'runs/distill/drafts'
  losses = (
    'forward_kl',
    'reverse_kl',
    'jensen_shannon',
    'total_variation',
    'minus_log_alpha',
  )
  grid = {
    f'{loss} on {kind}'.replace('_', ' '): f'{kind}-{loss}'
    for kind in ('corpus', 'target_text', 'own_text')
    for loss in losses
  }
  names = {'undistilled': 'undistilled', 'control': 'control'} | grid
  return _experiment(
    'divergences',
    {n: Candidate('lm', _GAMMA, f'{folder}/{p}') for n, p in names.items()},
  )


def _online() -> Experiment:
  return _experiment(
    'online',
    {
      'before': Candidate('lm', _GAMMA, pair.path('undistilled')),
      'after': Candidate('lm', _GAMMA, 'runs/online/weights'),
    },
    prompts=Prompts(domains=('structured',), count=40),
    seed=1,  # Windows that were drawn for its training have seed 0.
  )


def _lenience() -> Experiment:
  return _experiment(
    'lenience',
    {
      'bigram': Candidate('counts', _GAMMA, pair.path('bigram')),
      'draft-128': Candidate('lm', _GAMMA, pair.path('draft-128')),
    },
    verifiers=(
      'token',
      *(f'lenience:{x}' for x in (0.5, 0.3, 0.1)),
    ),
    prompts=Prompts(domains=('code',), count=40),
  )


def _candidates() -> Experiment:
  draft = pair.path('draft-128')

  def tree(count, replacement):
    options = {'widths': (count,), 'replacement': replacement}
    return Candidate('lm', 2, draft, options)

  return _experiment(
    'candidates',
    {
      'one': Candidate('lm', 2, draft),
      'two with': tree(2, True),
      'four with': tree(4, True),
      'two without': tree(2, False),
      'four without': tree(4, False),
    },
    verifiers=('recursive',),
    prompts=Prompts(domains=('code',), count=40),
  )


def _lookup() -> Experiment:
  def ngram(**options):
    return Candidate('ngram', _GAMMA, '', options)

  def reference(candidates):
    path, options = pair.path('target'), {'candidates': candidates}
    return Candidate(
      'specjax.training.corpus_lookup.load', _GAMMA, path, options
    )

  return _experiment(
    'lookup',
    {
      'prompt lookup': ngram(),
      'places that vote': ngram(places=16),
      'two candidates': ngram(candidates=2),
      'four candidates': ngram(candidates=4),
      'reference': reference(1),
      'reference, two': reference(2),
      'reference, four': reference(4),
    },
    verifiers=('recursive',),
  )


def get_config(part: str = 'drafters') -> Experiment:
  makers = {
    'drafters': _drafters,
    'gammas': _gammas,
    'distillation': _distillation,
    'divergences': _divergences,
    'lenience': _lenience,
    'candidates': _candidates,
    'lookup': _lookup,
    'online': _online,
  }
  if part not in makers:
    raise UserError(f'the parts are {", ".join(PARTS)}, got {part!r}')
  return makers[part]()
