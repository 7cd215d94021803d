"""The type that each model of an experiment is read and computed in."""

import sys
from collections.abc import Mapping

import jax

from specjax.bench.loading.plan import Plan, PlannedDrafter
from specjax.checkpoints import Description, precision
from specjax.cli import hosts
from specjax.errors import UserError


def of_target(plan: Plan, described: Mapping[str, Description]) -> str:
  """The target's type, once its file was looked at."""
  return precision.resolve(plan.dtype, described['target'].dtype)


def of_draft(
  planned: PlannedDrafter, described: Mapping[str, Description], target: str
) -> str:
  """That of a draft.

  Args:
    planned: the draft.
    described: the models, by name.
    target: type of what it drafts for, which it has where it names no other.
  """
  asked = planned.options.get('dtype') or target
  own = described.get(f'draft {planned.name}')
  return precision.resolve(asked, own.dtype if own else target)


def all_of(plan: Plan, described: Mapping[str, Description]) -> dict[str, str]:
  """The types of all models that are described, by the same names."""
  found = {'target': of_target(plan, described)}

  def follow(planned: PlannedDrafter, target: str) -> None:
    dtype = of_draft(planned, described, target)
    if f'draft {planned.name}' in described:
      found[f'draft {planned.name}'] = dtype
    for value in planned.options.values():
      if isinstance(value, PlannedDrafter):
        follow(value, dtype)

  for planned in plan.drafters.values():
    follow(planned, found['target'])
  return found


def check_device(plan: Plan, described: Mapping[str, Description]) -> None:
  """Refuses types that the device does not compute in.

  One line says so where it does, and slowly.

  Raises:
    UserError: names the field.
  """
  narrow = []
  for who, name in all_of(plan, described).items():
    field = 'dtype' if who == 'target' else f'dtype of the {who}'
    if reason := precision.refusal(name):
      raise UserError(f'{field} is {name}: {reason}')
    if name in precision.NARROW:
      narrow.append(name)
  if narrow and jax.default_backend() == 'cpu' and hosts.leads():
    print(
      f'dtype: a CPU computes {" and ".join(dict.fromkeys(narrow))} as '
      'float32, with copies of the weights: more memory than float32 takes, '
      'and no less time; this shows what such a model says, not how fast it is',
      file=sys.stderr,
    )
