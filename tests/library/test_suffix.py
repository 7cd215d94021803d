"""Suffix decoding against a count of all continuations in plain Python."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from specjax.drafters import suffix
from specjax.types import Context

SLOTS, DEPTH, LONGEST, PLACES = 24, 3, 4, 5
texts = st.lists(st.integers(0, 2), min_size=1, max_size=SLOTS)
few = hypothesis.settings(deadline=None, max_examples=80)


def ends_alike(text, p):
  """Places behind earlier p tokens that are the last p."""
  return [
    i for i in range(p, len(text)) if text[i - p : i] == text[len(text) - p :]
  ]


def votes(text, p):
  """Beginning of a continuation -> share of the places that go on with it.

  What agrees longest comes first, and of such places the last.
  """
  places = ends_alike(text, p)

  def agree(i):
    return sum(
      i in ends_alike(text, longer) for longer in range(1, LONGEST + 1)
    )

  places = sorted(places, key=lambda i: (-agree(i), -i))[:PLACES]
  begins = [
    tuple(text[i : i + k])
    for i in places
    for k in range(1, DEPTH + 1)
    if i + k <= len(text)
  ]
  return {b: begins.count(b) / len(places) for b in begins}


def chain_of(share):
  """The most likely child, again and again, with the shares."""
  path, found = (), []
  while below := [b for b in share if b[:-1] == path and len(b) > len(path)]:
    path = max(below, key=lambda b: share[b])
    found.append(share[path])
  return found


def worth(text, factor, candidates):
  """What each p promises: the sum over the nodes that it would draft."""
  promised = {}
  for p in range(1, LONGEST + 1):
    share = votes(text, p) if p < len(text) else {}
    ordered = chain_of(share) if candidates == 1 else sorted(share.values())
    ordered = sorted(ordered, reverse=True)
    limit = int(min(factor * p, DEPTH * candidates))
    promised[p] = sum(ordered[:limit]), min(limit, len(ordered))
  return promised


@functools.partial(jax.jit, static_argnums=(2, 3))
def drafted(tokens, length, factor, candidates):
  drafter = suffix.make(DEPTH, LONGEST, factor, candidates, PLACES)
  ctx = Context(tokens[None], length[None], (), None, None)
  draft, _ = drafter.propose(None, (), ctx, None)
  assert draft.probs is None  # Chosen tokens promise nothing.
  return draft.tokens[0], draft.parents[0], draft.size[0]


@pytest.mark.parametrize('factor', [1.0, 2.5])
@pytest.mark.parametrize('candidates', [1, 2])
@few
@hypothesis.given(text=texts)
def test_a_draft_has_the_most_votes_of_the_best_length(
  factor, candidates, text
):
  # What lies beyond the text is never matched.
  padded = np.full(SLOTS, text[-1])
  padded[: len(text)] = text
  tokens, parents, size = drafted(padded, len(text), factor, candidates)
  size = int(size)
  promised = worth(text, factor, candidates)
  most = max(total for total, _ in promised.values())
  best = max(p for p, (x, _) in promised.items() if x > most - 1e-5)
  assert size == promised[best][1]
  if not size:
    return
  share, paths = votes(text, best), {0: ()}
  for i in range(size):
    assert int(parents[i]) <= i
    paths[i + 1] = (*paths[int(parents[i])], int(tokens[i]))
  assert len(set(paths.values())) == size + 1
  total = sum(share[path] for path in list(paths.values())[1:])
  assert total == pytest.approx(most, abs=1e-5)
