"""Policies as a researcher might write them: a right one, and bad input."""

import jax
import jax.numpy as jnp

from specjax.drafters.shapes.policies import Policy

unlikely = Policy(lambda memory, last: last.reach > 0.2)

# Bad input.
chance = Policy(lambda memory, last: last.confidence)
grows = Policy(
  lambda memory, last: last.drafted < 2,
  lambda: jnp.int32(1),
  lambda memory, drafted, accepted: (memory, accepted),
)
many = Policy(lambda memory, last: last.drafted < 2, lambda: jnp.zeros(3))


asks_the_host = Policy(
  lambda memory, last: jax.pure_callback(
    lambda number: number % 2 == 0,
    jax.ShapeDtypeStruct((), jnp.bool_),
    last.drafted,
    vmap_method='sequential',
  )
)
divides = Policy(
  lambda memory, last: last.reach > memory,
  lambda: jnp.float32(0.5),
  lambda memory, drafted, accepted: memory / accepted,
)
