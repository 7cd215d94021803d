"""The training loop: deterministic batches, checkpoints, exact resume."""

import itertools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from tqdm import tqdm

from experiments.settings import Optimization


def make_optimizer(o: Optimization) -> optax.GradientTransformation:
  """AdamW; norms and biases (vectors) are not decayed."""
  corners = [(0, 0.0), *o.schedule]
  pieces = [
    optax.linear_schedule(low, high, end - begin)
    for (begin, low), (end, high) in itertools.pairwise(corners)
  ]
  schedule = optax.join_schedules(pieces, [end for end, _ in o.schedule[:-1]])
  return optax.chain(
    optax.clip_by_global_norm(o.clip),
    optax.adamw(
      schedule,
      b2=0.95,
      weight_decay=o.weight_decay,
      mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    ),
  )


def train(
  name: str,
  folder: pathlib.Path,
  o: Optimization,
  params: Any,
  loss: Callable[[Any, Any, jax.Array], jax.Array],
  frozen: Any,
  batch: Callable[[int], np.ndarray],
  report: Callable[[Any], str] | None = None,
) -> Any:
  """Minimises a loss; resumes from the last checkpoint under `folder`.

  Args:
    name: of the run, shown by the progress bar.
    folder: checkpoints go to `folder/name`.
    o: the optimization.
    params: initial parameters.
    loss: (params, frozen, tokens) -> scalar, or a dict of scalars whose sum
      is minimised.
    frozen: arrays the loss needs and does not train.
    batch: step -> tokens; a function of the step alone, so that a resumed
      run sees the same batches.
    report: parameters -> a line about held-out text, at every checkpoint.

  Returns:
    The trained parameters.
  """
  optimizer = make_optimizer(o)

  def total(params, frozen, tokens):
    parts = loss(params, frozen, tokens)
    return sum(jax.tree.leaves(parts)), parts

  @jax.jit(donate_argnums=0)
  def step(carry, frozen, tokens):
    params, state = carry
    grads, parts = jax.grad(total, has_aux=True)(params, frozen, tokens)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), parts

  # Copied, since the loop donates its carry.
  carry = jax.tree.map(np.array, params)
  carry = (jax.device_put(carry), optimizer.init(carry))
  options = ocp.CheckpointManagerOptions(max_to_keep=1)
  with ocp.CheckpointManager(
    (folder / name).absolute(), options=options
  ) as manager:
    first = manager.latest_step() or 0
    if first:
      carry = manager.restore(first, args=ocp.args.StandardRestore(carry))
    bar = tqdm(range(first, o.steps), name, initial=first, total=o.steps)
    for i in bar:
      carry, parts = step(carry, frozen, batch(i))
      if i % 10 == 0:
        values = jax.tree.map(lambda x: round(float(x), 4), parts)
        bar.set_postfix_str(str(values))
      if (i + 1) % o.checkpoint_every == 0 or i + 1 == o.steps:
        manager.save(i + 1, args=ocp.args.StandardSave(carry))
        line = f'step {i + 1} {jax.device_get(parts)}'
        if report:
          line += f' {report(carry[0])}'
        tqdm.write(f'{time.strftime("%H:%M:%S")} {name} {line}')
    manager.wait_until_finished()
  return carry[0]
