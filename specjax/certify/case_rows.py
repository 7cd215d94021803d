"""The rows of a case: its enumerated texts, and its loop beside them."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.bench.config import Certificate
from specjax.certify import exact
from specjax.certify.rule_cases import MODELS, Case, Kind
from specjax.checkpoints import precision
from specjax.reports.certify import EXACT
from specjax.stats import fit_tests
from specjax.types import Rule, Spec

Row = dict[str, Any]


def row_of(part: str, **row) -> Row:
  return {'program': 'certify', 'part': part, **row}


def names_of(case: Case) -> dict[str, str]:
  return {'rule': case.rule, 'drafter': case.kind.name}


def room(joint: np.ndarray) -> np.ndarray:
  """With one more column, for more calls than there may be."""
  return np.pad(joint, ((0, 0), (0, 1)))


def boosted(rule: Rule, factor: float) -> Rule:
  """A rule that accepts too readily; the power of a test is stated for it."""

  def accept(draft, scores):
    return jnp.minimum(factor * rule.accept(draft, scores), 1)

  return rule._replace(accept=accept)


class CaseRows:
  """What is computed once for several rows, and the rows of cases.

  Args:
    x: the settings.
    cases: all that are certified: their tests share one false-alarm rate.
  """

  def __init__(self, x: Certificate, cases: list[Case]):
    self.x = x
    self.cases = cases
    self.models = {name: make() for name, make in MODELS.items()}
    if x.dtype != precision.AUTO:
      cast = {name: tiny.cast(x.dtype) for name, tiny in self.models.items()}
      self.models = cast
    # Each loop is tested in every setting, and in all of them together.
    tests = sum(len(self.models[c.model].settings) + 1 for c in cases)
    self.level = x.level / max(tests, 1)
    self._distributions: dict[Case, dict[str, np.ndarray]] = {}
    self._sources: dict[tuple[Kind, str], exact.DraftSource] = {}

  def source(self, case: Case) -> exact.DraftSource:
    """All drafts of a case: what they compile serves every rule."""
    key = case.kind, case.model
    if key not in self._sources:
      self._sources[key] = case.kind.source(self.models[case.model])
    return self._sources[key]

  def distribution(self, case: Case) -> dict[str, np.ndarray]:
    """Exact distribution [texts, calls] of a case, by setting."""
    if case not in self._distributions:
      tiny, source = self.models[case.model], self.source(case)
      with jax.enable_x64(True):
        self._distributions[case] = {
          s: tiny.speculative(case.verify, source, s) for s in tiny.settings
        }
    return self._distributions[case]

  def enumerate(self, case: Case) -> Iterator[Row]:
    """Part 1: error of the distribution of texts, and the expected calls."""
    tiny = self.models[case.model]
    for setting, joint in self.distribution(case).items():
      text, calls = joint.sum(1), joint.sum(0)
      yield row_of(
        'distribution',
        **names_of(case),
        model=case.model,
        setting=setting,
        lossless=case.verify.lossless,
        max_error=float(np.abs(text - tiny.plain[setting]).max()),
        total_variation=exact.total_variation(text, tiny.plain[setting]),
        calls=float(calls @ np.arange(len(calls))),
      )

  def run(self, case: Case) -> Iterator[Row]:
    """Part 2: the compiled loop beside that distribution, and the power."""
    tiny = self.models[case.model]
    spec = Spec(tiny.target, case.kind.drafter(tiny), case.verify, tiny.eos)
    seen = tiny.sample(spec, self.x.rows, self.x.rounds, self.x.seed)
    source = self.source(case)
    eager = boosted(case.verify, self.x.boost)
    fits, pairs = [], []
    for setting, joint in self.distribution(case).items():
      with jax.enable_x64(True):
        pairs.append((joint, tiny.speculative(eager, source, setting)))
      fits.append(fit_tests.fit(seen[setting], room(joint)))
      yield self.fit(case, setting, seen[setting].sum(), fits[-1:], pairs[-1:])
    each = sum(x.sum() for x in seen.values()) // len(seen)
    yield self.fit(case, 'all', each, fits, pairs)

  def fit(self, case: Case, setting: str, samples, fits, pairs) -> Row:
    """A row for one setting, or for all of them together."""
    fit = fit_tests.together(fits)
    apart = [p for p in pairs if exact.total_variation(*p) > EXACT]
    return row_of(
      'loop',
      **names_of(case),
      model=case.model,
      setting=setting,
      samples=int(samples),
      p_value=fit.p_value,
      freedom=fit.freedom,
      level=self.level,
      power=fit_tests.power(int(samples), apart, self.level) if apart else None,
    )
