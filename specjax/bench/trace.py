"""Where each token came from, recorded step by step.

The step is the one that is measured, with the same keys: only its judge and
its tally are wrapped, to return what was drafted, with which chance it was
accepted, and the verdict.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax

from specjax import verify
from specjax.bench import measure
from specjax.loop import counting, generate
from specjax.loop.token_records import ORIGINS as ORIGINS
from specjax.models import sharding
from specjax.types import Counts, Draft, SpecState

COLOURS = dict(zip(ORIGINS, ('32', '31', '33'), strict=True))  # of a terminal


class Judged(NamedTuple):
  """A verdict with the chances that it came from."""

  path: jax.Array  # [B, K+1]
  num_accepted: jax.Array  # [B]
  next_token: jax.Array  # [B]
  chance: jax.Array  # [B, N] that the node is accepted, once it is judged


class Recording(NamedTuple):
  """One step of every row, with the counts behind it."""

  counts: Counts
  draft: Draft  # without its probabilities
  verdict: Judged
  added: jax.Array  # [B] tokens of the step that stayed


class Other(NamedTuple):
  """A token that was drafted for a place where another one stands."""

  tokens: list[int]  # the node's own, then the first ones drafted behind it
  chance: float
  fate: str  # rejected, not judged, or unknown: beside twins of the token


class Token(NamedTuple):
  """One new token of a text."""

  token: int
  origin: str  # one of ORIGINS
  chance: float | None  # that it was accepted; None where it was not drafted
  others: list[Other]


def _judge(key, draft, scores, rule, depth):
  verdict = verify.judge(key, draft, scores, rule, depth)
  return Judged(*verdict, rule.accept(draft, scores))


@functools.partial(jax.jit, static_argnames='spec', donate_argnames='state')
def _step(params, state, *, spec) -> tuple[SpecState, Recording]:
  """Takes a step, and returns what its tally saw beside the new state."""
  seen = []

  def tally(counts, draft, verdict, added, *rest):
    counts = counting.add(counts, draft, verdict, added, *rest)
    seen.append(Recording(counts, draft._replace(probs=None), verdict, added))
    return counts

  parts = generate.PARTS._replace(judge=_judge, tally=tally)
  state = generate.step(params, state, spec=spec, parts=parts)
  return state, seen[0]


def steps(way: measure.Decoding, job: measure.Job) -> Iterator[Recording]:
  """Decodes a job one step at a time, until its first row has finished.

  Yields:
    What happened in each step to that row, as numpy without the axis B.

  Raises:
    NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec, params, _ = way
  state = measure.start(way, job)
  done = sharding.fetch(state.done)[0]
  while not done:
    state, recording = _step(params, state, spec=spec)
    seen = sharding.fetch((state.done, state.finite, recording))
    done, finite, recording = jax.tree.map(lambda x: x[0], seen)
    if not finite:
      raise measure.not_finite(params)
    yield recording


def _continued(step: Recording, node: int) -> list[int]:
  """A drafted token and, down the tree, the first drafted behind it."""
  tokens = []
  while node is not None:
    tokens.append(int(step.draft.tokens[node]))
    node = next(iter(_children(step, node + 1)), None)
  return tokens


def _children(step: Recording, row: int) -> list[int]:
  draft = step.draft
  return [n for n in range(int(draft.size)) if draft.parents[n] == row]


def _others(step: Recording, row: int, accepted: int | None) -> list[Other]:
  """Everything drafted below a row but the token that was kept there.

  The same token may hang there twice, and which of the two was accepted the
  path does not tell: what lies between them may have been judged or not.
  """
  below, tokens = _children(step, row), step.draft.tokens
  twins = [
    n for n in below if accepted is not None and tokens[n] == tokens[accepted]
  ]

  def fate(node):
    if accepted is None or node < accepted:
      return 'rejected'
    return 'unknown' if node < max(twins) else 'not judged'

  return [
    Other(_continued(step, n), float(step.verdict.chance[n]), fate(n))
    for n in below
    if n not in twins
  ]


def tokens(step: Recording) -> list[Token]:
  """The new tokens of one step of one row, with where they came from.

  The token after the accepted ones is corrected where something was drafted
  for its place, and otherwise a bonus.
  """
  made = []
  for place in range(int(step.added)):
    row = int(step.verdict.path[place])
    if place < step.verdict.num_accepted:
      accepted = int(step.verdict.path[place + 1]) - 1
      made.append(
        Token(
          int(step.draft.tokens[accepted]),
          'accepted',
          float(step.verdict.chance[accepted]),
          _others(step, row, accepted),
        )
      )
    else:
      others = _others(step, row, None)
      origin = 'corrected' if others else 'bonus'
      made.append(Token(int(step.verdict.next_token), origin, None, others))
  return made


def piece(tokenizer, ids: list[int], shown: int) -> str:
  """The text that the last token adds to the characters shown so far.

  A token alone may be half a character, or lack the space before it.
  """
  text = tokenizer.decode(ids)
  return '' if text.endswith('\ufffd') else text[shown:]


def paint(text: str, kind: str, colour: bool) -> str:
  """Returns a text in the colour of its origin.

  Args:
    text: of a token.
    kind: its origin.
    colour: false where there is no terminal, and the text stays as it is.
  """
  return f'\x1b[{COLOURS[kind]}m{text}\x1b[0m' if colour and text else text


def legend() -> str:
  """Returns the names of the origins, each in its colour."""
  return ' '.join(paint(kind, kind, True) for kind in COLOURS)
