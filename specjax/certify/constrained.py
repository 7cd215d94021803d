"""A constraint of the tiny models, and loops that get it wrong."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling

# Tokens 0, 1, 2 and, in the last column, the end of a text. In state 2 a single
# token is allowed, and only in state 1 may a text end.
LANGUAGE = sampling.Automaton(
  'a language of the tiny models',
  np.arange(4, dtype=np.int16),
  np.array(
    [[1, 0, 2, -1], [-1, 0, 1, 3], [1, -1, -1, -1], [-1, -1, -1, 3]], np.int16
  ),
  (3,),
  '',
)


def masked_last(logits, values, history, above):
  """Tokens that are not allowed are left out of what the cuts have left."""
  free = values._replace(constraint=None)
  cut = sampling.distributions(logits, free, history, above)
  only = sampling.Sampling(jnp.ones_like(values.temperature))
  allowed = sampling.distributions(
    jnp.zeros_like(logits),
    only._replace(constraint=values.constraint),
    history,
    above,
  )
  kept = jnp.where(allowed.probs > 0, cut.probs, 0)
  total = kept.sum(-1, keepdims=True)
  return cut._replace(probs=kept / jnp.where(total > 0, total, 1))


def state_of(rows):
  """Rows of the block have the constraint's states of other rows."""

  def distributions(logits, values, history, above):
    free = values._replace(constraint=None)
    only = sampling.Sampling(jnp.ones_like(values.temperature))
    mask = sampling.distributions(
      jnp.zeros_like(logits),
      only._replace(constraint=values.constraint),
      history,
      above[:, rows],
    )
    return sampling.distributions(
      jnp.where(mask.probs > 0, logits, -jnp.inf), free, history, above
    )

  return distributions


def ends_anywhere(logits, values, history, above):
  """A text may end in every state of the constraint."""
  constraint = values.constraint
  end = constraint.classes[:, 3]
  leads = jax.vmap(lambda next_, kind: next_.at[:, kind].set(0))
  wrong = constraint._replace(next=leads(constraint.next, end))
  return sampling.distributions(
    logits, values._replace(constraint=wrong), history, above
  )


def forgets_the_last(history, values, emitted, size):
  """The token behind the accepted ones does not move the state."""
  right = sampling.remember(history, values, emitted, size)
  stale = sampling.remember(history, values, emitted, size - 1)
  return right._replace(state=stale.state)
