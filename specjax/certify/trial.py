"""One thing on trial: a rule, a drafter, a policy or a foreign sampler.

A policy sees no token before that token is kept, so no policy can bias a text.
What it can break is the contract, and the laws of the drafter that asks it.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.bench.config import Candidate, Certificate
from specjax.bench.load import load_drafter
from specjax.bench.methods import make_drafter
from specjax.bench.plan import plan_drafter
from specjax.certify import cases, foreign, tiny_models
from specjax.certify.drafter_trial import try_drafter
from specjax.certify.foreign_trial import try_foreign
from specjax.certify.laws import Row, Verdict, outline, running
from specjax.certify.rule_trial import try_rule
from specjax.certify.tiny_models import TinyModels
from specjax.cli import names
from specjax.drafters import lm
from specjax.drafters.shapes.policies import Last, Policy
from specjax.errors import need
from specjax.types import Drafter, Params, Target

_FIELDS = {
  'rule': names.RULE,
  'drafter': names.LOAD,
  'policy': names.POLICY,
  'foreign': None,  # It has no short names.
}
_DEPTH = 3  # drafted tokens


def _start(who: str, policy: Policy) -> Any:
  with running(who, 'start'):
    memory = jax.tree.map(jnp.asarray, policy.start())
  for leaf in jax.tree.leaves(memory):
    need(
      leaf.shape == (),
      f'{who}: start must give scalars, one row has one memory, got '
      f'{leaf.dtype}{list(leaf.shape)}',
    )
  return memory


def _check(who: str, policy: Policy) -> None:
  """Checks the types and shapes of a policy; nothing is computed."""
  memory = _start(who, policy)
  number, chance = jnp.int32(1), jnp.float32(0.5)
  with running(who, 'goes_on'):
    reach = jax.eval_shape(lambda *a: policy.chance(*a), number, chance, chance)
    need(
      reach.shape == (),
      f'{who}: chance must give one number, got {list(reach.shape)}',
    )
    last = Last(number, chance, chance, chance)
    goes = jax.eval_shape(lambda *a: policy.goes_on(*a), memory, last)
  shape, kind = getattr(goes, 'shape', None), getattr(goes, 'dtype', None)
  need(
    shape == () and kind == jnp.bool_,
    f'{who}: goes_on must give one bool, got {kind}{list(shape or ())}',
  )
  with running(who, 'learn'):
    after = jax.eval_shape(lambda *a: policy.learn(*a), memory, number, number)
  old, new = map(outline, (memory, after))
  need(
    old == new,
    f'{who}: learn must give a memory as start does, {_words(old[1])}, got '
    f'{_words(new[1])}',
  )


def _words(leaves: list) -> str:
  return ', '.join(f'{d}{list(s)}' for s, d in leaves) or 'nothing'


def _check_numbers(who: str, policy: Policy) -> None:
  """Checks the memories that any two verdicts lead to."""
  learn, start = jax.jit(policy.learn), _start(who, policy)
  verdicts = [(d, a) for d in range(1, _DEPTH + 1) for a in range(d + 1)]
  for path in itertools.product(verdicts, repeat=2):
    memory = start
    for drafted, accepted in path:
      with running(who, 'learn'):
        memory = learn(memory, jnp.int32(drafted), jnp.int32(accepted))
      for leaf in jax.tree.leaves(memory):
        need(
          np.isfinite(leaf).all(),
          f'{who}: learn gives {leaf} where {accepted} of {drafted} drafted '
          'tokens were accepted',
        )


def _try_policy(
  x: Certificate, name: str, policy: Policy, add: Callable[[Row], None]
) -> Verdict:
  """Tries a policy in a chain of the tiny draft model, as a drafter."""
  who = f'policy: {name}'
  _check(who, policy)
  _check_numbers(who, policy)
  tiny = cases.models('transformer')
  return try_drafter(x, who, tiny, lm.make(tiny.draft, _DEPTH, policy), add)


class Trial(NamedTuple):
  kind: str  # the field that names the thing
  name: str  # its full name
  run: Callable[[Callable[[Row], None]], Verdict]  # takes what takes rows


def given(x: Certificate) -> str:
  """Returns the field that names one thing; '' for the whole certificate.

  Raises:
    UserError: several fields do, or one stands beside a field of the whole.
  """
  fields = [name for name in _FIELDS if getattr(x, name)]
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


def load(name: str) -> tuple[Drafter, TinyModels]:
  """Loads a drafter for the tiny target.

  Returns:
    The drafter, and the tiny models with its parameters.
  """
  who = f'drafter: {name}'
  function, _, path = name.partition(':')
  with running(who, 'its module'):
    planned = plan_drafter(
      'drafter', Candidate(function, _DEPTH, path), 'drafter', 'drafter'
    )
  tiny = cases.models('transformer')
  # With a tokenizer a draft that has another is tried as it will be used.
  target = Target(
    tiny.target,
    tiny.params.target,
    tokenizer=tiny_models.tokenizer(),
    eos=tiny.eos,
  )
  with running(who, 'it'):
    loaded = load_drafter(planned, target)
    drafter = make_drafter(planned, loaded, _DEPTH)
  need(
    drafter.depth >= 1,
    f'{who}: make({_DEPTH}) has depth {drafter.depth}: it drafts nothing',
  )
  params = Params(tiny.params.target, loaded.params)
  return drafter, dataclasses.replace(tiny, params=params)


def find(x: Certificate) -> Trial:
  """Finds what is on trial, and runs nothing of it.

  Raises:
    UserError: there is no such thing, or it cannot be loaded.
  """
  kind = given(x)
  if kind == 'foreign':
    sampler = foreign.Foreign(x.foreign, foreign.load(x.foreign))
    return Trial(kind, x.foreign, lambda add: try_foreign(x, sampler, add))
  name = _FIELDS[kind].full(getattr(x, kind))
  if kind == 'drafter':
    drafter, tiny = load(name)
    return Trial(
      kind,
      name,
      lambda add: try_drafter(x, f'drafter: {name}', tiny, drafter, add),
    )
  with running(f'{kind}: {name}', 'its module'):
    made = names.resolve_made(kind, name, _FIELDS[kind])
  work = try_rule if kind == 'rule' else _try_policy
  return Trial(kind, name, lambda add: work(x, name, made, add))
