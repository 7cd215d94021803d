"""The rows of the certificate, part by part."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import verify
from specjax.bench import measure
from specjax.bench.config import Certificate
from specjax.certify import exact, planted
from specjax.certify.cases import CASES, CHAIN, Case, models
from specjax.certify.drafter_trial import memory_gap
from specjax.certify.laws import Row, row_of
from specjax.certify.planted import WrongLoop, WrongMemory, WrongRule
from specjax.checkpoints import precision
from specjax.cli import progress
from specjax.reports.certify import EXACT
from specjax.stats import fit_tests
from specjax.types import Spec

DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def _names(case: Case) -> dict[str, str]:
  return {'rule': case.rule, 'drafter': case.kind.name}


def _room(joint: np.ndarray) -> np.ndarray:
  """Adds a column, for more calls than there may be."""
  return np.pad(joint, ((0, 0), (0, 1)))


class Cases:
  """The rows of cases, and what is computed once for several rows.

  Args:
    x: the settings.
    cases: all cases whose loops are tested. They share one false-alarm rate.
  """

  def __init__(self, x: Certificate, cases: list[Case]):
    self.x = x
    self.cases = cases
    self.models = models
    if x.dtype != precision.AUTO:
      self.models = functools.cache(lambda name: models(name).cast(x.dtype))
    # Each loop is tested in every setting, and in all of them together.
    tests = sum(len(self.models(c.model).settings) + 1 for c in cases)
    self.level = x.level / max(tests, 1)
    # What the drafts of a kind compile serves every rule.
    self.source = functools.cache(
      lambda kind, model: kind.source(self.models(model))
    )
    self.distribution = functools.cache(self._distribution)

  def _distribution(self, case: Case) -> dict[str, np.ndarray]:
    """The exact distribution [texts, calls] of a case, by setting."""
    tiny, source = self.models(case.model), self.source(case.kind, case.model)
    with jax.enable_x64(True):
      return {
        s: tiny.speculative(case.verify, source, s) for s in tiny.settings
      }

  def enumerate(self, case: Case) -> Iterator[Row]:
    """Multiplies a rule out: errors of whole texts, and expected calls."""
    tiny = self.models(case.model)
    for setting, joint in self.distribution(case).items():
      text, calls = joint.sum(1), joint.sum(0)
      yield row_of(
        'distribution',
        **_names(case),
        model=case.model,
        setting=setting,
        lossless=case.verify.lossless,
        max_error=float(np.abs(text - tiny.plain[setting]).max()),
        total_variation=exact.total_variation(text, tiny.plain[setting]),
        calls=float(calls @ np.arange(len(calls))),
      )

  def run(self, case: Case) -> Iterator[Row]:
    """Tests the texts and calls of the compiled loop; states the power."""
    tiny = self.models(case.model)
    spec = Spec(tiny.target, case.kind.drafter(tiny), case.verify, tiny.eos)
    seen = tiny.sample(spec, self.x.rows, self.x.rounds, self.x.seed)
    source = self.source(case.kind, case.model)
    eager = planted.eager(case.verify, self.x.boost)
    fits, pairs = [], []
    for setting, joint in self.distribution(case).items():
      with jax.enable_x64(True):
        pairs.append((joint, tiny.speculative(eager, source, setting)))
      fits.append(fit_tests.fit(seen[setting], _room(joint)))
      yield self._fit(case, setting, seen[setting].sum(), fits[-1:], pairs[-1:])
    each = sum(x.sum() for x in seen.values()) // len(seen)
    yield self._fit(case, 'all', each, fits, pairs)

  def _fit(self, case: Case, setting: str, samples, fits, pairs) -> Row:
    """A row for one setting, or for all of them together."""
    fit = fit_tests.together(fits)
    apart = [p for p in pairs if exact.total_variation(*p) > EXACT]
    return row_of(
      'loop',
      **_names(case),
      model=case.model,
      setting=setting,
      samples=int(samples),
      p_value=fit.p_value,
      freedom=fit.freedom,
      level=self.level,
      power=fit_tests.power(int(samples), apart, self.level) if apart else None,
    )

  def low_precision(self, case: Case) -> Iterator[Row]:
    """Multiplies a rule out with p and q in low precision."""
    tiny = self.models(case.model)
    source, setting = self.source(case.kind, case.model), 'T 1'
    for dtype in DTYPES:
      with jax.enable_x64(True):
        p, q = (
          exact.Distributions(x.probs.astype(dtype), x.logits.astype(dtype))
          for x in (tiny.p[setting], tiny.q[setting])
        )
        step = exact.step(case.verify, source, tiny.texts, p, q, tiny.contexts)
        same = tiny.sequence(exact.plain(tiny.texts, p, tiny.contexts)).sum(1)
        text = tiny.sequence(step).sum(1)
      yield row_of(
        'arithmetic',
        **_names(case),
        dtype=jnp.dtype(dtype).name,
        total_variation=exact.total_variation(text, same),
        of_plain=exact.total_variation(same, tiny.plain[setting]),
      )

  # Planted bugs, and the test that finds each

  def plant_rule(self, bug: WrongRule) -> Iterator[Row]:
    """Enumerates a wrong rule, in the worst of some settings."""
    tiny = self.models('table')
    source, errors = bug.source(tiny), {}
    for s in ('T 1', 'T 1.5, top-k 2', 'penalties'):
      with jax.enable_x64(True):
        text = tiny.speculative(bug.rule, source, s).sum(1)
      errors[s] = np.abs(text - tiny.plain[s]).max()
    setting = max(errors, key=lambda s: errors[s])
    yield _bug(bug, 'distribution', setting, errors[setting], EXACT)

  def plant_memory(self, bug: WrongMemory) -> Iterator[Row]:
    """Compares a memory with one that is made anew."""
    tiny = self.models('transformer')
    right, wrong = (memory_gap(tiny, f(tiny)) for f in (bug.right, bug.wrong))
    yield _bug(bug, 'memory', '', wrong, max(1e-4, 10 * right))

  def plant_loop(self, bug: WrongLoop) -> Iterator[Row]:
    """Tests a wrong loop, in the worst setting.

    Evidence is minus log10 of the p-value, and the bound that of the level.
    """
    tiny = self.models(bug.case.model)
    drafter = (bug.drafter or bug.case.kind.drafter)(tiny)
    spec = Spec(tiny.target, drafter, bug.case.verify, tiny.eos)
    # Planted bugs are coarse: a part of the texts shows them.
    rounds = -(-self.x.rounds // 4)
    seen = tiny.sample(spec, self.x.rows, rounds, self.x.seed, bug.parts)
    p_values = {
      s: fit_tests.fit(seen[s], _room(joint)).p_value
      for s, joint in self.distribution(bug.case).items()
    }
    setting = min(p_values, key=lambda s: p_values[s])
    evidence = -np.log10(max(p_values[setting], 1e-300))
    yield _bug(bug, 'loop', setting, evidence, -np.log10(self.level))


def _bug(bug, test: str, setting: str, evidence, bound) -> Row:
  return row_of(
    'mutant',
    mutant=bug.name,
    test=test,
    setting=setting,
    evidence=float(evidence),
    bound=float(bound),
    caught=bool(evidence > bound),
  )


# Tokens per step


def _random(random, texts: exact.Texts, greedy: bool) -> exact.Distributions:
  probs = random.dirichlet(np.full(texts.vocab, 0.7), len(texts))
  if greedy:
    probs = np.eye(texts.vocab)[probs.argmax(1)]
  with np.errstate(divide='ignore'):
    return exact.Distributions(probs, np.log(probs), float(not greedy))


def published() -> list[Row]:
  """Toy examples of the papers, in tokens accepted by a step."""
  two = exact.Texts(2, 3)
  p, q, certain, even = (
    exact.constant(probs, two)
    for probs in ([1 / 3, 2 / 3], [2 / 3, 1 / 3], [1, 0], [0.5, 0.5])
  )
  sun = 'Sun et al., arXiv:2403.10444, gamma 2'
  chen = 'Chen et al., arXiv:2402.12374, 2 children'
  pair, once = exact.tree((0, 0), True), exact.tree((0, 0))
  cases = (
    ('token', sun, verify.token, exact.tree((0, 1)), p, q, 10 / 9),
    ('block', sun, verify.block, exact.tree((0, 1)), p, q, 11 / 9),
    ('with replacement', chen, verify.recursive, pair, certain, even, 0.75),
    ('without replacement', chen, verify.recursive, once, certain, even, 1.0),
  )
  return [
    row_of(
      'published',
      rule=name,
      source=source,
      accepted=exact.efficiency(rule, drafts, two, p, q) - 1,
      published=value,
    )
    for name, source, rule, drafts, p, q, value in cases
  ]


def block_against_token(pairs: int, depth: int) -> list[Row]:
  """Least and mean of block's tau minus token's, over random p and q."""
  rows = []
  for greedy in (False, True):
    random = np.random.default_rng(0)
    for gamma in range(1, depth + 1):
      texts = exact.Texts(3, gamma + 1)
      drafts = exact.tree(tuple(range(gamma)))
      gains = []
      for _ in range(pairs):
        p, q = (_random(random, texts, greedy) for _ in range(2))
        token, block = (
          exact.efficiency(rule, drafts, texts, p, q)
          for rule in (verify.token, verify.block)
        )
        gains.append(block - token)
      rows.append(
        row_of(
          'block',
          temperature=float(not greedy),
          gamma=gamma,
          pairs=pairs,
          least=min(gains),
          mean=float(np.mean(gains)),
        )
      )
  return rows


def parts(
  x: Certificate, rows: Cases
) -> Iterator[tuple[str, Callable[[Any], Iterable[Row]], list]]:
  """The parts of the certificate: a title, work, and what it is done to.

  The distribution of whole texts by enumeration, the compiled loop beside it,
  what low precision does to each rule, tokens per step, and planted bugs.
  """
  yield 'texts', rows.enumerate, [c for c in CASES if not (c.full and x.quick)]
  yield 'loops', rows.run, rows.cases
  tables = [c for c in rows.cases if c.verify.lossless and c.model == 'table']
  tables = [c for c in tables if not x.quick or c.kind is CHAIN]
  yield 'precision', rows.low_precision, tables
  pairs, depth = (20, 3) if x.quick else (50, 4)
  steps = [published, lambda: block_against_token(pairs, depth)]
  yield 'tokens per step', _in_float64, steps
  loops = [bug for bug in planted.WRONG_LOOPS if bug.quick or not x.quick]
  yield 'planted bugs in rules', rows.plant_rule, list(planted.WRONG_RULES)
  yield 'planted bugs in loops', rows.plant_loop, loops
  yield (
    'planted bugs in memories',
    rows.plant_memory,
    list(planted.WRONG_MEMORIES),
  )


def _in_float64(make: Callable[[], list[Row]]) -> list[Row]:
  with jax.enable_x64(True):
    return make()


def make(x: Certificate, add: Callable[[Row], None]) -> None:
  """Makes all rows of the certificate.

  Args:
    x: the settings.
    add: takes every row, in its order.
  """
  rows = Cases(x, [c for c in CASES if c.quick or not x.quick])
  for title, work, items in parts(x, rows):
    jax.clear_caches()  # A process can map so many programs and no more.
    made = measure.side_by_side(lambda item, work=work: list(work(item)), items)
    with progress.phase(title, len(items)) as phase:
      for each in made:
        for row in each:
          add(row)
        phase.advance()
