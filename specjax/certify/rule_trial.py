"""The trial of one rule: small steps first, then whole texts and the loop."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax.bench.config import Certificate
from specjax.certify import cases, planted, small_steps
from specjax.certify.cases import Case
from specjax.certify.certificate import Cases
from specjax.certify.laws import (
  Row,
  Verdict,
  failed,
  law_row,
  planted_row,
  row_of,
  running,
  text_in_words,
)
from specjax.certify.small_steps import SHAPES, Example, Fault, Shape
from specjax.errors import UserError, need
from specjax.loop.scoring import kind_of
from specjax.types import Draft, Rule, Scores

_KINDS = (
  cases.CHAIN,
  cases.TREE_WITH,
  cases.STOPPED,
  cases.LOOKUP,
  cases.TREE,
  cases.CHAINS,
  cases.HUB,
  cases.LOOKUPS,
)
_QUICK = 2  # of these, and of those that a rule takes
_CHOOSING = (cases.LOOKUP, cases.LOOKUPS)


def _traced(rule: Rule, shape: Shape) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Traces `accept` and `rest` for a draft of a shape."""
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
  """Finds the shapes of drafts that a rule takes, and checks it on each.

  Args:
    who: the field and the name of the rule.
    rule: the rule, of which nothing is computed.
    notes: takes a line where the rule is not certified for some drafts.

  Raises:
    UserError: the rule returns other shapes than it must, or raises.
  """
  shapes = []
  for shape in SHAPES:
    with running(who, 'refuses'):
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
        f'tokens, got {kind_of(found)}; see specjax.types.Rule',
      )
    shapes.append(shape)
  need(shapes, f'{who}: it refuses chains and trees, so it judges nothing')
  return shapes


def _check_numbers(who: str, rule: Rule, shape: Shape) -> None:
  """Refuses a rule that is NaN where p and q are nowhere 0."""
  example = Example(shape, ((1, 1),) * 3, ((1, 2),) * 3)
  with running(who, 'a step'):
    found = list(small_steps.examine(rule, [example]))
  for fault in found:
    need(
      'NaN' not in fault.what,
      f'{who}: {fault.what} for {shape.name}, p = (1/2, 1/2) and '
      'q = (1/3, 2/3)',
    )


def steps(rule: Rule, shapes: list[Shape]) -> Iterator[tuple[Row, list[Fault]]]:
  """Evaluates every small step: a row and faults by shape and vocabulary."""
  for shape in shapes:
    for vocab in (2, 3):
      examples = small_steps.grid(shape, vocab)
      found = list(small_steps.examine(rule, examples))
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
  """Returns the smallest fault; searches examples where there is none yet."""
  known = sorted(found, key=lambda fault: fault.example.simple)[:4]
  if not known and (more := small_steps.search(rule, shapes, examples)):
    known = [more]
  simpler = [small_steps.simplify(rule, fault) for fault in known]
  return min(simpler, key=lambda fault: fault.example.simple, default=None)


def _cases(name: str, rule: Rule, quick: bool, chosen: bool) -> list[Case]:
  """The drafters of the certificate that a rule takes."""
  tiny = cases.models('table')
  kinds = [
    kind
    for kind in _KINDS
    if not rule.refuses(kind.drafter(tiny))
    and (chosen or kind not in _CHOOSING)
  ]
  return [Case(name, rule, kind) for kind in kinds[: _QUICK if quick else None]]


def _planted(rule: Rule, shapes: list[Shape]) -> Iterator[Row]:
  """Rows of bugs in this very rule."""
  groups = []
  for shape in shapes[:2]:
    group = small_steps.grid(shape, 2)[::2]
    groups += [group[:16], group[16:32], group[32:48]]
  for name, plant in planted.IN_RULES.items():
    wrong = plant(rule)
    changes, found = False, []
    for one in groups:
      if len(one) == 16:
        before, after = (small_steps.evaluate(r, one) for r in (rule, wrong))
        apart = np.abs(before.text - after.text)
        changes |= not (apart <= small_steps.TOLERANCE).all()
        found += small_steps.faults(one, after)
    worst = max((f.distance for f in found), default=0.0)
    detail = f'total variation {worst:.3g}' if found else ''
    yield planted_row(name, changes, bool(found), detail)


def _off_text(rows: Cases, case: Case, setting: str) -> dict:
  """Returns the texts whose probabilities are furthest off."""
  tiny = rows.models(case.model)
  text = rows.distribution(case)[setting].sum(1)
  wanted = tiny.plain[setting]
  worst = np.argsort(-np.abs(text - wanted))[:4]
  names = [text_in_words(tiny.texts.tokens(int(i))) for i in worst]
  return {
    'draft': case.kind.name,
    'setting': setting,
    'what': 'probabilities of whole texts of the tiny models',
    **{
      title: {n: f'{x[i]:.6g}' for n, i in zip(names, worst, strict=True)}
      for title, x in (('expected', wanted), ('obtained', text))
    },
  }


def _judge_texts(rows: Cases, made: list[Row], verdict: Verdict) -> None:
  """Judges whole texts, enumerated and of the compiled loop."""
  off = [r for r in made if r['part'] == 'distribution']
  worst = max(off, key=lambda r: r['total_variation'])
  if worst['total_variation'] > small_steps.TOLERANCE:
    verdict.lossy(
      f'total variation {worst["total_variation"]:.3g} at these settings: '
      f'{worst["drafter"]}, {worst["setting"]}'
    )
    case = next(c for c in rows.cases if c.kind.name == worst['drafter'])
    verdict.counterexample = _off_text(rows, case, worst['setting'])
    return
  for row in made:
    if row['part'] == 'loop' and row['p_value'] < row['level']:
      verdict.lossy(
        f'total variation {worst["total_variation"]:.3g} as its functions say, '
        'but its compiled loop has other texts '
        f'({row["drafter"]}, {row["setting"]}, p = {row["p_value"]:.1g})'
      )


def try_rule(
  x: Certificate, name: str, rule: Rule, add: Callable[[Row], None]
) -> Verdict:
  """Tries a rule.

  Args:
    x: the settings.
    name: the rule's name in the settings.
    rule: the rule.
    add: takes every row as soon as it is made.

  Raises:
    UserError: the rule does not keep the contract of `types.Rule`.
  """
  who, verdict = f'rule: {name}', Verdict()
  shapes = taken(who, rule, verdict.notes)
  _check_numbers(who, rule, shapes[0])
  found: list[Fault] = []
  for row, faults in steps(rule, shapes):
    add(row)
    found += faults
  harmful = [f for f in found if not f.harmless]
  tries = 200 if x.quick else 2000
  fault = smallest(rule, harmful or found, shapes, tries)
  keeps = fault is None or fault.harmless
  laws = {f.law for f in [*found, *([fault] if fault else [])]}
  for law in (7, 8):
    add(law_row(law, law not in laws))
  if fault and fault.law and not keeps:
    verdict.loses(fault.law, fault.what)
  else:
    chosen = any(shape.chosen for shape in shapes)
    rows = Cases(x, _cases(name, rule, x.quick, chosen))
    made: list[Row] = []
    with np.errstate(all='ignore'):
      for part in (rows.enumerate, rows.run)[: 2 if keeps else 1]:
        for case in rows.cases:
          for row in part(case):
            made.append(row)
            add(row)
    _judge_texts(rows, made, verdict)
    if fault and verdict.exact:
      if fault.harmless:
        verdict.breaks(fault.law, fault.what)
      else:
        verdict.lossy(
          f'total variation {fault.distance:.3g} of a small step: '
          f'{fault.example.shape.name}'
        )
  if fault:
    verdict.counterexample = small_steps.describe(rule, fault)
    if verdict.exact:
      verdict.notes.append(
        'No bug was planted, since the broken law would be found in any: '
        'nothing shows what the tests would see.'
      )
  elif verdict.exact:
    bugs = list(_planted(rule, shapes))
    for row in bugs:
      add(row)
    verdict.require_found(bugs)
  return verdict
