"""Lookup in the embedded corpus: reference text that needs no file.

A load function for candidates:

  Candidate('specjax.training.corpus_lookup.load', 4, pair.path('target'),
            {'candidates': 2})

The text is what models are trained on here, so prompts of held-out documents
are not in it, by the rule that holds them out (`corpus.names`). 2.9 million
tokens of code are read, tokenised and sorted in six seconds on a core of an
AMD EPYC, once for every layout of the target's weights.
"""

import functools

import numpy as np

from specjax import checkpoints, corpus
from specjax.drafters import ngram
from specjax.drafters.ngram import retrieval
from specjax.drafters.ngram.retrieval import Corpus
from specjax.training.data import stream_of
from specjax.types import LoadedDrafter, Target


def tokens_of(tokenizer, domains: tuple[str, ...]) -> np.ndarray:
  """Training documents of some domains, each behind an end-of-text token.

  Without the tests of the library, which are twice as long as the library.
  """
  texts = [
    document.text
    for domain in domains
    for document in corpus.training_documents(domain)
    if stream_of(document) == domain
  ]
  end = [tokenizer.eos_token_id]
  encoded = tokenizer(texts, verbose=False)['input_ids']
  return np.concatenate([end + ids for ids in encoded])


@functools.lru_cache(maxsize=1)
def _build(path: str, domains: tuple[str, ...], vocab_size: int) -> Corpus:
  tokens = tokens_of(checkpoints.load_tokenizer(path), domains)
  retrieval.check(tokens, vocab_size, f'the text in tokens of {path}')
  return retrieval.build(tokens)


def load(
  target: Target,
  path: str,
  longest: int = 3,
  candidates: int = 1,
  places: int | None = None,
  domains: tuple[str, ...] = ('code',),
) -> LoadedDrafter:
  """`drafters.ngram` with the embedded corpus as its reference text.

  Args:
    target: what is drafted for.
    path: whose tokenizer: the target's own directory.
    longest: see `ngram.make`.
    candidates: likewise.
    places: likewise.
    domains: of `corpus.DOMAINS`.

  Raises:
    ValueError: no such domain, or the tokenizer is not the target's.
  """
  text = _build(path, tuple(domains), target.model.config.vocab_size)
  return LoadedDrafter(
    target.model,
    lambda depth: ngram.make(depth, longest, candidates, places, True),
    text,
  )
