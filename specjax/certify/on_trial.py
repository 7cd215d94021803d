"""What settings put on trial alone: a rule, a drafter or a policy."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax.bench.config import Candidate, Certificate
from specjax.bench.load import load_drafter
from specjax.bench.methods import make_drafter
from specjax.bench.plan import plan_drafter
from specjax.certify import rule_cases, tiny_models
from specjax.certify.case_rows import Row
from specjax.certify.drafter_trial import try_drafter
from specjax.certify.policy_trial import try_policy
from specjax.certify.rule_trial import try_rule
from specjax.certify.verdicts import Refusing, Verdict
from specjax.cli import names
from specjax.errors import need
from specjax.types import Drafter, Params, Target

FIELDS = ('rule', 'drafter', 'policy')
_DEPTH = 3  # drafted tokens of a drafter on trial


class Trial(NamedTuple):
  """One thing on trial.

  Attributes:
    kind: the field that names it.
    name: as the field has it, in full.
    run: takes what takes rows.
  """

  kind: str
  name: str
  run: Callable[[Callable[[Row], None]], Verdict]


def given(x: Certificate) -> str:
  """The field that names one thing; '' for the whole certificate.

  Raises:
    UserError: several do, or one stands beside a field of the whole.
  """
  fields = [name for name in FIELDS if getattr(x, name)]
  if not fields:
    return ''
  need(
    len(fields) == 1,
    f'{" and ".join(fields)} are given together: one thing is certified at a '
    'time, leave one out',
  )
  for name in ('dtype', 'boost'):
    value, usual = getattr(x, name), getattr(Certificate(), name)
    need(
      value == usual,
      f'{fields[0]} is given, and {name}={value} is of the whole certificate: '
      'leave one of them out',
    )
  return fields[0]


def load(name: str) -> tuple[Drafter, Any]:
  """A drafter that was loaded for the tiny target, and its parameters."""
  who = f'drafter: {name}'
  function, _, path = name.partition(':')
  with Refusing(who, 'its module'):
    planned = plan_drafter(
      'drafter', Candidate(function, _DEPTH, path), 'drafter', 'drafter'
    )
  tiny = rule_cases.MODELS['transformer']()
  # With a tokenizer a draft that has another is tried as it will be used.
  target = Target(
    tiny.target,
    tiny.params.target,
    tokenizer=tiny_models.tokenizer(),
    eos=tiny.eos,
  )
  with Refusing(who, 'it'):
    loaded = load_drafter(planned, target)
    drafter = make_drafter(planned, loaded, _DEPTH)
  need(
    drafter.depth >= 1,
    f'{who}: make({_DEPTH}) has depth {drafter.depth}: it drafts nothing',
  )
  return drafter, loaded.params


def find(x: Certificate) -> Trial:
  """What is on trial; nothing of it has run yet.

  Raises:
    UserError: there is no such thing, or it cannot be loaded.
  """
  kind = given(x)
  table = {'rule': names.RULE, 'drafter': names.LOAD, 'policy': names.POLICY}
  name = table[kind].full(getattr(x, kind))
  if kind == 'drafter':
    drafter, own = load(name)
    tiny = rule_cases.MODELS['transformer']()
    tiny = dataclasses.replace(tiny, params=Params(tiny.params.target, own))
    return Trial(
      kind,
      name,
      lambda add: try_drafter(x, f'drafter: {name}', tiny, drafter, add),
    )
  with Refusing(f'{kind}: {name}', 'its module'):
    made = names.resolve_made(kind, name, table[kind])
  work = try_rule if kind == 'rule' else try_policy
  return Trial(kind, name, lambda add: work(x, name, made, add))
