"""What was checked and read of a plan, before a layout is chosen."""

import dataclasses
from collections.abc import Mapping

from specjax.bench.loading import drafter_loading
from specjax.bench.loading.plan import Plan
from specjax.models.layouts import Arranged
from specjax.prompts import Chosen
from specjax.types import LoadedDrafter, Target


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Models with their weights, and the prompts.

  `drafts` are for the target with whole weights, which has none itself;
  `forms` are that target in every layout, with weights.
  """

  plan: Plan
  target: Target
  prompts: dict[str, Chosen]
  drafts: Mapping[str, LoadedDrafter]
  forms: Mapping[str, Arranged]
  # Drafts for the target in other layouts, by name and layout, read when asked.
  others: dict[tuple[str, str], LoadedDrafter] = dataclasses.field(
    default_factory=dict
  )
  # Only layouts over the cores, or only those on one device; None: any.
  over_cores: bool | None = None

  def gammas(self, name: str) -> tuple[int, ...]:
    """Draft lengths of a drafter, each depth once: a tree has its own."""
    planned, by_depth = self.plan.drafters[name], {}
    for gamma in planned.gammas:
      drafter = drafter_loading.make(planned, self.drafts[name], gamma)
      by_depth.setdefault(drafter.depth, gamma)
    return tuple(by_depth.values())
