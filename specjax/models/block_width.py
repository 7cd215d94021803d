"""How many columns a block of weights has, where JAX multiplies it."""

import functools
import time

import jax
import jax.numpy as jnp

from specjax.models import linear

COLUMNS = (16, 32, 64)  # of a block, tried
_TRIAL = 4, 512, 2048  # rows, inputs and outputs of a product to try them on
_TRIALS = 12, 10  # turns of each, and products of a turn


def _products(w: jax.Array, x: jax.Array, count: jax.Array) -> jax.Array:
  """So many products of rows with a weight, each with what the last gave."""

  def turn(_, x):
    y = linear.multiply(x, w)
    return x + y.mean(-1, keepdims=True)

  return jax.lax.fori_loop(0, count, turn, x)


@functools.cache
def columns() -> int:
  """Columns of a block: of the fastest product on this machine.

  The least time of each counts, which other work on the machine hardly moves.
  """
  rows, inputs, outputs = _TRIAL
  turns, products = _TRIALS
  x, run = jnp.zeros((rows, inputs)), jax.jit(_products)

  def seconds(w: jax.Array) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run(w, x, products))
    return time.perf_counter() - begin

  whole = jnp.zeros((inputs, outputs))
  weights = {count: linear.to_blocks(whole, count) for count in COLUMNS}
  # The first turn compiles.
  times = [{n: seconds(w) for n, w in weights.items()} for _ in range(turns)]
  return min(weights, key=lambda count: min(turn[count] for turn in times[1:]))
