"""The trial of one rule: small steps first, then whole texts and the loop."""

import functools
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax.bench.config import Certificate
from specjax.certify import counterexamples, one_step, rule_cases
from specjax.certify.case_rows import CaseRows, Row, boosted, row_of
from specjax.certify.one_step import SHAPES, Example, Fault, Shape
from specjax.certify.rule_cases import Case, Kind
from specjax.certify.verdicts import (
  Refusing,
  Verdict,
  failed,
  law_row,
  need_seen,
  planted_row,
)
from specjax.errors import UserError, need
from specjax.types import Draft, Rule, Scores

_KINDS = (
  rule_cases.CHAIN,
  rule_cases.TREE_WITH,
  rule_cases.STOPPED,
  rule_cases.LOOKUP,
  rule_cases.TREE,
  rule_cases.CHAINS,
  rule_cases.LOOKUPS,
)
_QUICK = 2  # of these, and of those that a rule takes
_CHOOSING = (rule_cases.LOOKUP, rule_cases.LOOKUPS)
# A step that no rule has trouble with: of two tokens the draft prefers one.
_EASY = Example(SHAPES[0], ((1, 1),) * 3, ((1, 2),) * 3)


def _traced(rule: Rule, shape: Shape) -> tuple[jax.ShapeDtypeStruct, ...]:
  """What `accept` and `rest` return for a draft of a shape."""
  nodes, vocab = len(shape.parents), 3
  rows = jnp.zeros((nodes + 1, vocab))
  probs = None if shape.chosen else rows[1:]
  parents = jnp.asarray(shape.parents, jnp.int32)
  draft = Draft(parents, parents, jnp.int32(nodes), probs)
  # Functions of their own: a trace that was kept would say nothing.
  return (
    jax.eval_shape(lambda *x: rule.accept(*x), draft, Scores(rows, rows)),
    jax.eval_shape(
      lambda *x: rule.rest(*x), draft, Scores(rows, rows), jnp.int32(0)
    ),
  )


def taken(who: str, rule: Rule, notes: list[str]) -> list[Shape]:
  """The shapes of drafts that a rule takes; it is checked on each.

  Args:
    who: the field and the name of the rule.
    rule: of which nothing is computed.
    notes: says of which drafts the rule is not certified.

  Raises:
    UserError: it returns other shapes than it must, or raises.
  """
  shapes = []
  for shape in SHAPES:
    with Refusing(who, 'refuses'):
      if rule.refuses(shape.drafter):
        continue
    try:
      accept, rest = _traced(rule, shape)
    except Exception as error:
      if shape.chosen and shapes:
        notes.append(
          f'It is not certified for {shape.name}, whose probs are None: it '
          f'raised {failed(error)}.'
        )
        continue
      raise UserError(
        f'{who}: for {shape.name} it raised {failed(error)}'
      ) from error
    for name, found, wanted in (
      ('accept', accept, (len(shape.parents),)),
      ('rest', rest, (3,)),
    ):
      shaped = getattr(found, 'shape', None) == wanted
      need(
        shaped and jnp.issubdtype(found.dtype, jnp.floating),
        f'{who}: {name} must give floats{list(wanted)} for {shape.name} of 3 '
        f'tokens, got {_outline(found)}; see specjax.types.Rule',
      )
    shapes.append(shape)
  need(shapes, f'{who}: it refuses chains and trees, so it judges nothing')
  return shapes


def _outline(value) -> str:
  if hasattr(value, 'dtype'):
    return f'{value.dtype}{list(value.shape)}'
  return type(value).__name__


def check_easy(who: str, rule: Rule, shapes: list[Shape]) -> None:
  """Refuses a rule that gives no numbers at all.

  Raises:
    UserError: it is NaN where p and q are nowhere 0.
  """
  example = Example(shapes[0], _EASY.p, _EASY.q)
  with Refusing(who, 'a step'):
    found = one_step.examine(rule, [example])
  for fault in found:
    need(
      'NaN' not in fault.what,
      f'{who}: {fault.what} for {fault.example.shape.name}, p = (1/2, 1/2) and '
      'q = (1/3, 2/3)',
    )


def steps(rule: Rule, shapes: list[Shape]) -> Iterator[tuple[Row, list[Fault]]]:
  """Every small step, a row for each shape and vocabulary."""
  for shape in shapes:
    for vocab in (2, 3):
      examples = one_step.grid(shape, vocab)
      found = one_step.examine(rule, examples)
      worst = max((f.distance for f in found), default=0.0)
      row = row_of(
        'step',
        draft=shape.name,
        vocabulary=vocab,
        examples=len(examples),
        faults=len(found),
        worst=float(worst) if np.isfinite(worst) else None,
      )
      yield row, found


def smallest(
  rule: Rule, found: list[Fault], shapes: list[Shape], examples: int
) -> Fault | None:
  """The smallest fault: of those known, and of a search.

  Args:
    rule: that is searched.
    found: of the grid.
    shapes: that the rule takes.
    examples: searched where the grid has no fault.
  """
  wrong = list(dict.fromkeys(f.example.shape for f in found))
  more = counterexamples.search(
    rule, wrong[:1] or shapes, 200 if found else examples
  )
  known = [*found, more] if more else found
  found = sorted(known, key=lambda fault: fault.example.simple)
  simpler = [counterexamples.simplify(rule, fault) for fault in found[:8]]
  return min(simpler, key=lambda fault: fault.example.simple, default=None)


def cases_of(name: str, rule: Rule, quick: bool, chosen: bool) -> list[Case]:
  """Drafters of the certificate that a rule takes."""
  tiny = rule_cases.MODELS['table']()
  kinds: list[Kind] = [
    kind
    for kind in _KINDS
    if not rule.refuses(kind.drafter(tiny))
    and (chosen or kind not in _CHOOSING)
  ]
  return [Case(name, rule, kind) for kind in kinds[: _QUICK if quick else None]]


def _rest_of_p(rule: Rule) -> Rule:
  def rest(draft, scores, row):
    del draft  # Unused.
    return scores.probs[row]

  return rule._replace(rest=rest)


def _accepts_all(rule: Rule) -> Rule:
  def accept(draft, scores):
    return jnp.ones_like(rule.accept(draft, scores))

  return rule._replace(accept=accept)


def _one_row_off(rule: Rule) -> Rule:
  def rest(draft, scores, row):
    return rule.rest(draft, scores, jnp.maximum(row - 1, 0))

  return rule._replace(rest=rest)


def _bonus_is_likeliest(rule: Rule) -> Rule:
  def rest(draft, scores, row):
    right = rule.rest(draft, scores, row)
    sure = (jnp.arange(right.shape[-1]) == right.argmax()).astype(right.dtype)
    return jnp.where(row < draft.size, right, sure)

  return rule._replace(rest=rest)


BUGS: dict[str, Callable[[Rule], Rule]] = {
  'a token is accepted a tenth too readily': functools.partial(
    boosted, factor=1.1
  ),
  'every token is accepted': _accepts_all,
  'after a rejection a token comes from p': _rest_of_p,
  'rest is that of the row above': _one_row_off,
  'the bonus token is the likeliest': _bonus_is_likeliest,
}


def planted(rule: Rule, shapes: list[Shape]) -> Iterator[Row]:
  """Whether bugs in this very rule are seen, where they change anything."""
  examples = [x for shape in shapes[:2] for x in one_step.grid(shape, 2)[::2]]
  groups = [[x for x in examples if x.shape is s] for s in shapes[:2]]
  for name, plant in BUGS.items():
    wrong = plant(rule)
    changes, found = False, []
    for group in groups:
      for one in (group[:16], group[16:32], group[32:48]):
        if len(one) == 16:
          before, after = (one_step.evaluate(r, one) for r in (rule, wrong))
          apart = np.abs(before.text - after.text)
          changes |= not (apart <= one_step.TOLERANCE).all()
          found += one_step.faults(one, after)
    worst = max((f.distance for f in found), default=0.0)
    detail = f'total variation {worst:.3g}' if found else ''
    yield planted_row(
      name, changes, bool(found), detail if changes else 'changes nothing here'
    )


def _off_text(rows: CaseRows, case: Case, setting: str) -> dict:
  """The texts whose probabilities are furthest off."""
  tiny = rows.models[case.model]
  text = rows.distribution(case)[setting].sum(1)
  wanted = tiny.plain[setting]
  worst = np.argsort(-np.abs(text - wanted))[:4]
  names = [
    counterexamples.text_in_words(tiny.texts.tokens(int(i))) for i in worst
  ]
  return {
    'draft': case.kind.name,
    'setting': setting,
    'what': 'probabilities of whole texts of the tiny models',
    'expected': dict(
      zip(names, (f'{wanted[i]:.6g}' for i in worst), strict=True)
    ),
    'obtained': dict(
      zip(names, (f'{text[i]:.6g}' for i in worst), strict=True)
    ),
  }


def _judge_texts(rows: CaseRows, made: list[Row], verdict: Verdict) -> None:
  """Whether whole texts have their distribution, enumerated and compiled."""
  off = [r for r in made if r['part'] == 'distribution']
  worst = max(off, key=lambda r: r['total_variation'])
  if worst['total_variation'] > one_step.TOLERANCE:
    verdict.lossy(
      worst['total_variation'],
      f'at these settings: {worst["drafter"]}, {worst["setting"]}',
    )
    case = next(c for c in rows.cases if c.kind.name == worst['drafter'])
    verdict.counterexample = _off_text(rows, case, worst['setting'])
    return
  for row in made:
    if row['part'] == 'loop' and row['p_value'] < row['level']:
      verdict.lossy(
        worst['total_variation'],
        'as its functions say, but its compiled loop has other texts '
        f'({row["drafter"]}, {row["setting"]}, p = {row["p_value"]:.1g})',
      )


def try_rule(
  x: Certificate, name: str, rule: Rule, add: Callable[[Row], None]
) -> Verdict:
  """The trial; hands over every row as soon as it is made.

  Args:
    x: the settings.
    name: of the rule, as the settings give it.
    rule: on trial.
    add: takes rows.

  Raises:
    UserError: it does not keep the contract of `types.Rule`.
  """
  who, verdict = f'rule: {name}', Verdict()
  shapes = taken(who, rule, verdict.notes)
  check_easy(who, rule, shapes)
  found: list[Fault] = []
  for row, faults in steps(rule, shapes):
    add(row)
    found += faults
  fault = smallest(rule, found, shapes, 200 if x.quick else 2000)
  laws = {f.law for f in [*found, *([fault] if fault else [])]}
  for law in (7, 8):
    add(law_row(law, law not in laws))
  chosen = any(shape.chosen for shape in shapes)
  rows = CaseRows(x, cases_of(name, rule, x.quick, chosen))
  made: list[Row] = []

  def work(parts: Iterable[Callable[[Case], Iterator[Row]]]) -> None:
    for part in parts:
      for case in rows.cases:
        for row in part(case):
          made.append(row)
          add(row)

  if fault and fault.law:
    verdict.breaks(fault.law, fault.what)
  else:
    with np.errstate(all='ignore'):
      work([rows.enumerate] if fault else [rows.enumerate, rows.run])
    _judge_texts(rows, made, verdict)
    if fault and verdict.exact:
      verdict.lossy(
        fault.distance, f'of a small step: {fault.example.shape.name}'
      )
  if fault:
    verdict.counterexample = counterexamples.describe(rule, fault)
  if verdict.exact:
    bugs = list(planted(rule, shapes))
    for row in bugs:
      add(row)
    need_seen(verdict, bugs)
  return verdict
