"""One step of a rule over small distributions, multiplied out.

A rule is exact where its step, continued by the target itself, gives every text
the target's probability, whatever p and q are. So p and q are simple fractions
here, and every draft of a few tokens and every outcome of the coins is looked
at. Distributions depend on the last token alone, which is enough to tell one
row from another.

Every pair of simple p and q is tried, then random ones. What shows a fault is
made as simple as it can be, and told in fractions that a person can check.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.certify import exact
from specjax.certify.laws import text_in_words
from specjax.drafters.shapes import policies, static_tree
from specjax.drafters.shapes.policies import Policy
from specjax.types import Draft, Drafter, Rule

TOLERANCE = 1e-9  # of a probability, in float64
_REACHED = 1e-12  # a chance below it is rounding
_CHUNK = 16  # examples of one call, so that every call is one program
_MOST = 6  # largest weight of a token in a random example
_DRAFTS = 12  # drafts that are told of an example


class Shape(NamedTuple):
  """How a draft is made and how its nodes hang."""

  name: str
  parents: tuple[int, ...]
  replacement: bool = False
  hub: bool = False  # of two siblings one is the likeliest token
  chosen: bool = False  # the most likely tokens of q, without probabilities
  size: int | None = None  # nodes that exist; None: all of them
  stops: Policy | None = None

  @property
  def depth(self) -> int:
    return len(static_tree.levels_of(self.parents))

  @property
  def drafter(self) -> Drafter:
    """A drafter of this shape, which a rule takes or refuses."""
    nodes = len(self.parents)
    none = functools.partial
    return Drafter(
      self.depth,
      nodes,
      none,
      none,
      none,
      independent=self.replacement,
      paths=static_tree.chains_of(self.parents) if self.replacement else 0,
      hub=self.hub,
    )


SHAPES = (
  Shape('one token', (0,)),
  Shape('two tokens', (0, 1)),
  Shape(
    'two tokens, one where the first is unlikely',
    (0, 1),
    stops=policies.confidence(0.5),
  ),
  Shape('two siblings, drawn without replacement', (0, 0)),
  Shape('two siblings, drawn independently', (0, 0), replacement=True),
  Shape('two siblings, one the likeliest token', (0, 0), hub=True),
  Shape('two siblings, and a child of the first', (0, 0, 1)),
  Shape('one chosen token', (0,), chosen=True),
  Shape('nothing where there was room for a token', (0,), chosen=True, size=0),
)


Table = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Example:
  """Distributions of a step, as whole weights [V+1][V].

  The first row is that of the first token, the others come after each token.
  """

  shape: Shape
  p: Table
  q: Table
  temperature: float = 1.0  # logits are the logarithms times this

  @property
  def vocab(self) -> int:
    return len(self.p[0])

  @property
  def simple(self) -> tuple:
    """The order of examples, those that are read most easily first."""
    fractions = [Fraction(w, sum(row)) for row in self.p + self.q for w in row]
    different = len({*self.p}) + len({*self.q})
    size = sum(x.denominator + x.numerator for x in fractions)
    return self.vocab, self.temperature != 1, different, size


class Family:
  """Copies of the numbered texts, one behind the other; see `exact.Texts`."""

  def __init__(self, texts: exact.Texts, count: int):
    self.texts, self.count = texts, count
    self.vocab, self.each = texts.vocab, len(texts)

  def __len__(self) -> int:
    return self.count * self.each

  def after(self, number, token):
    return (
      number - number % self.each + self.texts.after(number % self.each, token)
    )


class Outcome(NamedTuple):
  """The result of a rule on E examples of one shape and vocabulary.

  The M drafts of all examples stand one behind the other.
  """

  made: exact.Drafts
  accept: np.ndarray  # [M, N]
  rest: np.ndarray  # [M, N+1, V]
  ends: np.ndarray  # [M, N+1] chance that the walk of a draft ends there
  text: np.ndarray  # [E, texts] of K + 1 tokens
  wanted: np.ndarray  # [E, texts] that of the target

  @property
  def distance(self) -> np.ndarray:
    """Total variation [E]; infinite where it is no number."""
    far = np.abs(self.text - self.wanted).sum(1) / 2
    return np.where(np.isfinite(far), far, np.inf)


def _distributions(
  weights: list[Table], texts: exact.Texts, temperature: np.ndarray
) -> exact.Distributions:
  """The probability of every text, from the weights after each token."""
  last = [(texts.tokens(i) or (-1,))[-1] + 1 for i in range(len(texts))]
  wide = np.asarray(weights, float)[:, last]
  rows = wide / wide.sum(-1, keepdims=True)
  with np.errstate(divide='ignore'):
    logits = np.log(rows) * temperature[:, None, None]
  return exact.Distributions(
    rows.reshape(-1, texts.vocab), logits.reshape(-1, texts.vocab)
  )


def _choose(shape: Shape) -> exact.DraftSource:
  """The one draft of each text that takes the most likely tokens."""

  def source(texts, q, contexts):
    every = np.arange(len(contexts))
    rows, tokens = [np.asarray(contexts)], []
    for _ in shape.parents:
      tokens.append(q.probs[rows[-1]].argmax(1))
      rows.append(texts.after(rows[-1], tokens[-1]))
    hung = np.broadcast_to(shape.parents, (len(every), len(tokens)))
    size = len(tokens) if shape.size is None else shape.size
    size = np.full(len(every), size)
    draft = Draft(np.stack(tokens, 1), hung, size, None)
    weight = np.ones(len(every))
    return exact.Drafts(draft, weight, every, np.stack(rows, 1))

  return source


def _source(shape: Shape) -> exact.DraftSource:
  if shape.chosen:
    return _choose(shape)
  stop = exact.stopping(shape.stops) if shape.stops else None
  law = static_tree.beside_hub if shape.hub else static_tree.remaining
  return exact.tree(shape.parents, shape.replacement, stop, law=law)


def onwards(chance: np.ndarray, p: np.ndarray, texts: exact.Texts, to: int):
  """Chances [E, texts of `to` tokens] where the target goes on from texts."""
  reached = chance.copy()
  for number in range(int(texts.offset[to])):
    after = texts.after(np.full(texts.vocab, number), np.arange(texts.vocab))
    reached[:, after] += reached[:, [number]] * p[:, number]
  return reached[:, texts.offset[to] : texts.offset[to + 1]]


def evaluate(rule: Rule, examples: list[Example]) -> Outcome:
  """Multiplies a rule out on E examples of one shape and vocabulary."""
  shape, vocab = examples[0].shape, examples[0].vocab
  texts = exact.Texts(vocab, shape.depth + 1)
  family = Family(texts, len(examples))
  temperature = np.array([x.temperature for x in examples])
  p, q = (
    _distributions(w, texts, temperature)
    for w in ([x.p for x in examples], [x.q for x in examples])
  )
  contexts = np.arange(len(examples)) * family.each
  made = _source(shape)(family, q, contexts)
  with jax.enable_x64(True):
    accept, rest, ends = exact.multiplied_out(rule, made, p)
  drawn = np.where(ends[..., None] > _REACHED, rest, 1)
  with np.errstate(all='ignore'):
    drawn = drawn / drawn.sum(-1, keepdims=True)
  chance = np.zeros((len(examples), family.each))
  for token in range(vocab):
    emitted = family.after(made.rows, token) % family.each
    weight = made.weight[:, None] * ends * drawn[:, :, token]
    np.add.at(chance, (made.context[:, None], emitted), weight)
  wide = p.probs.reshape(len(examples), family.each, vocab)
  begin = np.zeros_like(chance)
  begin[:, 0] = 1
  goes_on = functools.partial(onwards, p=wide, texts=texts, to=shape.depth + 1)
  text = goes_on(chance)
  return Outcome(
    made,
    accept,
    rest,
    ends * made.weight[:, None],
    text,
    goes_on(begin),
  )


@dataclasses.dataclass(frozen=True)
class Fault:
  """An example on which a rule breaks a law, or is lossy."""

  law: int  # of `laws.LAWS`; 0: its texts are not the target's
  what: str
  example: Example
  distance: float  # total variation of the texts

  @property
  def harmless(self) -> bool:
    """Returns True where a law is broken, and texts stay the target's."""
    return self.law == 7 and self.distance <= TOLERANCE


def faults(examples: list[Example], found: Outcome) -> Iterator[Fault]:
  """Finds what is wrong with the first of the examples that were evaluated."""
  reached = found.made.weight > _REACHED
  draft = found.made.draft
  exists = np.arange(draft.tokens.shape[1]) < np.asarray(draft.size)[:, None]
  at = found.ends > _REACHED
  for i, (example, far) in enumerate(
    zip(examples, found.distance, strict=False)
  ):
    here = reached & (found.made.context == i)
    accept = found.accept[here][exists[here]]
    rest = found.rest[here][at[here]]
    off = np.abs(rest.sum(-1) - 1)
    bad_accept = ~((accept >= -TOLERANCE) & (accept <= 1 + TOLERANCE))
    if np.isnan(accept).any() or np.isnan(rest).any():
      which = 'accept' if np.isnan(accept).any() else 'rest'
      yield Fault(8, f'{which} is NaN', example, far)
    elif bad_accept.any():
      worst = accept[bad_accept][0]
      yield Fault(7, f'a chance to accept is {worst:.6g}', example, far)
    elif (rest < -TOLERANCE).any():
      what = f'rest has the probability {rest.min():.6g}'
      yield Fault(8, what, example, far)
    elif (off > 1e-6).any():
      total = rest.sum(-1)[off.argmax()]
      yield Fault(8, f'rest adds up to {total:.6g}', example, far)
    elif far > TOLERANCE:
      yield Fault(0, f'total variation {far:.6g}', example, far)


def _simple(vocab: int) -> list[tuple[int, ...]]:
  """Distributions of small denominators, the smallest ones first."""
  most = 4 if vocab == 2 else 3
  return [
    weights
    for total in range(1, most + 1)
    for weights in itertools.product(range(total + 1), repeat=vocab)
    if sum(weights) == total and np.gcd.reduce(weights) == 1
  ]


def grid(shape: Shape, vocab: int) -> list[Example]:
  """Every pair of simple p and q at the first place.

  Once with the same ones behind every token and once with others, where logits
  are not the logarithms of probabilities either.
  """
  known = _simple(vocab)
  random = np.random.default_rng(0)
  examples = []
  for p, q in itertools.product(known, known):
    same = (p,) * (vocab + 1), (q,) * (vocab + 1)
    examples.append(Example(shape, *same))
    behind = random.integers(len(known), size=(2, vocab))
    others = [tuple(known[i] for i in row) for row in behind]
    examples.append(Example(shape, (p, *others[0]), (q, *others[1]), 2.0))
  return sorted(examples, key=lambda x: x.simple)


def _random(shape: Shape, vocab: int, random) -> Iterator[Example]:
  """Random examples without end, half of them the same after every text."""

  def table() -> Table:
    rows = random.integers(_MOST + 1, size=(vocab + 1, vocab))
    rows[rows.sum(1) == 0] = 1
    rows[:] = rows[:1] if random.random() < 0.5 else rows
    return tuple(map(tuple, rows.tolist()))

  while True:
    p, q = table(), table()
    yield Example(shape, p, q, float(random.choice([1.0, 2.0])))


def examine(rule: Rule, examples: list[Example]) -> Iterator[Fault]:
  """Finds the faults of a rule on examples of one shape and vocabulary."""
  for first in range(0, len(examples), _CHUNK):
    chunk = examples[first : first + _CHUNK]
    full = chunk + chunk[-1:] * (_CHUNK - len(chunk))
    yield from faults(chunk, evaluate(rule, full))


def search(rule: Rule, shapes: list[Shape], examples: int) -> Fault | None:
  """The first fault among so many random examples; None if there is none."""
  random = np.random.default_rng(0)
  groups = [
    _random(shape, vocab, random) for vocab in (2, 3) for shape in shapes
  ]
  for turn in range(-(-examples // _CHUNK)):
    group = groups[turn % len(groups)]
    found = examine(rule, list(itertools.islice(group, _CHUNK)))
    if fault := next(found, None):
      return fault
  return None


def _reduced(example: Example) -> Example:
  """Returns the example with the smallest whole weights."""
  p, q = (
    tuple(tuple(w // int(np.gcd.reduce(row)) for w in row) for row in table)
    for table in (example.p, example.q)
  )
  return dataclasses.replace(example, p=p, q=q)


def _neighbours(one: Example) -> Iterator[Example]:
  """Examples with one thing simpler, perhaps."""
  yield dataclasses.replace(one, temperature=1.0)
  for name in ('p', 'q'):
    table = getattr(one, name)
    yield dataclasses.replace(one, **{name: table[:1] * len(table)})
    for row, i in itertools.product(dict.fromkeys(table), range(one.vocab)):
      for less in range(row[i]):
        new = (*row[:i], less, *row[i + 1 :])
        if any(new):
          changed = tuple(new if old == row else old for old in table)
          yield dataclasses.replace(one, **{name: changed})


def simplify(rule: Rule, fault: Fault) -> Fault:
  """Shows the same fault by as simple an example as can be found."""
  while True:
    near = {_reduced(example) for example in _neighbours(fault.example)}
    near = [x for x in near if x.simple < fault.example.simple]
    found = examine(rule, sorted(near, key=lambda x: x.simple))
    same = (f for f in found if f.law == fault.law)
    simpler = next((f for f in same if f.harmless == fault.harmless), None)
    if simpler is None:
      return fault
    fault = simpler


def in_words(value: float, most: int = 1000, within: float = TOLERANCE) -> str:
  """A number as a fraction of a small denominator where it is nearly one."""
  if not np.isfinite(value):
    return str(float(value))
  near = Fraction(float(value)).limit_denominator(most)
  return str(near) if abs(near - float(value)) < within else f'{value:.6g}'


def _list(values: Iterable[float]) -> list[str]:
  return [in_words(x) for x in values]


def _told(table: Table) -> dict[str, list[str]]:
  """Distributions by the token before them."""
  rows = [_list(np.array(row) / sum(row)) for row in table]
  if all(row == rows[0] for row in rows):
    return {'after every text': rows[0]}
  behind = {f'after {token}': row for token, row in enumerate(rows[1:])}
  return {'at first': rows[0]} | behind


def describe(rule: Rule, fault: Fault) -> dict[str, Any]:
  """Returns an example in numbers.

  They say what is drafted, what the rule does with it, and which texts come of
  it beside those that should.
  """
  example = fault.example
  found = evaluate(rule, [example] * 2)
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
  whole = found.text[0], found.wanted[0]
  begun = [x.reshape(example.vocab, -1).sum(1) for x in whole]
  first = not off.any() or not np.allclose(*begun, rtol=0, atol=TOLERANCE)
  length = 1 if first else example.shape.depth + 1
  got, wanted = begun if first else whole
  texts = exact.Texts(example.vocab, length)
  begin = int(texts.offset[length])
  names = [text_in_words(texts.tokens(begin + i)) for i in range(len(got))]
  shown = range(len(got)) if first else np.flatnonzero(off)
  scale = '' if example.temperature == 1 else f'{example.temperature:g} '
  return {
    'draft': example.shape.name,
    'chosen': example.shape.chosen,
    'vocabulary': example.vocab,
    'p': _told(example.p),
    'q': _told(example.q),
    'logits': f'{scale}log p',
    'drafts': rows[:_DRAFTS],
    'drafts_left_out': max(len(rows) - _DRAFTS, 0),
    'what': fault.what,
    'expected': {names[i]: in_words(wanted[i]) for i in shown},
    'obtained': {names[i]: in_words(got[i]) for i in shown},
    'total_variation': in_words(found.distance[0]),
  }
