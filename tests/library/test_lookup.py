"""Lookup in a text and in a reference text, against plain Python."""

import collections
import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints, corpus, pair, sampling
from specjax.drafters import ngram, suffix
from specjax.drafters.ngram import copies, retrieval
from specjax.training import corpus_lookup
from specjax.types import Context, Params, Target
from tests.support import models

VOCAB = 3
SLOTS = 24
SIZE = 40  # of the corpus
DEPTH = 3
LONGEST = 3
PLACES = 4
SHARED = 2 * PLACES  # votes of a match in the text

tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, min_size=1, max_size=SLOTS)
corpora = st.lists(tokens, min_size=SIZE, max_size=SIZE)
few = hypothesis.settings(deadline=None, max_examples=60)

HOST = Target(models.TARGET)


@few
@hypothesis.given(corpora, texts)
def test_agreeing_tokens_are_counted_to_the_first_of_both_texts(there, text):
  padded = np.array(text + [0] * (SLOTS - len(text)))
  count = jax.jit(functools.partial(copies.count_agreeing, longest=LONGEST))

  def agreeing(place):
    pairs = zip(reversed(there[: place + 1]), reversed(text), strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return min(len([*same]), LONGEST)

  found = count(np.array(there), padded, len(text))
  assert found.tolist() == [*map(agreeing, range(SIZE))]


def sort_naively(corpus):
  key = [corpus[i : i + retrieval.SORTED] for i in range(len(corpus))]
  return sorted(range(len(corpus)), key=lambda i: (key[i], i))


def continuations(text, corpus, least=1):
  """Tokens to copy and their votes where `least` agree, the best first."""
  found = []
  for i in range(len(text) - 1):
    agree = 0
    while agree <= min(i, LONGEST - 1) and text[i - agree] == text[-1 - agree]:
      agree += 1
    found += [(-agree, -i)] if agree else []
  copies = [
    (text[-i + 1 :][:DEPTH], -agree, SHARED)
    for agree, i in sorted(found)[:PLACES]
  ]
  order = sort_naively(corpus)
  for m in range(min(LONGEST, len(text)), 0, -1):
    begins = [i for i in order if corpus[i : i + m] == text[-m:]]
    n = len(begins)
    if n > PLACES:
      whole, part = divmod(n, PLACES)
      begins = [
        begins[i * whole + whole // 2 + (2 * i + 1) * part // (2 * PLACES)]
        for i in range(PLACES)
      ]
    copies += [(corpus[i + m :][:DEPTH], m, 1) for i in begins]
  return [
    (copy, 4 ** (m - LONGEST) * votes)
    for copy, m, votes in copies
    if m >= least
  ]


def vote(copies):
  """Votes of every beginning, in the order in which they are seen."""
  votes = collections.Counter()
  for copy, weight in copies:
    for end in range(1, len(copy) + 1):
      votes[tuple(copy[:end])] += weight
  return votes


def chain_naively(votes):
  path = ()
  while len(path) < DEPTH:
    below = [x for x in votes if x[:-1] == path and len(x) > len(path)]
    if not below:
      break
    path = max(below, key=votes.__getitem__)
  return [path[:end] for end in range(1, len(path) + 1)]


def tree_naively(votes, nodes):
  return sorted(votes, key=lambda x: (-votes[x], len(x)))[:nodes]


@functools.partial(jax.jit, static_argnames=('candidates', 'places', 'least'))
def draft(corpus, text, length, candidates=1, places=None, least=1):
  reads = corpus is not None
  drafter = ngram.make(DEPTH, LONGEST, candidates, places, reads, least)
  ctx = Context(text[None], length[None], (), sampling.make(1), None)
  made, _ = drafter.propose(Params(None, corpus), (), ctx, None)
  assert made.probs is None  # Chosen tokens promise nothing.
  return made.tokens[0], made.parents[0], made.size[0]


@pytest.mark.parametrize('least', [1, 2])
@few
@hypothesis.given(text=texts)
def test_without_a_corpus_the_best_match_is_copied(least, text):
  # What lies beyond the text is never matched.
  padded = jnp.array(text + [text[-1]] * (SLOTS - len(text)), jnp.int32)
  copy, _, size = draft(None, padded, jnp.int32(len(text)), least=least)
  best, *_ = [*continuations(text, [], least), ([], 0)]
  assert copy[:size].tolist() == best[0]


def test_a_chain_comes_from_a_corpus_where_the_text_has_no_match():
  corpus = retrieval.build(np.array([0, 1, 2, 2]))
  text = jnp.zeros(SLOTS, jnp.int32)
  copied, _, size = draft(corpus, text, jnp.int32(1))
  assert copied[:size].tolist() == [1, 2, 2]


def paths_of(drafted):
  """Each node that exists as the text from the root to it."""
  new, parents, size = jax.device_get(drafted)
  paths = [()]
  for token, parent in zip(new[:size], parents[:size], strict=True):
    assert parent < len(paths)
    paths.append((*paths[parent], int(token)))
  return paths[1:]


@pytest.mark.parametrize(
  ('candidates', 'least'), [(1, 1), (1, 2), (2, 1), (2, 3)]
)
@few
@hypothesis.given(text=texts, reference=corpora)
def test_drafts_are_those_of_plain_python(candidates, least, text, reference):
  # What lies beyond the text is never matched.
  padded = jnp.array(text + [text[-1]] * (SLOTS - len(text)), jnp.int32)
  corpus = retrieval.Corpus(
    jnp.array(reference, jnp.int32),
    jnp.array(retrieval.sort_places(np.array(reference)), jnp.int32),
  )
  length = jnp.int32(len(text))
  drafted = draft(corpus, padded, length, candidates, PLACES, least)
  paths = paths_of(drafted)
  votes = vote(continuations(text, reference, least))
  assert len(set(paths)) == len(paths)
  if candidates == 1:
    assert paths == chain_naively(votes)
    assert drafted[1].tolist() == list(range(DEPTH))
    return
  expected = tree_naively(votes, DEPTH * candidates)
  # Which of two with equal votes comes first is nobody's concern.
  assert [votes[x] for x in paths] == [votes[x] for x in expected]
  assert {x[:-1] for x in paths} <= {(), *paths}


def test_places_of_long_repetitions_stay_in_order():
  order = retrieval.sort_places(np.zeros(100, int))
  assert order[:31].tolist() == list(range(99, 68, -1))
  assert order[31:].tolist() == list(range(69))
  with pytest.raises(ValueError, match='has 2147483648 tokens; at least 2 are'):
    retrieval.check(range(2**31), VOCAB, 'it')


def write(tmp_path, content):
  file = tmp_path / 'corpus.npy'
  if isinstance(content, bytes):
    file.write_bytes(content)
  else:
    np.save(file, content)
  return str(file)


def test_a_corpus_is_read_from_a_file(tmp_path):
  text = [1, 2, 3, 1, 2, 4]
  path = write(tmp_path, np.array(text, np.uint16))
  loaded = ngram.load(HOST, candidates=2, corpus=path)
  drafter = loaded.make(2)
  assert (drafter.depth, drafter.nodes) == (2, 4)
  assert loaded.params.tokens.tolist() == text
  # Sorted once, but not for a file that has changed.
  assert ngram.load(HOST, corpus=path).params is loaded.params
  np.save(path, np.array(text[::-1], np.uint16))  # Of the same size.
  assert ngram.load(HOST, corpus=path).params.tokens.tolist() == text[::-1]
  plain = ngram.load(HOST)
  assert plain.make(2) is ngram.make(2, 3, 1, None, False, 1)
  assert plain.params is None
  assert suffix.load(HOST).make(2) is suffix.make(2, 24, 1.0, 1, 64)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (np.array([0, 11]), 'has token 11, but the target has 11'),
    (np.array([-1, 3]), 'has token -1, but the target has 11'),
    (np.array([3]), 'has 1 tokens; at least 2'),
    (np.zeros((2, 2), int), 'has 2 axes of int64'),
    (np.array([1.0, 2.0]), 'has 1 axes of float64'),
    (b'1 2 3', 'is no .npy file of token ids'),
    (b'', 'is no .npy file of token ids'),
  ],
  ids=str,
)
def test_a_corpus_that_cannot_be_used_is_named(content, message, tmp_path):
  path = write(tmp_path, content)
  with pytest.raises(ValueError, match=message):
    ngram.load(HOST, corpus=path)


def test_the_embedded_corpus_is_looked_up_in_without_what_is_held_out(
  monkeypatch,
):
  documents = [
    corpus.Document('code', 'ast', 'import ast\n'),
    corpus.Document('code', 'test.test_ast', 'assert ast\n'),
    corpus.Document('code', 're', 'import re\n'),
  ]
  monkeypatch.setattr(
    corpus, 'training_documents', {'code': documents}.__getitem__
  )
  path = pair.path('target')
  tokenizer = checkpoints.load_tokenizer(path)
  target = Target(checkpoints.describe(path).model)
  loaded = corpus_lookup.load(target, path, candidates=3)
  assert loaded.make(2).nodes == 6
  tokens = loaded.params.tokens.tolist()
  found = tokenizer.decode(tokens).split('<|endoftext|>')
  assert found == ['', 'import ast\n', 'import re\n']
  with pytest.raises(ValueError, match=r'tokens of .* has token .* has 11'):
    corpus_lookup.load(HOST, path)
