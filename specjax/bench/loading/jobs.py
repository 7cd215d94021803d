"""Prompts of a plan as what is decoded together."""

from collections.abc import Sequence

import numpy as np

from specjax.bench.loading.checks import values
from specjax.bench.loading.plan import Plan
from specjax.bench.measure import Job
from specjax.types import Spec


def make(
  plan: Plan,
  spec: Spec,
  slots: tuple[int, int | None],
  texts: Sequence[list[int]],
  indices: Sequence[int],
  temperature,
  rows: int = 0,
) -> Job:
  """A job of some prompts.

  Up to so many rows the batch is filled with prompts that get no new tokens:
  another number of rows would be another program.

  Args:
    plan: of the experiment.
    spec: whose vocabulary and ends of a text count.
    slots: of texts, and of sources.
    texts: the prompts.
    indices: of them in the experiment.
    temperature: of all, or [B] of each row.
    rows: at least so many.
  """
  live = len(texts)
  place = np.arange(max(rows, live)) % live
  new_tokens: int | np.ndarray = plan.max_new_tokens
  if live < len(place):
    new_tokens = np.where(np.arange(len(place)) < live, new_tokens, 0)
  return Job(
    [texts[i] for i in place],
    np.asarray(indices)[place],
    values(plan.sampling, spec, len(place), temperature),
    new_tokens,
    plan.seed,
    *slots,
    live,
  )
