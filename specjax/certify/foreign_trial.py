"""The trial of a foreign sampler: its law by its coins, and by simulation.

A step that the target goes on from must give every text the target's
probability, whatever p and q are. All drafts of some pairs of p and q are
judged at every setting. The law of a draft's outcome is found from the
function's own thresholds (`cells`), and random steps are run beside it: each
must end as its cell says, and all together have the target's distribution.
"""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from specjax.bench.config import Certificate
from specjax.certify import cells, exact, small_steps
from specjax.certify.cells import Cell
from specjax.certify.foreign import Foreign, Refused, Values
from specjax.certify.laws import Verdict, row_of, text_in_words
from specjax.certify.small_steps import Table
from specjax.errors import need
from specjax.stats import fit_tests

TOLERANCE = 1e-5  # of a total variation, for samplers of float32
_SURE = 0.999  # power of the simulation that confirms a counterexample
_AGREES = 1e-6  # least p-value of steps for the law that was enumerated
_SEEN = 0.99  # power for which a least total variation is stated
_ROWS = 4094  # of a call, and two beside them
_COARSE, _SHARP = 32, 256  # points that a cell is tried at
_STEPS = 2**17  # of a confirmation, at most
_CLEAR = 0.02  # total variation of a counterexample, where there is one

Setting = tuple[float, int, float]  # temperature, top_k, top_p

SETTINGS: dict[str, tuple[Setting, ...]] = {
  'T 1': ((1.0, 0, 1.0),),
  'T 0': ((0.0, 0, 1.0),),
  'T 0.7': ((0.7, 0, 1.0),),
  'T 2': ((2.0, 0, 1.0),),
  'top-k 2': ((1.0, 2, 1.0),),
  'top-p 0.7': ((1.0, 0, 0.7),),
  'T 2, top-p 0.7': ((2.0, 0, 0.7),),
  'T 0.7, top-k 2, top-p 0.7': ((0.7, 2, 0.7),),
  'mixed batch': (
    (0.0, 0, 1.0),
    (1.0, 0, 1.0),
    (0.7, 2, 1.0),
    (2.0, 0, 0.7),
  ),
}
_BESIDE = (0.0, 0, 1.0), (2.0, 0, 1.0)  # always in a mixed batch

# The weights of the first token, then those after each token. Logits are their
# logarithms. No two of a row are equal: what a tie gives is nobody's law.
_P: dict[int, tuple[Table, ...]] = {
  2: (((1, 2), (3, 1), (1, 3)), ((5, 1), (1, 2), (4, 1))),
  3: (
    ((1, 2, 3), (3, 1, 2), (2, 1, 4), (1, 3, 2)),
    ((1, 2, 9), (9, 2, 1), (1, 3, 2), (2, 9, 1)),
  ),
}
_Q: dict[int, dict[str, Table]] = {
  2: {
    'even': ((1, 1),) * 3,
    'other': ((3, 1), (1, 4), (2, 1)),
    'a point mass': ((1, 0), (0, 1), (1, 0)),
  },
  3: {
    'even': ((1, 1, 1),) * 4,
    'other': ((3, 2, 1), (1, 1, 2), (1, 4, 1), (1, 1, 3)),
    # Block verification has two tokens left behind a rejection here.
    'near': ((2, 2, 3), (1, 0, 5), (0, 1, 5), (5, 1, 0)),
    'with zeros': ((1, 0, 1), (0, 2, 1), (1, 1, 0), (0, 1, 1)),
    'a point mass': ((0, 1, 0), (1, 0, 0), (0, 0, 1), (0, 1, 0)),
  },
}
_SAME, _NONE = 'p itself', 'none: a chosen draft'
# (K, V): pairs that are tried, as a table of p and a kind of q.
_PAIRS = {
  (1, 2): [(t, q) for t in (0, 1) for q in (*_Q[2], _SAME, _NONE)],
  (1, 3): [(t, q) for t in (0, 1) for q in (*_Q[3], _SAME, _NONE)],
  (2, 3): [
    (0, 'near'),
    (0, 'other'),
    (1, 'with zeros'),
    (1, _SAME),
    (0, _NONE),
  ],
  (3, 2): [(0, 'other'), (1, _NONE), (0, _SAME)],
  (4, 2): [(0, 'other'), (1, 'a point mass'), (0, _NONE)],
}
_QUICK = (1, 2), (1, 3), (2, 3)


@dataclasses.dataclass(frozen=True)
class Example:
  """A pair of p and q, at a setting."""

  gamma: int
  p: Table
  kind: str  # of q
  name: str  # of the setting
  setting: Setting

  @property
  def vocab(self) -> int:
    return len(self.p[0])

  @property
  def mixed(self) -> bool:
    return len(SETTINGS[self.name]) > 1

  @property
  def simple(self) -> tuple:
    """The order of examples, those that are read most easily first."""
    q = [*_Q[self.vocab], _SAME, _NONE]
    place = list(SETTINGS).index(self.name), q.index(self.kind)
    return self.gamma, self.vocab, place, sum(map(sum, self.p))


def examples(name: str, gamma: int, vocab: int) -> list[Example]:
  """The examples of a setting."""
  each = SETTINGS[name]
  pairs = _PAIRS[gamma, vocab]
  return [
    Example(gamma, _P[vocab][table], kind, name, each[i % len(each)])
    for i, (table, kind) in enumerate(pairs)
  ]


def _values(settings) -> Values:
  temperature, top_k, top_p = np.transpose(settings)
  return {
    'temperature': np.array(temperature, np.float32),
    'top_k': np.array(top_k, np.int64),
    'top_p': np.array(top_p, np.float32),
  }


class Drafts(NamedTuple):
  """All drafts of an example, M of them, and what a sampler is given."""

  example: Example
  texts: exact.Texts
  p: np.ndarray  # [V+1, V] of the target, after each token
  weight: np.ndarray  # [M]
  tokens: np.ndarray  # [M, K]
  q: np.ndarray | None  # [M, K, V]
  logits: np.ndarray  # [M, K+1, V]

  @property
  def after(self) -> np.ndarray:
    """p [texts, V] after every text."""
    number = range(len(self.texts))
    last = [(self.texts.tokens(i) or (-1,))[-1] + 1 for i in number]
    return self.p[last]

  def onwards(self, chance: np.ndarray) -> np.ndarray:
    """Chances of whole texts where the target goes on from chances [texts]."""
    return small_steps.onwards(
      chance[None], self.after[None], self.texts, self.texts.longest
    )[0]

  @property
  def wanted(self) -> np.ndarray:
    """The target's chances of whole texts."""
    return self.onwards(np.eye(len(self.texts))[0])


def drafts_of(foreign: Foreign, example: Example) -> Drafts:
  """Makes all drafts of an example."""
  gamma, vocab = example.gamma, example.vocab
  logits = np.log(np.array(example.p, np.float64)).astype(np.float32)
  p = foreign.plain(logits, _values([example.setting] * (vocab + 1)))
  tokens = np.array(list(itertools.product(range(vocab), repeat=gamma)))
  before = np.pad(tokens + 1, ((0, 0), (1, 0)))
  if example.kind == _NONE:
    two = [-1, len(tokens) // 3]
    tokens, before = tokens[two], before[two]
    weight, q = np.array([0.5, 0.5]), None
  else:
    table = p if example.kind == _SAME else _Q[vocab][example.kind]
    q = np.array(table, float)
    q = (q / q.sum(1, keepdims=True)).astype(np.float32)
    chosen = q.astype(float)[before[:, :-1], tokens]
    weight, q = chosen.prod(1), q[before[:, :-1]]
    made = weight > 0
    tokens, before, q = tokens[made], before[made], q[made]
    weight = weight[made] / weight.sum()
  texts = exact.Texts(vocab, gamma + 1)
  return Drafts(example, texts, p, weight, tokens, q, logits[before])


def _numbers(texts: exact.Texts, tokens: np.ndarray) -> np.ndarray:
  """Numbers of the texts of tokens [B, K+1], -1 behind their ends."""
  number = np.zeros(len(tokens), int)
  for column in tokens.T:
    number = np.where(column < 0, number, texts.after(number, column))
  return number


class Group:
  """Examples that share the shapes of a call, and whether q is given."""

  def __init__(self, foreign: Foreign, members: list[Drafts]):
    first = members[0]
    self.foreign, self.members = foreign, members
    self.kind = 'a chosen draft' if first.q is None else 'a draft from q'
    self.texts, self.mixed = first.texts, first.example.mixed
    self.coins = foreign.coins(first.example.gamma, first.example.vocab)
    sizes = [len(x.weight) for x in members]
    self.member = np.repeat(np.arange(len(sizes)), sizes)  # of each draft
    self.draft = np.concatenate([np.arange(n) for n in sizes])
    self.begin = np.cumsum([0, *sizes])
    settings = [members[i].example.setting for i in self.member]
    self.settings = np.array([*settings, *_BESIDE])
    self.arrays = [
      np.concatenate([getattr(x, name) for x in members])
      for name in ('tokens', 'logits', *['q'] * (first.q is not None))
    ]

  def call(self, member, draft, coins: np.ndarray) -> np.ndarray:
    """Texts [k] that steps of some drafts [k] of some members [k] end with."""
    at = self.begin[member] + draft
    places = range(_ROWS, len(at), _ROWS)
    parts = zip(np.split(at, places), np.split(coins, places), strict=True)
    return np.concatenate([self._once(*part) for part in parts])

  def _once(self, at: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """Texts [k] of one call, with the drafts at some places [k] of arrays."""
    setting = at
    if self.mixed:  # A greedy row before them, and a hot one behind.
      ends = np.r_[0, np.arange(len(at)), 0]
      at, coins = at[ends], coins[ends]
      setting = np.r_[-2, setting, -1]
    tokens, logits, *q = (x[at] for x in self.arrays)
    values = _values(self.settings[setting])
    made = self.foreign(tokens, q[0] if q else None, logits, values, coins)
    return _numbers(self.texts, made[1:-1] if self.mixed else made)


@dataclasses.dataclass
class Result:
  """An example's drafts, its law as far as it was found, and simulations."""

  drafts: Drafts
  group: Group
  member: int
  found: list[list[Cell]] | None  # by draft; None: simulated alone
  sharp: bool = False  # whether thin cells were looked for
  counts: np.ndarray | None = None  # of whole texts
  strays: int = 0  # steps that did not end as their cell says
  checked: int = 0  # steps that were compared with a cell

  @property
  def example(self) -> Example:
    return self.drafts.example

  def sharpen(self, random: np.random.Generator) -> None:
    """Finds the law again, with thin cells."""
    chosen = np.full(len(self.drafts.weight), self.member)
    found = _cells(self.group, chosen, np.arange(len(chosen)), random, _SHARP)
    self.found = None if any(x is None for x in found) else found
    self.sharp = True

  @property
  def step(self) -> np.ndarray:
    """Chances [M, texts] of the text behind a step, for each draft."""
    assert self.found is not None
    size = len(self.drafts.texts)
    return np.stack([cells.law(x, size) for x in self.found])

  @property
  def law(self) -> np.ndarray | None:
    """Chances of whole texts; None where the law was not found."""
    if self.found is None:
      return None
    return self.drafts.onwards(self.drafts.weight @ self.step)

  @property
  def far(self) -> float:
    """Total variation from the target; 0 where the law was not found."""
    if self.law is None:
      return 0.0
    return exact.total_variation(self.law, self.drafts.wanted)

  def simulate(self, steps: int, random: np.random.Generator) -> None:
    """Runs steps with random coins; the target goes on from them."""
    drafts, texts = self.drafts, self.drafts.texts
    draft = random.choice(len(drafts.weight), steps, p=drafts.weight)
    coins = random.random((steps, self.group.coins.width))
    number = self.group.call(np.full(steps, self.member), draft, coins)
    self.strays = self.checked = 0
    for one, made in enumerate(self.found or ()):
      at = draft == one
      expected = cells.predict(self.group.coins, made, coins[at])
      self.checked += int((expected >= 0).sum())
      self.strays += int(((expected >= 0) & (expected != number[at])).sum())
    after = drafts.after
    for _ in range(texts.longest):
      short = texts.length(number) < texts.longest
      ends = after[np.minimum(number, len(texts) - 1)].cumsum(1)
      token = (random.random((steps, 1)) > ends[:, :-1]).sum(1)
      number = np.where(short, texts.after(number * short, token), number)
    begin = int(texts.offset[texts.longest])
    self.counts = np.bincount(number - begin, minlength=len(drafts.wanted))

  def fit(self, law: np.ndarray | None = None) -> fit_tests.Fit:
    """Tests the steps for a law of whole texts, by default the target's."""
    probs = self.drafts.wanted if law is None else law
    return fit_tests.fit(self.counts, probs)


def _check_rows(group: Group, random: np.random.Generator) -> str:
  """Says how a row hangs on more than its own arguments; '' if it does not.

  Raises:
    UserError: the sampler draws coins of its own.
  """
  member, draft = np.tile(group.member, 4), np.tile(group.draft, 4)
  coins = random.random((len(member), group.coins.width))
  seen = group.call(member, draft, coins)
  if group.foreign.own_coins:
    return ''
  need(
    (seen == group.call(member, draft, coins)).all(),
    f'{group.foreign.who}: two calls with the same uniforms give other tokens, '
    'so it draws coins of its own: let it use `uniforms`, or give it the '
    'attribute coins = None to be judged by simulation alone',
  )
  order = random.permutation(len(member))
  turned = group.call(member[order], draft[order], coins[order])
  alone = group.call(member[:1], draft[:1], coins[:1])
  if (turned != seen[order]).any() or alone[0] != seen[0]:
    return 'a row gives other tokens beside other rows'
  return ''


def _cells(group: Group, member, draft, random, tries: int) -> list:
  """The cells of some drafts [M] of members [M]; None of those without."""
  return cells.run(
    [cells.find(group.coins, random, tries) for _ in member],
    lambda task, coins: group.call(member[task], draft[task], coins),
  )


def _enumerate(group: Group, random: np.random.Generator) -> list[Result]:
  """Finds the law of every example of a group, where it has cells."""
  made: list = [None] * len(group.member)
  if not group.foreign.own_coins:
    made = _cells(group, group.member, group.draft, random, _COARSE)
  results = []
  for i, one in enumerate(group.members):
    mine = made[group.begin[i] : group.begin[i + 1]]
    found = None if any(x is None for x in mine) else mine
    results.append(Result(one, group, i, found))
  return results


def _settle(results: list[Result], random) -> None:
  """Looks for thin cells until the worst law of all is one that had it done."""
  while True:
    worst = max(results, key=lambda r: r.far)
    if worst.far <= TOLERANCE or worst.sharp:
      return
    worst.sharpen(random)


def _groups(foreign: Foreign, name: str, quick: bool) -> list[Group]:
  groups = []
  for gamma, vocab in _QUICK if quick else _PAIRS:
    made = [drafts_of(foreign, x) for x in examples(name, gamma, vocab)]
    for chosen in (False, True):
      members = [x for x in made if (x.q is None) == chosen]
      groups.append(Group(foreign, members))
  return groups


def least_seen(steps: int, freedom: int, level: float) -> float:
  """The least total variation that a test of some steps sees at power 0.99.

  A total variation d moves the statistic by 4 steps d**2 at least.
  """
  bound = stats.chi2.isf(level, freedom)
  moved = optimize.brentq(
    lambda x: stats.ncx2.sf(bound, freedom, x) - _SEEN, 0.0, 1e6
  )
  return float(np.sqrt(moved / 4 / steps))


def _row(name: str, results: list[Result], level: float) -> dict:
  fit = fit_tests.together(r.fit() for r in results)
  steps = sum(int(r.counts.sum()) for r in results)
  known = [r for r in results if r.found is not None]
  return row_of(
    'foreign',
    setting=name,
    pairs=len(results),
    enumerated=len(known),
    drafts=sum(len(r.drafts.weight) for r in results),
    worst=max((r.far for r in known), default=None),
    steps=steps,
    checked=sum(r.checked for r in results),
    strays=sum(r.strays for r in results),
    p_value=fit.p_value,
    level=level,
    least_seen=least_seen(steps, fit.freedom, level) if fit.freedom else 0.0,
  )


# A number as a simple fraction, if cuts of cells leave it one.
_words = functools.partial(small_steps.in_words, most=100, within=2e-7)


def describe(result: Result) -> dict[str, Any]:
  """Returns an example in numbers that a person can check."""
  drafts, example = result.drafts, result.example
  law = result.law
  if law is None:
    law = result.counts / result.counts.sum()
  texts, wanted = drafts.texts, drafts.wanted
  vocab = example.vocab
  first = [x.reshape(vocab, -1).sum(1) for x in (law, wanted)]
  whole = np.abs(first[0] - first[1]).max() <= TOLERANCE
  got, want = (law, wanted) if whole else first
  begin = int(texts.offset[texts.longest if whole else 1])
  names = [text_in_words(texts.tokens(begin + i)) for i in range(len(got))]
  temperature, top_k, top_p = example.setting
  after = ['at first', *(f'after {x}' for x in range(vocab))]

  def rows(table):
    shown = {
      n: [_words(x) for x in t] for n, t in zip(after, table, strict=True)
    }
    return shown if example.gamma > 1 else {after[0]: shown[after[0]]}

  outputs = {}
  if result.found is not None:
    for i, tokens in enumerate(drafts.tokens):
      ends = {
        text_in_words(texts.tokens(int(n))): _words(result.step[i, n])
        for n in np.flatnonzero(result.step[i] > TOLERANCE)
      }
      drafted = f'{text_in_words(tokens)} (chance {_words(drafts.weight[i])})'
      outputs[drafted] = ends
  q = drafts.p if example.kind == _SAME else _Q[vocab].get(example.kind)
  q = None if q is None else np.array(q, float)
  shown = range(len(got))
  if whole:
    shown = np.argsort(-np.abs(got - want))[:4]
  return {
    'vocabulary': vocab,
    'gamma': example.gamma,
    'temperature': temperature,
    'top_k': top_k or 'off',
    'top_p': 'off' if top_p == 1 else top_p,
    **({'beside': 'rows of temperature 0 and 2'} if example.mixed else {}),
    'logits, log of': {
      n: list(map(str, t)) for n, t in zip(after, example.p, strict=True)
    },
    'p': rows(drafts.p),
    'q': example.kind if q is None else rows(q / q.sum(1, keepdims=True)),
    'outputs by draft': dict(list(outputs.items())[:12]),
    'what': 'the first token' if not whole else f'{example.gamma + 1} tokens',
    'how': 'simulated' if result.law is None else 'enumerated',
    'expected': {names[i]: _words(want[i]) for i in shown},
    'obtained': {names[i]: _words(got[i]) for i in shown},
    'total_variation': _words(exact.total_variation(law, wanted)),
  }


def _confirm(result: Result, x: Certificate, random, verdict: Verdict) -> None:
  """Convicts where random steps agree that the law is not the target's."""
  drafts, law = result.drafts, result.law
  level = x.level
  steps = 2**12
  other = result.counts / result.counts.sum() if law is None else law
  pair = [(drafts.wanted, other)]
  while steps < _STEPS and fit_tests.power(steps, pair, level) < _SURE:
    steps *= 2
  far = exact.total_variation(other, drafts.wanted)
  power = fit_tests.power(steps, pair, level)
  result.simulate(steps, random)
  against = result.fit().p_value
  agrees = law is None or result.fit(law).p_value >= _AGREES
  place = f'{result.example.name}, gamma {result.example.gamma}'
  said = f'total variation {far:.3g} at {place}'
  test = (
    f'{steps} random steps at the counterexample have p = {against:.1g} for '
    f"the target's law (power {power:.3f} at level {level:g})"
  )
  if against < level and agrees:
    verdict.lossy(said)
  else:
    verdict.text = 'undecided'
    verdict.why = f'{said}, which {test} do not confirm'
  verdict.notes.append(f'{test[0].upper()}{test[1:]}.')
  if law is not None:
    chance = result.fit(law).p_value
    verdict.notes.append(
      f'The same steps have p = {chance:.2g} for the law that was enumerated.'
    )
  verdict.counterexample = describe(result)


def try_foreign(x: Certificate, foreign: Foreign, add) -> Verdict:
  """Judges a sampler at every setting.

  Args:
    x: the settings; `rows` times `rounds` random steps are run at each.
    foreign: the sampler.
    add: takes every row as soon as it is made.

  Raises:
    UserError: the sampler does not keep the contract of `foreign`.
  """
  random, verdict = np.random.default_rng(x.seed), Verdict()
  level = x.level / len(SETTINGS)
  results: list[Result] = []
  alarms: list[str] = []
  refused: dict[str, list[str]] = {}
  for name in SETTINGS:
    made: list[Result] = []
    for group in _groups(foreign, name, x.quick):
      try:
        why = _check_rows(group, random)
      except Refused as error:
        refused.setdefault(str(error), []).append(f'{name} ({group.kind})')
        continue
      if why:
        verdict.text, verdict.why = 'undecided', f'{why} ({name})'
        return verdict
      made += _enumerate(group, random)
    if not made:
      continue
    _settle(made, random)
    share = max(2 * x.rows * x.rounds // len(made), 64)
    for one in made:
      # What is simulated alone gets the steps of an enumeration, too.
      steps = share * (8 if one.found is None else 1)
      one.simulate(steps, random)
      if one.strays and not one.sharp:
        one.sharpen(random)
        one.simulate(steps, random)
    _settle(made, random)
    row = _row(name, made, level)
    add(row)
    alarms += [name] * (row['p_value'] < level)
    results += made
  for why, places in refused.items():
    each = '; '.join(dict.fromkeys(places))
    verdict.notes.append(f'Refused, and not judged: {each}: {why}.')
  need(results, f'{foreign.who}: it refuses every setting')
  return _judge(x, results, alarms, random, verdict)


def _counterexample(results: list[Result], random) -> Result | None:
  """The simplest example whose law is clearly off, if any is."""
  while True:
    clear = min(_CLEAR, max(r.far for r in results))
    off = [r for r in results if r.far >= clear > TOLERANCE]
    first = min(off, key=lambda r: r.example.simple, default=None)
    if first is None or first.sharp:
      return first
    first.sharpen(random)


def _judge(x, results, alarms, random, verdict: Verdict) -> Verdict:
  strays, checked = (
    sum(getattr(r, name) for r in results) for name in ('strays', 'checked')
  )
  simulated = [r for r in results if r.found is None]
  if checked:
    verdict.notes.append(
      f'{checked - strays} of {checked} random steps ended as enumerated, so '
      f'with 99% confidence outcomes that were missed have less than '
      f'{stats.beta.ppf(0.99, strays + 1, checked - strays):.1g} of the '
      'probability.'
    )
  if worst := _counterexample(results, random):
    _confirm(worst, x, random, verdict)
  elif alarms:
    known = [r for r in results if r.example.name in alarms]
    worst = min(known, key=lambda r: r.fit().p_value)
    if worst.found is None:
      worst.simulate(int(4 * worst.counts.sum()), random)
      _confirm(worst, x, random, verdict)
    else:
      verdict.text = 'undecided'
      verdict.why = f'enumeration and simulation disagree at {alarms[0]}'
  elif strays:
    verdict.text = 'undecided'
    verdict.why = f'{strays} random steps did not end as enumerated'
  elif simulated:
    verdict.text = 'not refuted'
    verdict.notes.append(
      f'{len(simulated)} of {len(results)} pairs of p and q were simulated '
      'alone: the table says which total variation would have been seen.'
    )
  return verdict
