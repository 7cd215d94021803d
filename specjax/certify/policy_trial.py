"""The trial of one policy: what it remembers, and the lengths it chooses."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import verify
from specjax.bench.config import Certificate
from specjax.certify import exact, rule_cases
from specjax.certify.case_rows import Row, row_of
from specjax.certify.drafter_trial import try_drafter
from specjax.certify.verdicts import Refusing, Verdict
from specjax.drafters import lm
from specjax.drafters.shapes.policies import Policy
from specjax.errors import need

_DEPTH = 3
_SETTINGS = ('T 1', 'T 1.5, top-k 2', 'penalties')


def _start(who: str, policy: Policy) -> Any:
  """The first memory, as the loop has it."""
  with Refusing(who, 'start'):
    memory = jax.tree.map(jnp.asarray, policy.start())
  for leaf in jax.tree.leaves(memory):
    need(
      leaf.shape == (),
      f'{who}: start must give scalars, one row has one memory, got '
      f'{leaf.dtype}{list(leaf.shape)}',
    )
  return memory


def check(who: str, policy: Policy) -> None:
  """Checks the types and shapes of a policy; nothing is computed.

  Raises:
    UserError: it does not keep the contract of `policies.Policy`.
  """
  memory = _start(who, policy)
  number, chance = jnp.int32(1), jnp.float32(0.5)
  with Refusing(who, 'goes_on'):
    goes = jax.eval_shape(
      lambda *a: policy.goes_on(*a), memory, number, chance, chance
    )
  shape, kind = getattr(goes, 'shape', None), getattr(goes, 'dtype', None)
  need(
    shape == () and kind == jnp.bool_,
    f'{who}: goes_on must give one bool, got {kind}{list(shape or ())}',
  )
  with Refusing(who, 'learn'):
    after = jax.eval_shape(lambda *a: policy.learn(*a), memory, number, number)
  same = jax.tree.structure(after) == jax.tree.structure(memory)
  old, new = (
    [(x.shape, x.dtype) for x in jax.tree.leaves(m)] for m in (memory, after)
  )
  need(
    same and old == new,
    f'{who}: learn must give a memory as start does, {_words(old)}, got '
    f'{_words(new)}',
  )


def _words(leaves: list) -> str:
  return ', '.join(f'{d}{list(s)}' for s, d in leaves) or 'nothing'


def memories(who: str, policy: Policy, most: int) -> list[Any]:
  """Memories that verdicts may lead to, the first ones first.

  Raises:
    UserError: one is no number.
  """
  found = {(): _start(who, policy)}
  known, queue = {_key(found[()])}, [()]
  learn = jax.jit(policy.learn)
  while queue and len(found) < most:
    path = queue.pop(0)
    for drafted in range(1, _DEPTH + 1):
      for accepted in range(drafted + 1):
        with Refusing(who, 'learn'):
          after = learn(found[path], jnp.int32(drafted), jnp.int32(accepted))
        for leaf in jax.tree.leaves(after):
          need(
            np.isfinite(leaf).all(),
            f'{who}: learn gives {leaf} where {accepted} of {drafted} drafted '
            'tokens were accepted',
          )
        if _key(after) not in known and len(found) < most:
          known.add(_key(after))
          longer = (*path, (drafted, accepted))
          found[longer] = after
          queue.append(longer)
  return list(found.values())


def _key(memory: Any) -> tuple:
  return tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(memory))


def _size(policy: Policy, memory: Any):
  """Sizes [M] of drafts from the confidence [M, N] in their tokens."""

  @jax.jit
  def size(confidence):
    count = confidence.shape[0]
    reach = jnp.ones(count, confidence.dtype)
    going, drafted = jnp.ones(count, bool), jnp.zeros(count, jnp.int32)
    goes_on = jax.vmap(policy.goes_on, in_axes=(None, None, 0, 0))
    for i in range(_DEPTH):
      drafted += going
      reach *= confidence[:, i]
      going &= goes_on(memory, i + 1, confidence[:, i], reach)
    return drafted

  return lambda confidence: np.asarray(size(confidence))


def try_policy(
  x: Certificate, name: str, policy: Policy, add: Callable[[Row], None]
) -> Verdict:
  """The trial; hands over every row as soon as it is made.

  Whole texts are enumerated with every memory that a few verdicts lead to; then
  a chain with the policy is a drafter like any other.

  Args:
    x: the settings.
    name: of the policy, as the settings give it.
    policy: on trial.
    add: takes rows.

  Raises:
    UserError: it does not keep the contract of `policies.Policy`.
  """
  who = f'policy: {name}'
  check(who, policy)
  seen = memories(who, policy, 4 if x.quick else 16)
  tiny = rule_cases.MODELS['transformer']()
  chain = lm.make(tiny.draft, _DEPTH, policy)
  verdict = try_drafter(x, who, tiny, chain, add)
  table, worst = rule_cases.MODELS['table'](), ('', 0.0)
  rows = tuple(range(_DEPTH))
  for number, setting in itertools.product(range(len(seen)), _SETTINGS):
    source = exact.tree(rows, size=_size(policy, seen[number]))
    with jax.enable_x64(True):
      joint = table.speculative(verify.token, source, setting)
      plain = table.plain[setting]
    text, calls = joint.sum(1), joint.sum(0)
    far = exact.total_variation(text, plain)
    worst = max(worst, (setting, far), key=lambda one: one[1])
    add(
      row_of(
        'distribution',
        rule='token',
        drafter=f'memory {number + 1}',
        model='table',
        setting=setting,
        lossless=True,
        max_error=float(np.abs(text - plain).max()),
        total_variation=far,
        calls=float(calls @ np.arange(len(calls))),
      )
    )
  if verdict.exact and worst[1] > 1e-9:
    verdict.lossy(worst[1], f'at these settings: {worst[0]}')
  return verdict
