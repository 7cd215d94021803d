"""What a draft saves, and loses, with fewer tokens than the target has.

  specjax run configs/vocabularies.py

The output layer of a draft is as large as its vocabulary, and most of what is
said are few tokens (Zhao et al., 2025, arXiv:2502.14856). A draft model, and a
head that uses the layer of the target, propose the 2,048 tokens of the embedded
pair or the most frequent of them, as `specjax/pair/unigram` counts them in the
corpus. tau and c are by domain: rare tokens are not equally rare everywhere.
On larger vocabularies more is saved; the embedded one shows what is lost.
Beside them a draft with a tokenizer of its own, of 1,024 tokens, that learned
from the corpus alone: configs/own_vocabulary.py.
"""

from specjax import pair
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts

SIZES = (1024, 512, 256, 128)
_DRAFTS = {'draft-128': 'lm', 'eagle1': 'eagle'}


def get_config() -> Experiment:
  candidates = {}
  for name, load in _DRAFTS.items():
    path = pair.path(name)
    candidates[name] = Candidate(load, 3, path)
    for size in SIZES:
      options = {'vocabulary': size, 'frequencies': pair.path('unigram')}
      candidates[f'{name} {size}'] = Candidate(load, 3, path, options)
  own = pair.path('own-vocabulary')
  candidates['own vocabulary'] = Candidate('lm', 3, own)
  return Experiment(
    name='vocabularies',
    target=Checkpoint(pair.path('target')),
    candidates=candidates,
    prompts=Prompts(count=16),
    max_new_tokens=96,
  )
