"""Whether each device has the memory that a run takes, and what would fit."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping

import jax

from specjax.bench.loading import dtypes
from specjax.bench.loading.memory import Load, at_most, predict, widths_of
from specjax.bench.loading.plan import Plan
from specjax.checkpoints import Description, precision
from specjax.errors import UserError
from specjax.models.config import TransformerConfig

_MOST_DEVICES = 64  # of a mesh that is proposed


def available(count: int) -> int | None:
  """Bytes that each of `count` devices has; None where nobody says.

  CPU devices share the memory of their host.
  """
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if 'bytes_limit' in stats:
    return stats['bytes_limit']
  if device.platform != 'cpu':
    return None
  whole = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  return whole // min(count, jax.local_device_count())


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
  """The largest number in a range that fits; whatever is less fits as well."""
  if least > most or not fits(least):
    return None
  while least < most:
    middle = (least + most + 1) // 2
    least, most = (middle, most) if fits(middle) else (least, middle - 1)
  return least


def _proposals(
  plan: Plan,
  dtype: str,
  target: TransformerConfig,
  count: int,
  fits: Callable[[Plan, int], bool],
) -> Iterator[str]:
  """The least change of each field that fits, alone.

  Args:
    plan: of the experiment.
    dtype: of the target.
    target: its configuration.
    count: prompts of the largest domain.
    fits: whether a plan with so many prompts fits.
  """
  mesh = plan.mesh

  def with_batch(groups: int) -> tuple[Plan, int]:
    batch = groups * mesh.data
    fewer = min(count, batch) if plan.timed else count
    less = tuple(b for b in plan.batches if b <= batch) or (batch,)
    return dataclasses.replace(plan, batch=batch, batches=less), fewer

  if plan.timed:
    less = _largest(lambda n: fits(plan, n), plan.batch, count - 1)
    if less is not None:
      yield f'prompts.count={less}'
  groups = _largest(
    lambda n: fits(*with_batch(n)), 1, plan.batch // mesh.data - 1
  )
  if groups is not None:
    changed, fewer = with_batch(groups)
    field = f'batch={changed.batch}'
    if len(plan.batches) > 1:
      field = 'batches=({},)'.format(','.join(map(str, changed.batches)))
    yield field + f' prompts.count={fewer}' * plan.timed
  tokens = plan.max_new_tokens // 2
  while tokens:
    if fits(dataclasses.replace(plan, max_new_tokens=tokens), count):
      yield f'max_new_tokens={tokens}'
      break
    tokens //= 2
  narrower = dataclasses.replace(plan, dtype='bfloat16')
  wide = dtype not in precision.NARROW and jax.default_backend() != 'cpu'
  if wide and fits(narrower, count):
    yield 'dtype=bfloat16'
  split = dataclasses.replace(mesh, split_draft=True)
  whole = not mesh.split_draft and mesh.model > 1
  if whole and fits(dataclasses.replace(plan, mesh=split), count):
    yield 'mesh.split_draft=True'
  for devices in range(mesh.model + 1, _MOST_DEVICES + 1):
    if target.num_heads % devices == 0:
      wider = dataclasses.replace(mesh, model=devices)
      if fits(dataclasses.replace(plan, mesh=wider), count):
        yield f'mesh.model={devices}'
        break


def remedies(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  count: int,
  load: Load,
  limit: int,
) -> list[str]:
  """The least change of each field that would make it fit, alone.

  Args:
    plan: of the experiment.
    described: its models, by name.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.
    load: of the plan.
    limit: bytes of each device.
  """
  target = described['target'].model.config
  dtype = dtypes.of_target(plan, described)
  before = widths_of(plan, target, longest, count)

  def fits(changed: Plan, prompts: int) -> bool:
    after = widths_of(changed, target, longest, prompts)
    made = predict(changed, described, longest, prompts, compiles=False)
    # What computing takes goes with the rows; whatever the CPU widens does not.
    own = (load.activations or 0) * after.rows // before.rows
    return made.total + own <= limit

  return [*_proposals(plan, dtype, target, count, fits)]


def refuse(
  plan: Plan, described: Mapping[str, Description], longest: int, count: int
) -> None:
  """Refuses what does not fit; compiles only where that may decide it.

  Args:
    plan: of the experiment.
    described: its models, by name.
    longest: tokens of the longest prompt.
    count: prompts of the largest domain.

  Raises:
    UserError: says what needs how much, and what would fit.
  """
  size = longest, count
  load = predict(plan, described, *size, compiles=False)
  check(plan, described, *size, load)
  limit = available(plan.mesh.data * plan.mesh.model)
  widened = 2 * (load.parameters + load.drafts)  # Float32 for 16 bits.
  most = load.total + widened + at_most(plan, described, *size)
  if limit is not None and most > limit:
    check(plan, described, *size, predict(plan, described, *size))


def check(
  plan: Plan,
  described: Mapping[str, Description],
  longest: int,
  count: int,
  load: Load,
) -> None:
  """Refuses what does not fit.

  Raises:
    UserError: says what needs how much, and what would fit.
  """
  mesh = plan.mesh
  limit = available(mesh.data * mesh.model)
  if limit is None or load.total <= limit:
    return
  fits = remedies(plan, described, longest, count, load, limit)
  choice = ' or '.join(fits) or 'a smaller model'
  more = f', computing {load.activations:,}' if load.activations else ''
  raise UserError(
    f'mesh.data x mesh.model = {mesh.data} x {mesh.model}: each device '
    f'would hold {load.total:,} bytes (target {load.parameters:,}, its cache '
    f'{load.cache:,}, drafts {load.drafts:,}, other layouts {load.layouts:,}'
    f'{more}), but has {limit:,}: choose {choice}'
  )
