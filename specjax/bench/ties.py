"""Judges where two greedy texts part: at a tie of the logits, or by a bug.

The rounding of a sum depends on its order, and the order on the shape of the
product: one token, a block of drafted ones, a batch. Let R be the logits after
the common text from one pass without a cache, L those that a text chose its
token a by, and m the largest of R. From L[a] >= L[m] follows

  R[m] - R[a] = (R[m] - L[m]) + (L[m] - L[a]) + (L[a] - R[a]) <= 2 max |R - L|

so that a larger margin R[m] - R[a] is not rounding: it is a bug. The bound is
measured, never assumed; where the shapes are further apart than rounding can
explain, it is not believed either.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.bench import parting
from specjax.bench.measure import Decoding
from specjax.bench.parting import Scoring, read_source
from specjax.models import layouts, prefill, sharding, transformer, uniform

_MATTER = 16  # largest logits that the noise is taken over
_SLACK = 16  # times the effect of one rounding that shapes may be apart


class Difference(NamedTuple):
  """Where two texts part; logits after all stages of the pipeline but the cut.

  Attributes:
    position: new tokens before it.
    tokens: one of each text; None where a text has ended.
    gap: between the two largest logits of a pass without a cache.
    margin: between the largest and the smaller one of the two tokens'; None
      where a text has ended or its token was forbidden.
    noise: twice the largest change of a logit from that pass to the same text
      scored in any of the ways, at every row of a block and of a batch; of the
      16 largest logits and the two tokens'. At least one unit in the last place
      of these logits: twice what rounding the finished sum can change.
    rounding: the largest change of these logits when every weight moves by one
      unit of its last place, up or down at random.
    verdict: 'tie' where the margin is within the noise, and within 16 times
      the rounding; otherwise 'bug'. Where both ways give a row the same bits,
      every difference is a bug, see `layouts.parting`.
    operation: where bits of a row first part, see `parting.Parting`; None where
      nobody looked: texts of another program, and other weights.
    rows: fewest rows of a text in a pass at which they part there, or None.
  """

  position: int
  tokens: tuple[int | None, int | None]
  gap: float
  margin: float | None
  noise: float
  rounding: float
  verdict: str
  operation: str | None = None
  rows: int | None = None


def way(
  decoding: Decoding, batch: int, slots: int, source_slots: int | None = None
) -> Scoring:
  """Returns how a way to decode scores, in batches and buffers of a size."""
  spec, params, _ = decoding
  rows = spec.drafter.nodes + 1
  return Scoring(spec.target, params.target, rows, batch, slots, source_slots)


def first_difference(text, other) -> int | None:
  """Tokens before the first difference; None where the texts are equal."""
  if text == other:
    return None
  pairs = enumerate(zip(text, other, strict=False))
  short = min(len(text), len(other))
  return next((i for i, (a, b) in pairs if a != b), short)


@functools.partial(jax.jit, static_argnames=('target', 'rows'))
def _in_block(weights, tokens, length, source, *, target, rows):
  """Logits [B, rows, V] of a block that begins at the last of length [B]."""
  batch, slots = tokens.shape
  cache = transformer.open_cache(target, weights, batch, slots, source)
  cache, _ = prefill.prefill(target, weights, tokens, length, cache)
  mask, offset = transformer.causal(batch, rows)
  at = length[:, None] - 1 + offset
  block = jnp.take_along_axis(tokens, at, 1, mode='clip')
  out = target.forward(weights, block, at, cache, length - 1, mask)
  return target.head(weights, out.hidden)


@functools.partial(jax.jit, static_argnames='target')
def _in_one_pass(weights, tokens, length, source, *, target):
  """Logits [V] after length [] of tokens [1, S], without a cache."""
  return transformer.score(target, weights, tokens, source, length - 1)[0, 0]


@jax.jit
def _nudge(weights):
  """Moves each weight by one unit in its last place."""

  def move(key, w):
    if not jnp.issubdtype(w.dtype, jnp.floating):
      return w
    unit = jnp.finfo(w.dtype).eps
    up = jax.random.bernoulli(key, shape=w.shape)
    return w * jnp.where(up, 1 + unit, 1 - unit).astype(w.dtype)

  leaves, structure = jax.tree.flatten(weights)
  keys = jax.random.split(jax.random.key(0), len(leaves))
  return structure.unflatten(map(move, keys, leaves))


def _score(way: Scoring, padded, length: int, sources) -> list[jax.Array]:
  """Logits [V] after `length` tokens, at every row of a block and a batch."""
  tokens = np.broadcast_to(padded[:, : way.slots], (way.batch, way.slots))
  source = read_source(way, sources, way.batch)
  scores = []
  for row in range(min(way.rows, length)):
    begin = np.full(way.batch, length - row, np.int32)
    logits = _in_block(
      way.weights, tokens, begin, source, target=way.target, rows=way.rows
    )
    scores += list(sharding.fetch(logits)[:, row])
  return scores


def _last_place(logits, ways: list[Scoring]) -> float:
  """One unit in the last place of the largest, in the coarsest precision."""
  units = [jnp.finfo(transformer.dtype_of(w.weights)).eps for w in ways]
  _, exponent = np.frexp(np.abs(logits).max())
  return float(max(units)) * 2.0 ** (int(exponent) - 1)


def _measure(ways: list[Scoring], prompt, new, values):
  """Measures logits after a text: of whole passes, nudged ones, and the ways.

  Returns:
    Three arrays [number of them, V] in float64, after the stages of the
    pipeline; of the first two one for each set of weights.
  """
  (text,), sources = prefill.split(ways[0].target.config, [prompt])
  length = len(text) + len(new)
  padded = np.zeros((1, max(way.slots for way in ways)), np.int32)
  padded[0, :length] = *text, *new
  whole, nudged, scored = [], [], []
  for i, way in enumerate(ways):
    scored += _score(way, padded, length, sources)
    if any(way.weights is other.weights for other in ways[:i]):
      continue
    source = read_source(way, sources, 1)
    for passes, weights in (
      (whole, way.weights),
      (nudged, _nudge(way.weights)),
    ):
      logits = _in_one_pass(weights, padded, length, source, target=way.target)
      passes.append(sharding.fetch(logits))
  history = sampling.history(
    values, padded, jnp.array([len(text)]), whole[0].shape[-1]
  )
  history = sampling.remember(
    history, values, jnp.array([new], jnp.int32), jnp.array([len(new)])
  )
  row = jax.tree.map(lambda x: x[0], (values, history))
  none = jnp.zeros(0, jnp.int32)  # Nothing is drafted here.

  def process(logits):
    return np.array([sampling.process(x, *row, none) for x in logits], float)

  return process(whole), process(nudged), process(scored)


def same_bits(ways: list[Scoring]) -> bool:
  """Returns true if all ways score a text with the same bits."""
  target, weights = ways[0].target, ways[0].weights
  if any(way.weights is not weights for way in ways):
    return False
  if uniform.is_uniform(target):
    return True
  native = getattr(target.config, 'native', False)
  return native and not layouts.parting(target, weights)


def explain(
  ways: list[Scoring],
  prompt,
  values: sampling.Sampling,
  text,
  other,
  ours: bool = True,
) -> Difference:
  """Judges the first difference of two greedy continuations.

  Args:
    ways: how the two were computed, as far as it is known.
    prompt: of both.
    values: of its one row.
    text: new tokens.
    other: new tokens that differ somewhere.
    ours: whether both were computed in these ways, not by another program.

  Raises:
    ValueError: the texts are equal.
  """
  position = first_difference(text, other)
  if position is None:
    raise ValueError('the two texts are equal: there is nothing to explain')
  pair = [t[position] if position < len(t) else None for t in (text, other)]
  whole, nudged, scored = _measure(ways, prompt, text[:position], values)
  first = whole[0]
  order = np.argsort(-first, kind='stable')
  matter = [*order[:_MATTER], *(t for t in pair if t is not None)]
  matter = [t for t in matter if np.isfinite(first[t])]

  def change(a, b):
    return float(np.abs(a[..., matter] - b[..., matter]).max())

  noise = max(
    2 * change(np.concatenate([whole, scored]), first),
    _last_place(first[matter], ways),
  )
  rounding = change(whole, nudged)
  margin = None
  if None not in pair and np.isfinite(first[pair]).all():
    margin = float(first.max() - first[pair].min())
  tie = margin is not None and margin <= min(noise, _SLACK * rounding)
  tie = tie and not (ours and same_bits(ways))
  parted = parting.find(ways, prompt, text[:position]) if ours else None
  return Difference(
    position,
    (pair[0], pair[1]),
    float(first[order[0]] - first[order[1]]),
    margin,
    noise,
    rounding,
    'tie' if tie else 'bug',
    *(parted or ()),
  )
