"""Whether a drafter's memory is what reading the text again would make.

An exact rule hides a drafter that remembers wrongly: the text keeps its
distribution, and only the acceptance falls. So drafts themselves are compared.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees
from specjax.certify import other_vocabulary
from specjax.certify.tiny_models import TinyModels
from specjax.drafters import lm
from specjax.loop import generate
from specjax.models import transformer
from specjax.types import Context, Draft, Drafter, Verdict

_SLOTS = 128


def _features(tiny: TinyModels, tokens, taps):
  """The target's features [B, S, len(taps), E] of whole texts."""
  mask, positions = transformer.causal(*tokens.shape)
  out = tiny.target.forward(
    tiny.params.target, tokens, positions, None, None, mask, taps=taps
  )
  return out.taps


def gap(tiny: TinyModels, drafter: Drafter) -> float:
  """Largest difference of q between remembering and reading again.

  After steps of which row r accepted r drafted tokens.
  """
  rows = drafter.depth + 1
  random = np.random.default_rng(0)
  values, length = sampling.make(rows), np.arange(2, rows + 2)
  tokens = np.zeros((rows, _SLOTS), np.int32)
  for row, count in zip(tokens, length, strict=True):
    row[:count] = random.integers(0, tiny.vocab, count)
  accepted = np.arange(rows)
  path = np.minimum(np.arange(drafter.depth + 1), accepted[:, None])
  propose, init = jax.jit(drafter.propose), jax.jit(drafter.init)

  def read():
    ctx = Context(
      jnp.asarray(tokens), jnp.asarray(length), (), values, sampling.History()
    )
    hidden = _features(tiny, jnp.asarray(tokens), drafter.taps)
    cached = jnp.arange(_SLOTS) < jnp.asarray(length)[:, None] - 1
    cached = jnp.where(cached[..., None, None], hidden, 0)
    return ctx, hidden, init(tiny.params, ctx, cached)

  ctx, _, memory = read()
  worst = 0.0
  for turn in range(3):
    key = generate.row_keys(turn, range(rows))
    draft, memory = propose(tiny.params, memory, ctx, key)
    at = length[:, None] - 1 + path
    for row in range(rows):
      end = length[row] + accepted[row]
      tokens[row, length[row] : end] = draft.tokens[row, : accepted[row]]
      tokens[row, end] = random.integers(tiny.vocab)
    length = length + accepted + 1
    ctx, hidden, again = read()
    verdict = Verdict(
      jnp.asarray(path),
      jnp.asarray(accepted),
      jnp.asarray(tokens[np.arange(rows), length - 1]),
    )
    along = hidden[np.arange(rows)[:, None], at]
    memory = drafter.commit(tiny.params, memory, ctx, verdict, along)
    ours, theirs = (
      propose(tiny.params, state, ctx, key)[0].probs
      for state in (memory, again)
    )
    worst = max(worst, float(jnp.abs(ours - theirs)[:, 0].max()))
  return worst


def features(tiny: TinyModels, remember) -> Drafter:
  """Two tokens from the target's last feature; `remember` updates it."""
  depth = 2

  def init(params, ctx, hidden):
    del params  # Unused.
    return hidden[jnp.arange(len(ctx.length)), ctx.length - 2, 0]

  def propose(params, memory, ctx, key):
    del params  # Unused.
    batch = len(ctx.length)
    q = jax.nn.softmax(4 * memory[:, : tiny.vocab])
    probs = jnp.stack([q, q], 1)
    coins = jax.vmap(lambda k: sampling.coins(k, depth))(key)
    tokens = jax.vmap(jax.vmap(sampling.draw))(coins, probs)
    size = jnp.full(batch, depth, jnp.int32)
    return Draft(tokens, trees.chain(batch, depth), size, probs), memory

  def commit(params, memory, ctx, verdict, hidden):
    del params, ctx  # Unused.
    return jax.vmap(remember)(memory, verdict.num_accepted, hidden[:, :, 0])

  return Drafter(depth, depth, init, propose, commit, taps=(0,))


def _last_accepted(memory, accepted, hidden):
  del memory  # Unused.
  return hidden[accepted]


def _stale_after_rejection(memory, accepted, hidden):
  return jnp.where(accepted == 2, hidden[accepted], memory)


def _one_slot_off(drafter: Drafter) -> Drafter:
  def commit(*args):
    memory = drafter.commit(*args)
    moved = jax.tree.map(lambda x: jnp.roll(x, 1, axis=2), memory.state)
    return memory._replace(state=moved)

  return drafter._replace(commit=commit)


@dataclasses.dataclass(frozen=True)
class WrongMemory:
  """A drafter that remembers wrongly, and the same one without the bug."""

  name: str
  right: Callable[[TinyModels], Drafter]
  wrong: Callable[[TinyModels], Drafter]


WRONG_MEMORIES = (
  WrongMemory(
    'draft: features of before the last rejection',
    lambda tiny: features(tiny, _last_accepted),
    lambda tiny: features(tiny, _stale_after_rejection),
  ),
  WrongMemory(
    'draft: its cache is written one slot off',
    lambda tiny: lm.make(tiny.draft, 3),
    lambda tiny: _one_slot_off(lm.make(tiny.draft, 3)),
  ),
  WrongMemory(
    'draft: of a token in its own tokens only the last is read',
    other_vocabulary.drafter,
    lambda tiny: other_vocabulary.drafter(
      tiny, how=other_vocabulary.loses_pieces()
    ),
  ),
)
