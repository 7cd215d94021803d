"""Proves or refutes that the output has the target's distribution.

  specjax certify

Five parts: the distribution of whole texts by enumeration, for every rule; the
compiled float32 loop beside that distribution; tokens per step; planted bugs,
each of which one of the tests must find; and what low precision does to each
rule. The exit status is 1 when anything that should hold does not.

  specjax certify \\
    --rule=my_rules.eager

certifies one rule alone; --drafter=my_drafter.load and
--policy=my_policies.patient likewise a load function of drafters and a
policy. The verdict comes with the smallest counterexample that was found, and
the exit status is 1 unless it is `exact`.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from specjax.bench import measure, results
from specjax.bench.config import Certificate
from specjax.bench.loading.checks import (
  check_dtype,
  need,
  need_least,
  need_seed,
)
from specjax.certify import exact, on_trial, tokens_per_step
from specjax.certify.case_rows import CaseRows, Row, names_of, room, row_of
from specjax.certify.drafter_memory import WRONG_MEMORIES, WrongMemory, gap
from specjax.certify.rule_cases import CASES, CHAIN, Case
from specjax.certify.wrong_loops import WRONG_LOOPS, WrongLoop
from specjax.certify.wrong_rules import WRONG_RULES, WrongRule
from specjax.cli import command
from specjax.reports import certify as certify_report
from specjax.reports import certify_one
from specjax.reports.certify import EXACT
from specjax.stats import fit_tests
from specjax.types import Spec

DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def check(x: Certificate) -> None:
  """Refuses settings that make no sense.

  Raises:
    UserError: names the field and the remedy.
  """
  need_least(x, 1, 'rows', 'rounds')
  check_dtype('dtype', x.dtype)
  need(0 < x.level < 0.1, f'level must be in (0, 0.1), got {x.level}')
  need(1 < x.boost < np.inf, f'boost must be above 1, got {x.boost}')
  need_seed(x.seed)


class Certifier(CaseRows):
  """One certificate in one process."""

  def __init__(self, x: Certificate):
    check(x)
    super().__init__(x, [c for c in CASES if c.quick or not x.quick])
    self.folder = results.Folder(
      x.results or results.default_folder(x), results.settings_of(x)
    )
    self.wrong_loops = [m for m in WRONG_LOOPS if m.quick or not x.quick]

  def expect(self) -> None:
    """Part 3: tokens per step."""
    with jax.enable_x64(True):
      for row in tokens_per_step.published():
        self.folder.add(row_of('published', **row))
      pairs, depth = (20, 3) if self.x.quick else (50, 4)
      for row in tokens_per_step.block_against_token(pairs, depth):
        self.folder.add(row_of('block', **row))

  def mutate(self, bar) -> None:
    """Part 4: planted bugs, and the test that finds each."""
    for work, bugs in (
      (self.error, WRONG_RULES),
      (self.misfit, self.wrong_loops),
      (self.forgotten, WRONG_MEMORIES),
    ):
      self.add(work, bugs, bar)

  def error(self, bug: WrongRule) -> Iterator[Row]:
    """Of the distribution of texts, in the worst of some settings."""
    tiny = self.models['table']
    source, errors = bug.source(tiny), {}
    for s in ('T 1', 'T 1.5, top-k 2', 'penalties'):
      with jax.enable_x64(True):
        text = tiny.speculative(bug.rule, source, s).sum(1)
      errors[s] = np.abs(text - tiny.plain[s]).max()
    setting = max(errors, key=lambda s: errors[s])
    yield _bug(bug, 'distribution', setting, errors[setting], EXACT)

  def forgotten(self, bug: WrongMemory) -> Iterator[Row]:
    """How far a memory is from one that is made anew."""
    tiny = self.models['transformer']
    right, wrong = (gap(tiny, make(tiny)) for make in (bug.right, bug.wrong))
    yield _bug(bug, 'memory', '', wrong, max(1e-4, 10 * right))

  def misfit(self, bug: WrongLoop) -> Iterator[Row]:
    """The worst setting, minus log10 of its p-value, and of the level."""
    tiny = self.models[bug.case.model]
    drafter = (bug.drafter or bug.case.kind.drafter)(tiny)
    spec = Spec(tiny.target, drafter, bug.case.verify, tiny.eos)
    # Planted bugs are coarse: a part of the texts shows them.
    rounds = -(-self.x.rounds // 4)
    seen = tiny.sample(spec, self.x.rows, rounds, self.x.seed, bug.parts)
    p_values = {
      s: fit_tests.fit(seen[s], room(joint)).p_value
      for s, joint in self.distribution(bug.case).items()
    }
    setting = min(p_values, key=lambda s: p_values[s])
    evidence = -np.log10(max(p_values[setting], 1e-300))
    yield _bug(bug, 'loop', setting, evidence, -np.log10(self.level))

  def round(self, case: Case) -> Iterator[Row]:
    """Part 5: p, q and the rule in low precision."""
    tiny = self.models[case.model]
    source, setting = self.source(case), 'T 1'
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
        **names_of(case),
        dtype=jnp.dtype(dtype).name,
        total_variation=exact.total_variation(text, same),
        of_plain=exact.total_variation(same, tiny.plain[setting]),
      )

  def add(self, work: Callable[[Any], Iterator[Row]], items, bar) -> None:
    """Adds the rows of each item, in their order."""
    made = measure.side_by_side(lambda item: list(work(item)), items)
    for item, rows in zip(items, made, strict=True):
      if isinstance(item, Case):
        bar.set_description(f'{item.rule}, {item.kind.name}'[:30])
      for row in rows:
        self.folder.add(row)
      bar.update()

  def certify(self) -> None:
    """Everything that is not done yet; prints and writes the summary."""
    begin = time.monotonic()
    done = self.folder.rows and self.folder.rows[-1]['part'] == 'end'
    if not done:
      self.folder.clear()
      exact_tables = [
        c
        for c in self.cases
        if c.verify.lossless and c.model == 'table'
        if not self.x.quick or c.kind is CHAIN
      ]
      rows = [c for c in CASES if not (c.full and self.x.quick)]
      stages = [(self.enumerate, rows), (self.run, self.cases)]
      stages += [(self.round, exact_tables)]
      bugs = WRONG_RULES, self.wrong_loops, WRONG_MEMORIES
      total = sum(len(cases) for _, cases in stages) + 1 + sum(map(len, bugs))
      with tqdm(total=total, mininterval=1) as bar:
        for work, cases in stages:
          self.add(work, cases, bar)
        self.expect()
        bar.update()
        bar.set_description('planted bugs')
        self.mutate(bar)
      seconds = time.monotonic() - begin
      conditions = results.conditions()
      self.folder.add(
        row_of('end', seconds=seconds, boost=self.x.boost, **conditions)
      )
    text = certify_report.summary(self.folder.rows)
    self.folder.write('summary.md', text)
    print(text)


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


def try_one(x: Certificate) -> None:
  """Certifies one rule, drafter or policy; its code may have changed."""
  begin = time.monotonic()
  trial = on_trial.find(x)
  folder = results.Folder(
    x.results or results.default_folder(x), results.settings_of(x)
  )
  folder.clear()
  verdict = trial.run(folder.add)
  end = row_of(
    'verdict',
    kind=trial.kind,
    name=trial.name,
    exact=verdict.exact,
    verdict=verdict.text,
    counterexample=verdict.counterexample,
    notes=verdict.notes,
    seconds=time.monotonic() - begin,
    **results.conditions(),
  )
  folder.add(results.plain(end))
  text = certify_one.page(folder.rows)
  folder.write('summary.md', text)
  print(text)
  said = certify_one.last_line(folder.rows)
  print(json.dumps({'results': str(folder.path), **said}))
  if not verdict.exact:
    raise SystemExit(1)


def main(x: Certificate) -> None:
  if x.quick:
    x.rounds = min(x.rounds, 64)
  check(x)
  if on_trial.given(x):
    return try_one(x)
  certifier = Certifier(x)
  certifier.certify()
  verdict = certify_report.verdict(certifier.folder.rows)
  print(json.dumps({'results': str(certifier.folder.path), **verdict}))
  if verdict['failures']:
    raise SystemExit(1)


def start() -> None:
  command.run(main, Certificate)
