"""The shape of a draft, from the options of a `load` function."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax import trees
from specjax.arguments import check_number, check_numbers, check_target
from specjax.drafters.shapes import chain, dynamic_tree, static_tree
from specjax.drafters.shapes.policies import Policy
from specjax.drafters.shapes.step_model import Walker
from specjax.types import Drafter, LoadedDrafter, Target


@dataclasses.dataclass(frozen=True)
class Shape:
  """Options that every walker takes; without any it drafts a chain of K.

  Attributes:
    policy: how long a chain is, see `policies`.
    widths: of a static tree, children of a node of depth 0, 1, ...; one each
      beyond these.
    parents: of a static tree, its rows instead; nodes deeper than K are cut.
    replacement: siblings of a static tree are independent draws. `widths` of
      (k,) then makes k independent chains.
    hub: of two siblings of a static tree one is the likeliest token.
    beam: of a dynamic tree, nodes expanded at every level.
    nodes: of a dynamic tree, nodes kept.
  """

  policy: Policy | None = None
  widths: tuple[int, ...] = ()
  parents: tuple[int, ...] = ()
  replacement: bool = False
  hub: bool = False
  beam: int = 0
  nodes: int = 0

  def __post_init__(self):
    if self.policy is not None and not isinstance(self.policy, Policy):
      raise ValueError(
        'policy must be one of specjax.drafters.shapes.policies, such as '
        f'policies.confidence(0.4), got {self.policy!r}'
      )
    given = [
      name
      for name in ('policy', 'widths', 'parents', 'beam')
      if getattr(self, name)
    ]
    if len(given) > 1:
      raise ValueError(f'a draft has one shape: choose one of {given}')
    check_numbers('widths', self.widths, 1)
    check_numbers('parents', self.parents, 0)
    check_number('beam', self.beam, 0)
    check_number('nodes', self.nodes, 0)
    for name in ('replacement', 'hub'):
      if getattr(self, name) and not (self.widths or self.parents):
        raise ValueError(f'{name} is of static trees: give widths or parents')
    if bool(self.nodes) != bool(self.beam):
      raise ValueError(
        'beam and nodes are of a dynamic tree, which needs both, got '
        f'{self.beam} and {self.nodes}'
      )


def check(target: Any, options: Mapping[str, Any]) -> None:
  """Refuses what a loader cannot work with, before it reads anything.

  Raises:
    ValueError: the target is none, or an option is unknown or impossible.
  """
  check_target(target)
  read(options)


def read(options: Mapping[str, Any]) -> Shape:
  """The shape that options name.

  Raises:
    ValueError: one is unknown or impossible.
  """
  known = [field.name for field in dataclasses.fields(Shape)]
  for name in options:
    if name not in known:
      raise ValueError(
        f'{name!r} is no option of this drafter; those of its shape are '
        f'{", ".join(known)}'
      )
  return Shape(**options)


def cut(parents: tuple[int, ...], depth: int) -> tuple[int, ...]:
  """The tree without what is deeper."""
  level = [0]
  for parent in parents:
    level.append(level[parent] + 1)
  # Nodes come level by level, so that the rest keep their rows.
  return tuple(
    p for p, at in zip(parents, level[1:], strict=True) if at <= depth
  )


def build(walker: Walker, depth: int, options: Mapping[str, Any]) -> Drafter:
  """The drafter of a walker, K = depth.

  Args:
    walker: what goes from token to token.
    depth: K.
    options: of `Shape`, by name.

  Raises:
    ValueError: as `read` and the shape itself.
  """
  shape = read(options)
  check_number('depth', depth, 1)
  if shape.beam:
    return dynamic_tree.make(walker, depth, shape.beam, shape.nodes)
  if shape.widths:
    widths = (*shape.widths, *[1] * depth)[:depth]
    parents = trees.branching(widths)
  elif shape.parents:
    static_tree.levels_of(tuple(shape.parents))  # Refuses what is no tree.
    parents = cut(tuple(shape.parents), depth)
  else:
    return chain.make(walker, depth, shape.policy)
  return static_tree.make(walker, parents, shape.replacement, shape.hub)


def load(
  target: Target,
  walker: Walker,
  options: Mapping[str, Any],
  params: Any,
  pairing: str = '',
) -> LoadedDrafter:
  """The drafters of a walker, of every depth.

  Args:
    target: what is drafted for.
    walker: what goes from token to token.
    options: of `Shape`, by name.
    params: of the drafters.
    pairing: as of `types.LoadedDrafter`.
  """
  return LoadedDrafter(
    target.model,
    lambda depth: build(walker, depth, options),
    params,
    pairing=pairing,
  )
