"""Where tokens came from, of steps written down by hand."""

import numpy as np
import pytest

from specjax.bench import samples, trace
from specjax.bench.trace import Other, Token
from specjax.types import Draft


def step(tokens, parents, path, next_token, *, size=None, added=None):
  """A step whose node i is accepted with chance (i + 1) / 10."""
  accepted = len(path) - 1
  return trace.Recording(
    counts=None,
    draft=Draft(
      np.array(tokens), np.array(parents),
      np.array(len(tokens) if size is None else size), None,
    ),
    verdict=trace.Judged(
      np.array(path + path[-1:] * 3), np.array(accepted), np.array(next_token),
      np.arange(1, len(tokens) + 1) / 10,
    ),
    added=np.array(accepted + 1 if added is None else added),
  )  # fmt: skip


FIRST, BONUS = Token(5, 'accepted', 0.1, []), Token(9, 'bonus', None, [])


@pytest.mark.parametrize(
  ('path', 'more', 'found'),
  [
    ([0, 1, 2], {}, [FIRST, Token(6, 'accepted', 0.2, []), BONUS]),
    # A miss is a bonus, and nodes beyond the size are none.
    ([0], {'size': 0}, [BONUS]),
    ([0, 1], {'size': 1}, [FIRST, BONUS]),
    # A step that is cut short has only what stayed.
    ([0, 1, 2], {'added': 1}, [FIRST]),
    ([0], {'added': 0}, []),
  ],
)
def test_tokens_of_a_chain(path, more, found):
  assert trace.tokens(step([5, 6], [0, 1], path, 9, **more)) == found


def test_a_chain_that_is_rejected_names_what_was_rejected():
  """8 was drafted behind 7, 7 behind 6."""
  rejected = [Other([6, 7, 8], 0.2, 'rejected')]
  found = trace.tokens(step([5, 6, 7, 8], [0, 1, 2, 3], [0, 1], 9))
  assert found == [FIRST, Token(9, 'corrected', None, rejected)]


def test_siblings_in_a_tree_are_told_apart():
  """Rows 1 2 3 hang below the root, 4 below 2 and 5 below 3."""
  tree = [5, 6, 7, 8, 9], [0, 0, 0, 2, 3]
  first, last = trace.tokens(step(*tree, [0, 2], 4))
  assert first.token == 6
  assert first.others == [
    Other([5], 0.1, 'rejected'),
    Other([7, 9], 0.3, 'not judged'),
  ]
  assert last == Token(4, 'corrected', None, [Other([8], 0.4, 'rejected')])


def test_what_lies_between_twins_may_have_been_judged_or_not():
  """The path stands at the first of the two, whichever was accepted."""
  first, _ = trace.tokens(step([5, 6, 5, 7], [0, 0, 0, 0], [0, 1], 9))
  assert [(o.tokens, o.fate) for o in first.others] == [
    ([6], 'unknown'),
    ([7], 'not judged'),
  ]


class Letters:
  """A token is a letter; 26 and 27 are two bytes of one, 28 begins a word."""

  def decode(self, ids):
    others = {26: b'\xc3', 27: b'\xa9', 28: b' d'}
    data = b''.join(others.get(i, bytes([97 + i % 26])) for i in ids)
    return data.decode('utf-8', 'replace').lstrip()


def test_pieces_are_written_as_they_stand_in_the_text():
  """Alone, a token may lack its space or be half a character."""
  tokens = [
    Token(28, 'accepted', 0.5, []),
    Token(3, 'accepted', 1.0, []),
    Token(26, 'accepted', 1.0, []),
    Token(27, 'corrected', None, [Other([1, 2], 0.25, 'rejected')]),
    Token(0, 'bonus', None, []),
  ]
  found = samples.written(Letters(), [25] * 40, tokens)
  assert [t['text'] for t in found] == [' d', 'd', '', 'é', 'a']
  assert [t['origin'] for t in found] == [t.origin for t in tokens]
  (other,) = found[3]['others']
  assert other['text'].endswith('bc')
  assert other['chance'] == 0.25
