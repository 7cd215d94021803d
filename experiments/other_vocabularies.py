"""What does a draft's own vocabulary cost, beside that of the target?

A draft step is all that a drafter does in a step of the loop: it drafts gamma
tokens, and is told that two thirds of them were accepted. Only the drafter
runs, on made-up texts. Its model drafts, with the same sizes,

  the target's tokens   which needs no tables
  as many of its own    of which nine of ten are the target's
  half as many          likewise: its output layer is half as large

Of its own tokens it drafts texts that have no others, and texts of which one
token in ten is spelled by two to four of its pieces. Such a token is never a
drafted one: with two of three accepted, it ends three steps in ten.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.step_timing import (
  POSITIONS,
  Bench,
  Timed,
  for_kernel,
  milliseconds,
  random_weights,
  take_turns,
)
from specjax import sampling
from specjax.checkpoints.vocabularies import Tables, reading
from specjax.drafters import lm
from specjax.drafters.shapes import chain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.training.train_pair import model_of
from specjax.types import Context, Drafter, History, Params, Verdict

_SHARED = 0.9  # of the draft's tokens
_SPELLED = 0.1  # of the tokens of a text, where some are
_PIECES = 2, 5  # of these: at least, and fewer than


def tables(vocab: int, own: int, seed: int) -> Tables:
  """Tables of a draft that has some of the target's tokens, in any order.

  Args:
    vocab: V, of the target.
    own: V_d, of the draft.
    seed: of the order.
  """
  random = np.random.default_rng(seed)
  shared = random.permutation(vocab)[: int(_SHARED * own)]
  places = np.full(vocab, own, np.int32)
  places[shared] = random.permutation(own)[: len(shared)]
  known = places < own
  counts = np.where(known, 1, random.integers(*_PIECES, vocab))
  starts = np.concatenate([[0], np.cumsum(counts)])
  pieces = random.integers(0, own, starts[-1])
  pieces[starts[:-1][known]] = places[known]
  return Tables(*(jnp.asarray(x, jnp.int32) for x in (places, pieces, starts)))


def text(
  known: np.ndarray, shape: tuple[int, int], ends: np.ndarray, seed: int
) -> jax.Array:
  """Texts [B, S] whose tokens at `ends` are spelled, where they are not known.

  Args:
    known: [V] whether the draft has a token.
    shape: B and S.
    ends: [S] chance that a token is one that it has not.
    seed: of the texts.
  """
  random = np.random.default_rng(seed)
  tokens = random.choice(np.flatnonzero(known), shape)
  lacks = np.flatnonzero(~known)
  if len(lacks):
    spelled = random.random(shape) < ends
    tokens = np.where(spelled, random.choice(lacks, shape), tokens)
  return jnp.asarray(tokens, jnp.int32)


@functools.partial(jax.jit, static_argnames='drafter', donate_argnames='memory')
def steps(params: Params, memory: Any, ctx: Context, keys, count, *, drafter):
  """Draft steps, each behind what was accepted of the one before."""
  batch, depth = len(ctx.length), drafter.depth
  accepted = accepted_of(depth)
  path = jnp.broadcast_to(jnp.arange(depth + 1), (batch, depth + 1))

  def turn(carry):
    i, memory, length, total = carry
    at = ctx._replace(length=length)
    draft, memory = drafter.propose(params, memory, at, keys)
    verdict = Verdict(path, jnp.full(batch, accepted), draft.tokens[:, 0])
    length = length + accepted + 1
    at = at._replace(length=length)
    memory = drafter.commit(params, memory, at, verdict, None)
    # What was drawn is looked at, so that the compiler leaves nothing out.
    return i + 1, memory, length, total + draft.tokens.sum() + draft.probs.sum()

  zero = jnp.zeros((), jnp.int32), memory, ctx.length, jnp.zeros(())
  _, memory, _, total = jax.lax.while_loop(
    lambda carry: carry[0] < count, turn, zero
  )
  return memory, total


def accepted_of(depth: int) -> int:
  """Drafted tokens that are accepted."""
  return 2 * depth // 3


class Steps:
  """Draft steps of a drafter on a text, compiled; called, it takes them."""

  def __init__(self, drafter: Drafter, own: Any, ctx: Context, count: int):
    self.drafter, self.ctx, self.count = drafter, ctx, count
    self.params = Params(None, own)
    self.keys = generate.row_keys(0, range(len(ctx.length)))
    start = jax.jit(lambda params, ctx: drafter.init(params, ctx, None))
    self.memory = start(self.params, ctx)
    self.several = jnp.asarray(count, jnp.int32)
    self.compiled = steps.lower(*self._arguments(), drafter=drafter).compile()
    self.first = jax.jit(lambda memory: jax.tree.map(jnp.copy, memory))
    self.kept = self.first(self.memory)
    self()

  def _arguments(self):
    return self.params, self.memory, self.ctx, self.keys, self.several

  def __call__(self) -> Timed:
    self.memory = jax.block_until_ready(self.first(self.kept))
    begin = time.perf_counter()
    self.memory, total = self.compiled(*self._arguments())
    jax.block_until_ready(total)
    taken = time.perf_counter() - begin
    return Timed(taken / self.count, accepted_of(self.drafter.depth) + 1)


def ways(bench: Bench, vocab: int, batch: int) -> dict[tuple, Steps]:
  """Draft steps of every kind, by kind and by texts."""
  x, gamma = bench.x, bench.x.gamma
  each = accepted_of(gamma) + 1
  slots = caches.round_slots(x.used + x.steps * each + gamma + 1)
  place = np.arange(slots) - x.used
  often = np.where((place >= 0) & ((place + 1) % each == 0), _SPELLED * each, 0)
  often = np.where(place < 0, _SPELLED, often)
  made = {}
  for name, own in (('same', vocab), ('as many', vocab), ('half', vocab // 2)):
    model = model_of(x.draft, own, POSITIONS)
    weights = random_weights(model, x.seed, jnp.dtype(x.dtype))
    model, weights = for_kernel(model, weights)
    walker, known = lm.walk(model), np.ones(vocab, bool)
    if name != 'same':
      found = tables(vocab, own, x.seed)
      known = np.asarray(found.places) < own
      sizes = reading.sizes_of(found)
      walker = lm.walk(model, reading.other(sizes))
      weights = reading.Spelled(weights, found)
    for texts, chance in (('shared', 0 * often), ('spelled', often)):
      if name == 'same' and texts == 'spelled':
        continue
      ctx = Context(
        text(known, (batch, slots), chance, x.seed),
        jnp.full(batch, x.used, jnp.int32),
        (),
        sampling.make(batch, 0.0),
        History(),
      )
      drafter = chain.make(walker, gamma)
      made[name, texts] = Steps(drafter, weights, ctx, x.steps)
  return made


def draft_step(bench: Bench) -> list[dict]:
  """Draft steps with tokens of their own over those with the target's."""
  x = bench.x
  rows = []
  for vocab in x.vocabularies:
    for batch in x.batches:
      kinds = ways(bench, vocab, batch)
      turns = take_turns(kinds, x.repeats)
      base = np.array([r.seconds for r in turns['same', 'shared']])
      rows += [
        {
          'sweep': 'own vocabulary',
          'size': vocab,
          'batch': batch,
          'way': kind,
          'texts': texts,
          **milliseconds(runs),
          # Of what was measured one after the other.
          'ratio': float(np.median([r.seconds for r in runs] / base)),
        }
        for (kind, texts), runs in turns.items()
      ]
      jax.clear_caches()
  return rows
