"""Methods of 2024 and 2025 beside those they are compared with.

  specjax run methods --results=results/methods

No time is taken, so the machine may be busy; the run takes some ten minutes of
its cores. The target and the prompts are those of the config `drafters`.

  draft-128 tree  trees that are drawn, judged node by node and from the leaves
                  upwards (traversal verification)
  suffix          what follows all earlier places like the end of the text, in
                  drafts of up to four nodes for each token of the match
                  (SuffixDecoding), beside ngram, which copies K tokens from
                  the last place
  recycling       a tree of tokens that were likely after each token before
                  (Token Recycling), beside lookup's trees of eight nodes
  skip            the target without a layer, or without its MLP, beside its
                  first layers (Draft & Verify, SWIFT; LayerSkip)

The sub-layers to skip were chosen by `specjax.drafters.skip.search` on texts of
the target that continue other windows of the held-out documents.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts

_TREE = (0, 0, 0, 1, 1, 2, 4, 7)  # The tree of the config `drafters`.
_DEEP = (0, 0, 1, 1, 2, 2, 3, 4, 5, 6)  # Two children each, then one.


def _tree(parents: tuple[int, ...]) -> Candidate:
  rules = 'recursive', 'traversal'
  return Candidate('lm', 4, pair.path('draft-128'), {'parents': parents}, rules)


def _copied(load: str, **options) -> Candidate:
  """Returns a candidate that copies trees from the text or old logits."""
  return Candidate(load, 4, '', options, ('recursive',))


def get_config() -> Experiment:
  return Experiment(
    name='methods',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128 tree': _tree(_TREE),
      'draft-128 deep tree': _tree(_DEEP),
      'ngram': Candidate('ngram', 8),
      'suffix': Candidate('suffix', 8, options={'factor': 4.0}),
      'ngram tree': _copied('ngram', candidates=2),
      'suffix tree': _copied('suffix', candidates=2, factor=4.0),
      'recycling': _copied('recycling', nodes=8),
      'exit 2': Candidate('early_exit', 4, options={'layers': 2}),
      'skip 1': Candidate('skip', 4, options={'skip': (1,)}),
      'skip mlp 1': Candidate('skip', 4, options={'skip_mlp': (1,)}),
    },
    temperatures=(0.0, 1.0),
    prompts=Prompts(domains=('code', 'structured'), count=24),
    max_new_tokens=48,
    batch=24,
    timed=False,
  )
