"""Whether each device has the memory that a run takes, and what would fit."""

import dataclasses
import os
from collections.abc import Iterator, Mapping

import jax

from experiments.errors import UserError
from experiments.setup import dtypes
from experiments.setup.memory import Load, at_most, predict, widths_of
from experiments.setup.plan import Plan
from specjax.checkpoints import Description, precision
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


def _changes(
  plan: Plan, dtype: str, target: TransformerConfig, count: int
) -> Iterator[tuple[str, Plan, int]]:
  """What could be changed, smallest changes first: in words, and made.

  The last is the number of prompts.
  """
  mesh = plan.mesh
  for less in range(count - 1, plan.batch - 1, -1) if plan.timed else ():
    yield f'prompts.count={less}', plan, less
  for batch in range(plan.batch - mesh.data, 0, -mesh.data):
    fewer = min(count, batch) if plan.timed else count
    name = f'batch={batch}' + f' prompts.count={fewer}' * plan.timed
    yield name, dataclasses.replace(plan, batch=batch), fewer
  tokens = plan.max_new_tokens // 2
  while tokens:
    yield (
      f'max_new_tokens={tokens}',
      dataclasses.replace(plan, max_new_tokens=tokens),
      count,
    )
    tokens //= 2
  if dtype not in precision.NARROW and jax.default_backend() != 'cpu':
    smaller = dataclasses.replace(plan, dtype='bfloat16')
    yield 'dtype=bfloat16', smaller, count
  if not mesh.split_draft and mesh.model > 1:
    split = dataclasses.replace(mesh, split_draft=True)
    yield (
      'mesh.split_draft=True',
      dataclasses.replace(plan, mesh=split),
      count,
    )
  for devices in range(mesh.model + 1, _MOST_DEVICES + 1):
    if target.num_heads % devices == 0:
      wider = dataclasses.replace(mesh, model=devices)
      made = dataclasses.replace(plan, mesh=wider)
      yield f'mesh.model={devices}', made, count


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
  found: dict[str, str] = {}
  for words, changed, prompts in _changes(plan, dtype, target, count):
    field = words.partition('=')[0]
    if field in found:
      continue
    after = widths_of(changed, target, longest, prompts)
    made = predict(changed, described, longest, prompts, compiles=False)
    # What computing takes goes with the rows; whatever the CPU widens does not.
    own = (load.activations or 0) * after.rows // before.rows
    if made.total + own <= limit:
      found[field] = words
  return [*found.values()]


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
