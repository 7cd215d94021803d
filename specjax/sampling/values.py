"""Values of the pipeline's stages, checked once and spread over the rows."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_number, check_tokens
from specjax.sampling import constrained, predictions
from specjax.types import Sampling

# Field of `make`: dtype, what is valid, and that in words.
_RANGES = {
  'temperature': (
    jnp.float32,
    # A device multiplies by 1 / temperature, which must not round to 0.
    lambda x: (x >= 0) & (x <= 1e37),
    'a number from 0 to 1e37',
  ),
  'top_k': (
    jnp.int32,
    lambda x: (x >= 0) & (x == np.floor(x)) & (x < 2**31),
    'a whole number from 0 to 2^31 - 1 (0: all)',
  ),
  'top_p': (jnp.float32, lambda x: (x > 0) & (x <= 1), 'in (0, 1]'),
  'min_p': (jnp.float32, lambda x: (x >= 0) & (x < 1), 'in [0, 1)'),
  'repetition_penalty': (
    jnp.float32,
    lambda x: np.isfinite(x) & (x > 0),
    'a finite number above 0 (1: none)',
  ),
  'presence_penalty': (jnp.float32, lambda x: np.abs(x) <= 2, 'in [-2, 2]'),
  'frequency_penalty': (jnp.float32, lambda x: np.abs(x) <= 2, 'in [-2, 2]'),
  'min_new_tokens': (
    jnp.int32,
    lambda x: (x >= 0) & (x == np.floor(x)) & (x < 2**31),
    'a whole number from 0 to 2^31 - 1',
  ),
}


def _spread(batch, name, value):
  """A value in range, given once or for each row, as [B]."""
  if value is None and name != 'temperature':
    return None
  dtype, valid, allowed = _RANGES[name]
  array = np.asarray(value)
  if array.dtype.kind not in 'biuf':
    raise ValueError(f'{name} must be {allowed}, got {value!r}')
  with np.errstate(all='ignore'):
    rounded = array.astype(dtype)  # which may round to a value out of range
  if np.issubdtype(rounded.dtype, np.floating):
    # Some devices take smaller numbers for 0: here they are, on all.
    rounded = np.where(
      np.abs(rounded) < np.finfo(rounded.dtype).tiny, 0, rounded
    )
  if not np.all(valid(array) & valid(rounded)):
    raise ValueError(f'{name} must be {allowed}, got {value}')
  if array.shape not in ((), (batch,)):
    raise ValueError(
      f'{name} must be one value or {batch}, one a row, got {value}'
    )
  return jax.device_put(np.broadcast_to(rounded, batch))


def _table(batch, name, rows, vocab_size, dtype):
  """[B, V] from a mapping of tokens to entries for each row."""
  if len(rows) != batch:
    raise ValueError(f'{name} has {len(rows)} rows instead of {batch}')
  table = np.zeros((batch, vocab_size or 0), dtype)
  for row, entries in zip(table, rows, strict=True):
    check_tokens(name, entries, vocab_size)
    row[list(entries)] = list(entries.values())
  return table


def _bias(batch, value, vocab_size):
  if value is None:
    return None
  try:
    value = value if isinstance(value, Mapping) else list(value)
    each = value and all(isinstance(x, Mapping) for x in value)
    rows = value if each else [dict(value)] * batch
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'logit_bias must be pairs of a token and a number, got {value}'
    ) from error
  bias = _table(batch, 'logit_bias', rows, vocab_size, np.float32)
  if not np.isfinite(bias).all():
    raise ValueError(
      f'logit_bias must be finite, got {value}; forbidden is for tokens that '
      'must not come'
    )
  return jax.device_put(bias)


def _forbid(batch, value, vocab_size):
  if value is None:
    return None
  if not isinstance(value, Iterable):
    raise ValueError(f'forbidden must be a tuple of tokens, got {value}')
  value = list(value)
  once = all(np.ndim(x) == 0 for x in value)
  rows = [dict.fromkeys(x, True) for x in ([value] * batch if once else value)]
  forbidden = _table(batch, 'forbidden', rows, vocab_size, bool)
  if forbidden.all(1).any():
    raise ValueError(f'forbidden must leave a token, got all {vocab_size}')
  return jax.device_put(forbidden)


def _end(batch, least, forbidden, constraint, eos, vocab_size):
  """Tokens [B, number of them] that must not end a text too soon."""
  if least is not None:
    check_tokens('min_new_tokens', (), vocab_size)
    check_tokens('eos', eos, vocab_size)
    waits = np.asarray(least) > 0
    if waits.any() and not eos:
      raise ValueError(
        'min_new_tokens needs a token that ends the text: give eos, or leave '
        'it out'
      )
    closed = np.zeros((batch, vocab_size), bool)
    if forbidden is not None:
      closed |= np.asarray(forbidden)
    closed[:, list(eos)] = True
    if closed[waits].all(1).any():
      raise ValueError(
        'min_new_tokens must leave a token: all that are not forbidden end the '
        'text'
      )
  elif constraint is None:
    return None
  return jax.device_put(np.tile(np.array(eos, np.int32), (batch, 1)))


def make(
  batch: int,
  temperature=1.0,
  top_k=None,
  top_p=None,
  min_p=None,
  *,
  vocab_size: int | None = None,
  eos: Sequence[int] = (),
  logit_bias=None,
  repetition_penalty=None,
  presence_penalty=None,
  frequency_penalty=None,
  forbidden=None,
  min_new_tokens=None,
  constraint=None,
  prediction=None,
) -> Sampling:
  """Checks values and spreads them over the rows.

  Each is given once for all rows, or as a list of B.

  Args:
    batch: B, at least 1.
    temperature: the logits are divided by it; 0 is greedy, as is what float32
      rounds to 0 or to less than its smallest normal number, 1.2e-38.
    top_k: so many tokens are kept.
    top_p: the fewest tokens of that much probability are kept.
    min_p: tokens of that share of the largest probability are kept.
    vocab_size: V; needed where tokens are named.
    eos: tokens that end a text; needed for `min_new_tokens`.
    logit_bias: token -> what is added to its logit, or pairs of them.
    repetition_penalty: divides positive logits of tokens of the text, prompt
      included, and multiplies negative ones (Keskar et al. 2019,
      arXiv:1909.05858, as in Hugging Face `generate`).
    presence_penalty: subtracted for tokens after the prompt, once each.
    frequency_penalty: subtracted as often as they occur there.
    forbidden: tokens that never come.
    min_new_tokens: so many come before one of `eos`.
    constraint: which texts may come, of `specjax.constraints`; of a list of B
      some may be None. Every row has its tables on its device: two bytes for
      each token, and for each of Q states and C classes, both rounded up to
      powers of two.
    prediction: a list of B that drafts are copied from, by a drafter that
      `predicts`; see `predictions.behind`.

  Raises:
    ValueError: names the value that is out of range, or what it contradicts.
  """
  check_number('batch', batch, 1)

  def spread(name, value):
    return _spread(batch, name, value)

  least = spread('min_new_tokens', min_new_tokens)
  closed = _forbid(batch, forbidden, vocab_size)
  automata = constrained.of_rows(batch, constraint, vocab_size, eos)
  if automata is not None:
    constrained.check_ways(automata, least, closed)
  return Sampling(
    temperature=spread('temperature', temperature),
    top_k=spread('top_k', top_k),
    top_p=spread('top_p', top_p),
    min_p=spread('min_p', min_p),
    logit_bias=_bias(batch, logit_bias, vocab_size),
    repetition=spread('repetition_penalty', repetition_penalty),
    presence=spread('presence_penalty', presence_penalty),
    frequency=spread('frequency_penalty', frequency_penalty),
    forbidden=closed,
    min_new_tokens=least,
    ends=_end(batch, least, closed, automata, eos, vocab_size),
    constraint=None
    if automata is None
    else constrained.tables(automata, least),
    prediction=None
    if prediction is None
    else predictions.of_rows(batch, prediction, vocab_size),
  )


def check(values: Sampling, vocab_size: int, eos: Sequence[int]) -> None:
  """Checks that values were made for this vocabulary and these ends of a text.

  Raises:
    ValueError: names the field that was made for others.
  """
  for name, table in (
    ('logit_bias', values.logit_bias),
    ('forbidden', values.forbidden),
  ):
    if table is not None and table.shape[1] != vocab_size:
      raise ValueError(
        f'{name} was made for {table.shape[1]} tokens, but the target has '
        f'{vocab_size}: give `make` this vocab_size'
      )
  classes = values.constraint and values.constraint.classes
  if classes is not None and classes.shape[1] != vocab_size:
    raise ValueError(
      f'constraint was made for {classes.shape[1]} tokens, but the target has '
      f'{vocab_size}: compile it for this target'
    )
  if values.ends is not None:
    ends = set(np.ravel(values.ends).tolist())
    if ends != set(eos):
      raise ValueError(
        f'the values were made for eos {sorted(ends)}, but the spec has '
        f'{tuple(eos)}: give `make` the same'
      )
