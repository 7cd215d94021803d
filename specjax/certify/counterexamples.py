"""The smallest example that shows what is wrong with a rule.

`hypothesis` searches over small p and q and shrinks what it finds; the result
is told in fractions that a person can check.
"""

import dataclasses
import random
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from specjax.certify import exact, one_step
from specjax.certify.one_step import TOLERANCE, Example, Fault, Shape
from specjax.types import Rule

_MOST = 6  # weight of a token that is searched
_DRAFTS = 12  # that are told of an example


def find(strategy: Any, condition: Any, examples: int) -> Any:
  """The smallest value that meets a condition; None where none was found.

  Args:
    strategy: of `hypothesis`.
    condition: of a value.
    examples: that are tried at most before any is found.
  """
  settings = hypothesis.settings(
    max_examples=examples,
    database=None,
    deadline=None,
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  try:
    return hypothesis.find(
      strategy, condition, settings=settings, random=random.Random(0)
    )
  except hypothesis.errors.NoSuchExample:
    return None


def _examples(shapes: Iterable[Shape]) -> Any:
  """A strategy of examples, the simple ones first."""

  def tables(vocab: int):
    weights = st.tuples(*[st.integers(0, _MOST)] * vocab).filter(any)
    same = weights.map(lambda row: (row,) * (vocab + 1))
    return st.one_of(same, st.tuples(*[weights] * (vocab + 1)))

  @st.composite
  def example(draw):
    shape = draw(st.sampled_from(list(shapes)))
    vocab = draw(st.sampled_from([2, 3]))
    p, q = draw(tables(vocab)), draw(tables(vocab))
    return Example(shape, p, q, draw(st.sampled_from([1.0, 2.0])))

  return example()


def _reduced(example: Example) -> Example:
  """The same with the smallest whole weights."""
  p, q = (
    tuple(tuple(w // int(np.gcd.reduce(row)) for w in row) for row in table)
    for table in (example.p, example.q)
  )
  return dataclasses.replace(example, p=p, q=q)


def simplify(rule: Rule, fault: Fault) -> Fault:
  """The same fault where the same p and q come after every text, if it can."""
  one = fault.example
  for name in ('p', 'q'):
    table = getattr(one, name)
    plain = dataclasses.replace(one, **{name: table[:1] * len(table)})
    found = one_step.examine(rule, [plain])
    if found and found[0].law == fault.law:
      one, fault = plain, found[0]
  return fault


def search(rule: Rule, shapes: Iterable[Shape], examples: int) -> Fault | None:
  """The smallest fault of a rule that the search finds.

  Args:
    rule: that is searched.
    shapes: of drafts that it takes.
    examples: that are tried before one is found.
  """

  def wrong(example: Example) -> bool:
    return bool(one_step.examine(rule, [example]))

  found = find(_examples(shapes), wrong, examples)
  return found and one_step.examine(rule, [_reduced(found)])[0]


def in_words(value: float) -> str:
  """A number as a simple fraction where it is one."""
  if not np.isfinite(value):
    return str(float(value))
  near = Fraction(float(value)).limit_denominator(1000)
  return str(near) if abs(near - float(value)) < TOLERANCE else f'{value:.6g}'


def _list(values: Iterable[float]) -> list[str]:
  return [in_words(x) for x in values]


def text_in_words(tokens: Iterable[int]) -> str:
  return ' '.join(str(int(token)) for token in tokens) or '(nothing)'


def _told(table: tuple[tuple[int, ...], ...]) -> dict[str, list[str]]:
  """Distributions by the token before them."""
  rows = [_list(np.array(row) / sum(row)) for row in table]
  if all(row == rows[0] for row in rows):
    return {'after every text': rows[0]}
  behind = {f'after {token}': row for token, row in enumerate(rows[1:])}
  return {'at first': rows[0]} | behind


def describe(rule: Rule, fault: Fault) -> dict[str, Any]:
  """An example as numbers: what is drafted, what the rule does, what comes.

  Args:
    rule: that is wrong.
    fault: where.
  """
  example = fault.example
  found = one_step.evaluate(rule, [example] * 2)
  draft, rows = found.made.draft, []
  for i in np.flatnonzero(found.made.weight * (found.made.context == 0)):
    size = int(np.asarray(draft.size)[i])
    at = np.flatnonzero(found.ends[i] > TOLERANCE)
    tokens = np.asarray(draft.tokens[i])
    labels = ['nothing', *(f'token {n + 1}' for n in range(len(tokens)))]
    rows.append(
      {
        'drafted': text_in_words(tokens[:size]),
        'chance': in_words(found.made.weight[i]),
        'accepts': _list(found.accept[i, :size]),
        'then_draws_from': {
          f'{labels[row]} accepted': _list(found.rest[i, row]) for row in at
        },
      }
    )
  off = ~(np.abs(found.text - found.wanted)[0] <= TOLERANCE)
  ahead = np.abs(found.first - found.first_wanted)[0]
  first = not off.any() or not (ahead <= TOLERANCE).all()
  length = 1 if first else example.shape.depth + 1
  texts = exact.Texts(example.vocab, length)
  got, wanted = (
    (found.first[0], found.first_wanted[0])
    if first
    else (found.text[0], found.wanted[0])
  )
  names = [
    text_in_words(texts.tokens(int(texts.offset[length]) + i))
    for i in range(len(got))
  ]
  shown = range(len(got)) if first else np.flatnonzero(off)
  return {
    'draft': example.shape.name,
    'chosen': example.shape.chosen,
    'vocabulary': example.vocab,
    'p': _told(example.p),
    'q': _told(example.q),
    'logits': 'log p'
    if example.temperature == 1
    else f'{example.temperature:g} log p',
    'drafts': rows[:_DRAFTS],
    'drafts_left_out': max(len(rows) - _DRAFTS, 0),
    'what': fault.what,
    'expected': {names[i]: in_words(wanted[i]) for i in shown},
    'obtained': {names[i]: in_words(got[i]) for i in shown},
    'total_variation': in_words(found.distance[0]),
  }
