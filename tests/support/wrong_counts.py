"""Planted bugs of what counts steps and times them; see `wrong_numbers`."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np

from specjax.bench import costs, measure, runner
from specjax.loop import generate
from tests.support import scripted_run
from tests.support.measuring_checks import CHECKS


@dataclasses.dataclass(frozen=True)
class WrongNumber:
  """A function of the measuring code with a fault.

  Attributes:
    name: what is wrong.
    check: that finds it, of `measuring_checks.CHECKS`.
    where: the module or class that has the function.
    attribute: its name there.
    wrong: what takes its place.
  """

  name: str
  check: str
  where: Any
  attribute: str
  wrong: Any

  @contextlib.contextmanager
  def planted(self) -> Iterator[None]:
    with mock.patch.object(self.where, self.attribute, self.wrong):
      yield

  def deviation(self) -> float:
    """What the check finds."""
    with self.planted():
      return CHECKS[self.check].deviation()


def _emit(change: Callable[..., Any]) -> generate.StepParts:
  """A step in which `change` says which tokens stay, and whether it counts."""

  def emit(state, draft, verdict, eos):
    right = generate.PARTS.emit(state, draft, verdict, eos)
    return change(state, draft, verdict, *right)

  return generate.PARTS._replace(emit=emit)


def _by_outcome(state, draft, verdict, emitted, count, room, stopped):
  """A step counts where the limit did not cut it, not where it could not."""
  del draft, room  # Unused.
  fits = state.limit - state.length > verdict.num_accepted
  return emitted, count, fits, stopped


def _ends_are_cut(state, draft, verdict, emitted, count, room, stopped):
  """A step counts only where the text did not end inside it."""
  del state, draft  # Unused.
  return emitted, count, room & (count > verdict.num_accepted), stopped


def _cut_is_whole(state, draft, verdict, emitted, count, room, stopped):
  del state, draft, verdict  # Unused.
  return emitted, count, jnp.ones_like(room), stopped


def _beyond_the_end(state, draft, verdict, emitted, count, room, stopped):
  del draft, count  # Unused.
  all_of_it = jnp.minimum(verdict.num_accepted + 1, state.limit - state.length)
  return emitted, all_of_it, room, stopped


def _beyond_the_limit(state, draft, verdict, emitted, count, room, stopped):
  del state, draft  # Unused.
  full = jnp.where(stopped, count, verdict.num_accepted + 1)
  return emitted, full, room, stopped


def _tally(change: Callable[..., Any]) -> generate.StepParts:
  """A step whose counts `change` makes of the arguments of the right ones."""

  def tally(*step):
    return change(generate.PARTS.tally, *step)

  return generate.PARTS._replace(tally=tally)


def _finished_too(add, counts, draft, verdict, emitted, room, live, beta):
  return add(counts, draft, verdict, emitted, room, jnp.ones_like(live), beta)


def _misses_tried(add, counts, draft, *step):
  one = jnp.maximum(draft.size, 1)
  after = add(counts, draft, *step)
  return after._replace(
    tried=add(counts, draft._replace(size=one), *step).tried
  )


def _padding_drafted(add, counts, draft, *step):
  """Nodes that do not exist count as drafted."""
  full = jnp.full_like(draft.size, draft.tokens.shape[1])
  after = add(counts, draft, *step)
  return after._replace(
    drafted=add(counts, draft._replace(size=full), *step).drafted
  )


def _no_bonus(add, counts, draft, verdict, emitted, room, live, beta):
  """The bonus or corrected token is not counted."""
  accepted = jnp.minimum(emitted, verdict.num_accepted)
  return add(counts, draft, verdict, accepted, room, live, beta)


def _rejected_is_untried(add, counts, draft, verdict, *step):
  after = add(counts, draft, verdict, *step)
  return after._replace(tried=after.accepted)


_units, _compare = runner.Runner.units, runner.Runner.compare
_whole, _run = runner.Runner.whole, measure._run
_accepted, _record = costs._accepted, measure.record


def turned(items) -> list:
  """The same items, with the first one last."""
  return [*items[1:], *items[:1]]


def _per_row(way, job, steps=None):
  run = measure.decode(way, job, steps)
  return run.seconds / run.counts.target_calls.sum(), run


def _every_row(params, state, job, *rest):
  return _run(params, state, dataclasses.replace(job, live=None), *rest)


def _other_order(self, domain, temperature):
  job = _whole(self, domain, temperature)
  order = turned(range(len(job.prompts)))
  texts = [job.prompts[i] for i in order]
  return dataclasses.replace(job, prompts=texts, indices=job.indices[order])


def _first_keys(self, domain, temperature):
  jobs = _units(self, domain, temperature)
  return [dataclasses.replace(j, indices=jobs[0].indices) for j in jobs]


def _last_twice(self, domain, temperature):
  jobs = _units(self, domain, temperature)
  return [*jobs, jobs[-1]]


def _log_of(change: Callable[[measure.Log], dict]):
  """`measure.record` with a log that `change` makes of the right one."""

  def record(way, job):
    run = _record(way, job)
    log = run.log._replace(**change(run.log))
    return dataclasses.replace(run, log=log)

  return record


def _wrong_step(
  name: str, check: str, parts: generate.StepParts
) -> WrongNumber:
  return WrongNumber(name, check, scripted_run, 'PARTS', parts)


WRONG_COUNTS = (
  _wrong_step('steps the limit cuts, by outcome', 'counts', _emit(_by_outcome)),
  _wrong_step('steps the end cuts, by outcome', 'counts', _emit(_ends_are_cut)),
  _wrong_step('cut steps are whole', 'counts', _emit(_cut_is_whole)),
  _wrong_step(
    'tokens behind the end of a text', 'counts', _emit(_beyond_the_end)
  ),
  _wrong_step('tokens behind the limit', 'counts', _emit(_beyond_the_limit)),
  _wrong_step('finished rows are counted', 'counts', _tally(_finished_too)),
  _wrong_step('misses are tried', 'acceptance', _tally(_misses_tried)),
  _wrong_step(
    'nodes that do not exist are drafted', 'counts', _tally(_padding_drafted)
  ),
  _wrong_step('no bonus in the tokens', 'counts', _tally(_no_bonus)),
  _wrong_step(
    'rejected tokens were not tried',
    'acceptance',
    _tally(_rejected_is_untried),
  ),
  WrongNumber('a step of all rows together', 'costs', costs, '_time', _per_row),
  WrongNumber(
    'rows that fill up a batch are counted',
    'counts of a batch that is filled up',
    measure,
    '_run',
    _every_row,
  ),
  WrongNumber(
    'alpha of prompts in another order',
    'alpha on more rows than prompts',
    runner.Runner,
    'whole',
    _other_order,
  ),
  WrongNumber(
    'a replay accepts the bonus, too',
    'replays',
    costs,
    '_accepted',
    lambda run: _accepted(run) + 1,
  ),
  WrongNumber(
    'every batch has the keys of the first',
    'keys',
    runner.Runner,
    'units',
    _first_keys,
  ),
  WrongNumber(
    'the last batch counts twice', 'counts', runner.Runner, 'units', _last_twice
  ),
  WrongNumber(
    'texts beside the plain text of another prompt',
    'texts',
    runner.Runner,
    'compare',
    lambda self, method, cell, base, runs: _compare(
      self, method, cell, turned(base), runs
    ),
  ),
  WrongNumber(
    'a cut step is logged as one that accepted nothing',
    'sums that agree',
    measure,
    'record',
    _log_of(lambda log: {'accepted': np.maximum(log.accepted, 0)}),
  ),
  WrongNumber(
    'the length is that after the step',
    'steps along the text',
    measure,
    'record',
    _log_of(lambda log: {'length': log.length + log.accepted + 1}),
  ),
)
