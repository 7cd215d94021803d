"""Records every key that a step consumes.

The step is traced to its primitives, and traced again from these with a report
in front of each that consumes a key. Calls, loops and branches are walked into
where they use random numbers, so a key is seen wherever it is consumed.
"""

import collections
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.extend import core

Key = tuple[int, ...]


class Used(NamedTuple):
  """One use of a key: for bits, to be split, or to fold a number in."""

  kind: str
  key: Key
  number: int | None = None  # what was folded in


_KINDS = {
  'random_bits': 'bits',
  'random_split': 'split',
  'random_fold_in': 'fold',
}


def _inner(value) -> list[core.Jaxpr]:
  """Programs in a parameter of a primitive."""
  values = value if isinstance(value, tuple | list) else [value]
  found = []
  for x in values:
    if isinstance(x, core.ClosedJaxpr):
      found.append(x.jaxpr)
    elif isinstance(x, core.Jaxpr):
      found.append(x)
  return found


def _random(equation) -> bool:
  """Whether an equation consumes a key, somewhere inside it."""
  if equation.primitive.name in _KINDS:
    return True
  return any(
    _random(inner)
    for value in equation.params.values()
    for jaxpr in _inner(value)
    for inner in jaxpr.eqns
  )


class Recorder:
  """Runs programs again, and keeps what they consume."""

  def __init__(self):
    self.used: list[Used] = []

  def _keep(self, kind, data, numbers):
    data = np.asarray(data)
    keys = map(tuple, data.reshape(-1, data.shape[-1]).tolist())
    folded = np.broadcast_to(numbers, data.shape[:-1]).ravel().tolist()
    self.used += [
      Used(kind, key, number if kind == 'fold' else None)
      for key, number in zip(keys, folded, strict=True)
    ]

  def _while(self, values, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts):
    cut = cond_nconsts + body_nconsts
    of_cond, of_body = values[:cond_nconsts], values[cond_nconsts:cut]
    return jax.lax.while_loop(
      lambda carry: self.run(cond_jaxpr, *of_cond, *carry)[0],
      lambda carry: self.run(body_jaxpr, *of_body, *carry),
      values[cut:],
    )

  def _scan(self, values, jaxpr, num_consts, num_carry, length, reverse, **_):
    cut = num_consts + num_carry
    consts = values[:num_consts]

    def turn(carry, rows):
      out = self.run(jaxpr, *consts, *carry, *rows)
      return out[:num_carry], out[num_carry:]

    carry, rows = jax.lax.scan(
      turn, values[num_consts:cut], values[cut:], length, reverse
    )
    return [*carry, *rows]

  def _equation(self, equation, values):
    name, params = equation.primitive.name, equation.params
    if name in _KINDS:
      data, number = jax.random.key_data(values[0]), (*values, 0)[1]
      keep = functools.partial(self._keep, _KINDS[name])
      jax.debug.callback(keep, data, number)
    elif not _random(equation):
      pass
    elif name == 'while':
      return self._while(values, **params)
    elif name == 'scan':
      return self._scan(values, **params)
    elif name == 'cond':
      ways = [functools.partial(self.run, x) for x in params['branches']]
      return jax.lax.switch(values[0], ways, *values[1:])
    else:
      # A call of some kind: jit, a custom derivative, a checkpoint.
      (program,) = (x for x in params.values() if _inner(x))
      return self.run(program, *values)
    params = equation.primitive.get_bind_params(params)
    out = equation.primitive.bind(*values, **params)
    return out if equation.primitive.multiple_results else [out]

  def run(self, program, *values):
    """Outputs of a program, a list."""
    closed = isinstance(program, core.ClosedJaxpr)
    jaxpr, consts = (program.jaxpr, program.consts) if closed else (program, ())
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))

    def read(x):
      return x.val if isinstance(x, core.Literal) else known[x]

    for equation in jaxpr.eqns:
      out = self._equation(equation, [read(x) for x in equation.invars])
      known |= dict(zip(equation.outvars, out, strict=True))
    return [read(x) for x in jaxpr.outvars]


def consumed(step, params, state, steps: int) -> list[Used]:
  """What a step consumes, taken again and again.

  Of the state only its keys move on. So all but what keys depend on falls out
  of the compiled program, and keys must not depend on what was written.
  """
  recorder = Recorder()
  program = jax.make_jaxpr(step)(params, state)
  leaves = jax.tree.leaves(state)
  moves = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]

  @jax.jit
  def keys_after(leaves):
    out = recorder.run(program, *jax.tree.leaves(params), *leaves)
    return [x for x, moved in zip(out, moves, strict=True) if moved]

  for _ in range(steps):
    keys = iter(keys_after(leaves))
    leaves = [
      next(keys) if moved else x for x, moved in zip(leaves, moves, strict=True)
    ]
  jax.effects_barrier()
  return recorder.used


def repeated(used: list[Used]) -> Iterator[Used]:
  """Uses of keys that were used before.

  A key gives bits once or is split once. Or numbers are folded into it, each
  once.
  """
  entire = collections.Counter(x.key for x in used if x.kind != 'fold')
  folded = collections.Counter(x for x in used if x.kind == 'fold')
  parents = {x.key for x in folded}
  for x in used:
    if x.kind == 'fold':
      if folded[x] > 1:
        yield x
    elif entire[x.key] > 1 or x.key in parents:
      yield x
