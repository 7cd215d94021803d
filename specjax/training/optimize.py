"""The training loop: deterministic batches, checkpoints, exact resume."""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from optax import contrib

from specjax.checkpoints.precision import in_dtype
from specjax.cli import progress
from specjax.cli.names import resolve
from specjax.stats.folders import write_text
from specjax.training.recipes import CURVES, Optimization


def name_matrices(params: Any) -> Any:
  """Which axes of each weight Muon takes as a matrix, None where AdamW stays.

  That is every weight between two layers. Where it has several outputs, the
  second last axis tells them apart (queries from keys and values, the gate from
  what it opens), and each is a matrix of its own.

    qkv [E, G, H/G+2, D]  ->  H/G+2 matrices [E, G*D]
    up  [E, 2, F]         ->  2 matrices [E, F]
  """

  def describe(path, x):
    if x.ndim < 2 or path[-1].key in ('embedding', 'unembedding', 'position'):
      return None
    outputs = [i for i in range(1, x.ndim) if x.ndim == 2 or i != x.ndim - 2]
    return contrib.MuonDimensionNumbers(0, tuple(outputs))

  return jax.tree_util.tree_map_with_path(describe, params)


def make_optimizer(o: Optimization) -> optax.GradientTransformation:
  """AdamW or Muon; norms and biases (vectors) are not decayed.

  Muon's steps are as large as AdamW's (Liu et al., 2025, arXiv:2502.16982), so
  both follow one schedule.
  """
  schedule = resolve('curve', o.curve, CURVES)(o.schedule)

  def decayed(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)

  if o.muon:
    rule = contrib.muon(
      schedule,
      weight_decay=o.weight_decay,
      weight_decay_mask=decayed,
      adam_b2=0.95,
      muon_weight_dimension_numbers=name_matrices,
      consistent_rms=0.2,
    )
  else:
    rule = optax.adamw(
      schedule, b2=0.95, weight_decay=o.weight_decay, mask=decayed
    )
  rule = optax.chain(optax.clip_by_global_norm(o.clip), rule)
  if o.accumulate == 1:
    return rule
  every = optax.MultiSteps(rule, o.accumulate)
  return every.gradient_transformation()


class TrainingLog:
  """A line of JSON for every checkpoint, and the time that it took so far.

  Only steps that a resumed run kept count, and reports do not: the time is
  what the training costs that was not interrupted.

  Attributes:
    seconds: by the clock, up to the last line.
    cpu_seconds: of the process, on all cores; what else the machine does
      matters less to it.
  """

  def __init__(self, file: pathlib.Path, first: int):
    self.file = file
    lines = file.read_text().splitlines() if file.exists() else []
    self.lines = [line for line in lines if json.loads(line)['step'] <= first]
    last = json.loads(self.lines[-1]) if self.lines else {}
    self.seconds = last.get('seconds', 0.0)
    self.cpu_seconds = last.get('cpu_seconds', 0.0)
    self.go()

  def go(self) -> None:
    self._began = time.perf_counter(), time.process_time()

  def stop(self) -> None:
    wall, cpu = self._began
    self.seconds += time.perf_counter() - wall
    self.cpu_seconds += time.process_time() - cpu

  def write(self, step: int, loss: Any, facts: dict[str, Any]) -> str:
    """Adds a line, which it returns."""
    line = {
      'step': step,
      'seconds': round(self.seconds, 2),
      'cpu_seconds': round(self.cpu_seconds, 2),
      'loss': jax.tree.map(float, loss),
    }
    self.lines.append(json.dumps(line | facts))
    write_text(self.file, '\n'.join(self.lines) + '\n', 'folder')
    return self.lines[-1]


class Best:
  """The weights of the checkpoint that scored highest, if any does.

  Args:
    folder: that keeps them.
    record: its lines have scores.
    patience: checkpoints without a higher one that end a training; 0: none.
  """

  def __init__(self, folder: pathlib.Path, record: TrainingLog, patience: int):
    self.record, self.patience = record, patience
    self.options = ocp.CheckpointManagerOptions(max_to_keep=1)
    self.folder = folder.absolute()

  def _scores(self) -> list[tuple[float, int]]:
    lines = map(json.loads, self.record.lines)
    return [(line['score'], line['step']) for line in lines]

  @property
  def step(self) -> int:
    """The first of those with the highest score."""
    return max(self._scores(), key=lambda x: (x[0], -x[1]))[1]

  def ended(self) -> bool:
    """Returns True where patience is spent."""
    if not self.patience or not self.record.lines:
      return False
    steps = [step for _, step in self._scores()]
    return len(steps) - 1 - steps.index(self.step) >= self.patience

  def keep(self, step: int, params: Any) -> None:
    """Keeps the weights of the last line, where they are the best."""
    if not self.patience or self.step != step:
      return
    with ocp.CheckpointManager(self.folder, options=self.options) as manager:
      if step not in manager.all_steps():  # A killed run may have been here.
        manager.save(step, args=ocp.args.StandardSave(params))
        manager.wait_until_finished()

  def choose(self, params: Any) -> Any:
    """The best weights; those of the end where nobody is patient."""
    if not self.patience:
      return params
    with ocp.CheckpointManager(self.folder, options=self.options) as manager:
      return manager.restore(self.step, args=ocp.args.StandardRestore(params))


def split(params: Any) -> tuple[Any, Any]:
  """Returns the floats of parameters, which are trained, and the integers."""
  floats = jax.tree.map(
    lambda x: jnp.issubdtype(jnp.result_type(x), jnp.floating), params
  )

  def part(chosen):
    return jax.tree.map(lambda x, y: x if y == chosen else None, params, floats)

  return part(True), part(False)


def join(floats: Any, integers: Any) -> Any:
  """Returns what `split` took apart."""
  return jax.tree.map(
    lambda x, y: y if x is None else x,
    floats,
    integers,
    is_leaf=lambda x: x is None,
  )


def make_step(
  loss: Callable[[Any, Any, Any], Any],
  optimizer: optax.GradientTransformation,
  dtype: str = 'float32',
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
  """The compiled step of a training.

  Args:
    loss: as of `train`.
    optimizer: of the parameters.
    dtype: that losses are computed in.

  Returns:
    (carry, frozen, batch) -> carry, losses. The carry is the parameters and
    `optimizer.init` of the parameters that are floats; it is donated.
  """

  def total(floats, integers, frozen, batch):
    params = join(in_dtype(floats, dtype), integers)
    parts = loss(params, frozen, batch)
    return sum(jax.tree.leaves(parts)), parts

  @jax.jit(donate_argnums=0)
  def step(carry, frozen, batch):
    params, state = carry
    floats, integers = split(params)
    grads, parts = jax.grad(total, has_aux=True)(
      floats, integers, frozen, batch
    )
    updates, state = optimizer.update(grads, state, floats)
    floats = optax.apply_updates(floats, updates)
    return (join(floats, integers), state), parts

  return step


def train(
  name: str,
  folder: pathlib.Path,
  o: Optimization,
  params: Any,
  loss: Callable[[Any, Any, Any], Any],
  frozen: Any,
  batch: Callable[[int, Any], Any],
  report: Callable[[Any], dict[str, Any]] | None = None,
  place: Callable[[Any], Any] = jax.device_put,
) -> Any:
  """Minimises a loss; resumes from the last checkpoint under `folder`.

  Every checkpoint adds a line to `folder/name.jsonl`, see `TrainingLog`.

  Args:
    name: of the run, shown while it trains.
    folder: checkpoints go to `folder/name`.
    o: the optimization.
    params: initial parameters. Integers among them are not trained.
    loss: (params, frozen, batch) -> scalar, or a dict of scalars whose sum
      is minimised.
    frozen: arrays the loss needs and does not train.
    batch: (number, parameters) -> arrays; there are `o.accumulate` in a step.
      It must give the same for the same number, so that a resumed run sees the
      same batches: what it makes of the parameters it keeps under the number.
    report: parameters -> facts about held-out text, at every checkpoint; with
      `o.patience` their `score` says which is the best.
    place: puts what is trained and what is frozen on the devices.

  Returns:
    The trained parameters.
  """
  optimizer = make_optimizer(o)
  step = make_step(loss, optimizer, o.dtype)
  # Copied, since the loop donates its carry.
  carry = jax.tree.map(np.array, params)
  carry = place((carry, optimizer.init(split(carry)[0])))
  frozen = place(frozen)
  options = ocp.CheckpointManagerOptions(max_to_keep=1)
  with ocp.CheckpointManager(
    (folder / name).absolute(), options=options
  ) as manager:
    first = manager.latest_step() or 0
    if first:
      carry = manager.restore(first, args=ocp.args.StandardRestore(carry))
    record = TrainingLog(folder / f'{name}.jsonl', first)
    best = Best(folder / f'{name}-best', record, o.patience)
    with progress.phase(name, o.steps, done=first, alike=10) as phase:
      for i in range(first, o.steps):
        if best.ended():
          break
        for j in range(i * o.accumulate, (i + 1) * o.accumulate):
          carry, parts = step(carry, frozen, batch(j, carry[0]))
        if i % 10 == 0:
          values = jax.tree.map(lambda x: round(float(x), 4), parts)
          phase.note = f'loss {values}'
        if (i + 1) % o.checkpoint_every == 0 or i + 1 == o.steps:
          parts = jax.device_get(parts)
          record.stop()
          line = record.write(i + 1, parts, report(carry[0]) if report else {})
          best.keep(i + 1, carry[0])
          # After the line: a checkpoint always has one.
          manager.save(i + 1, args=ocp.args.StandardSave(carry))
          now = time.strftime('%H:%M:%S')
          print(f'{now} {name} {line}', flush=True)
          record.go()
        phase.advance()
    manager.wait_until_finished()
  return best.choose(carry[0])
