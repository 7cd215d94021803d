"""A drafter that learns from what it drafts for, while it drafts.

Each round decodes new prompts with the drafter as it is, and then trains it on
the texts of the last rounds (Liu et al., 2023, arXiv:2310.07177): from the
target's distribution at every place of them. The rule is
exact, so the texts are the target's whatever the drafter has learned. The
drafter of the first round drafts for the same prompts beside it: alpha over
time, paired on prompts.
"""

import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np

from specjax import checkpoints, prompts
from specjax.arguments import misfit
from specjax.drafters.heads.trainable import Trainable
from specjax.errors import need
from specjax.models.cache import round_slots
from specjax.prompts import conversations
from specjax.stats import metrics
from specjax.stats.folders import write_text
from specjax.training import (
  data,
  folders,
  generated,
  held_out,
  train_heads,
)
from specjax.training.optimize import train
from specjax.training.recipes import HeldOut, Online, need_positions
from specjax.types import Drafter

ROUNDS = 'rounds'


def check(x: Online) -> None:
  """Checks what needs no weights.

  Raises:
    UserError: names the field and the remedy.
  """
  x.check()
  prompts.check(x.prompts)
  conversations.check(x.prompts)
  train_heads.check_names(x)


def shrink(x: Online) -> None:
  """A toy version of a recipe that shows that every stage runs."""
  x.folder += '-quick'
  x.rounds, x.updates, x.prompts.count, x.new_tokens = 3, 2, 4, 8
  x.prompts.length, x.depth = 16, min(x.depth, 4)
  x.optimization.shrink(6, 16)


def begin(x: Online, head: Trainable, m: Any) -> Any:
  """The weights that the first round drafts with.

  Raises:
    UserError: those of `start` are of other sizes than `options`.
  """
  key = jax.random.key(x.seed + 4)
  if not x.start:
    return head.init(key, m.weights)
  known = functools.partial(checkpoints.fingerprint, x.target)
  made = train_heads.read(head, x.start, known)
  wrong = misfit(made, jax.eval_shape(head.init, key, m.weights))
  need(
    not wrong,
    f'start: {x.start} has other sizes than options give: {wrong}; give the '
    'options that it was trained with',
  )
  return made


class Rounds:
  """Texts of the rounds, each kept in a file of its own.

  Args:
    m: the target, its tokenizer and the recipe.
    drafter: chain that drafts.
    first: weights of the first round.
    folder: of the files.
  """

  def __init__(self, m, drafter: Drafter, first: Any, folder: pathlib.Path):
    self.m, self.x = m, m.recipe
    self.drafter, self.first, self.folder = drafter, first, folder
    x = self.x
    per_round = x.prompts.count
    x.prompts.count = per_round * x.rounds
    read = (m.target.config.max_positions, drafter.positions)
    room = min(filter(None, read)) - x.new_tokens
    chosen = prompts.collect(x.prompts, m.tokenizer, room, x.seed, x.new_tokens)
    x.prompts.count = per_round
    texts = [text for one in chosen.values() for text in one.texts]
    # Of several domains the one comes after the other.
    self.size = len(texts) // x.rounds
    need(
      self.size,
      f'prompts: there are {len(texts)} for {x.rounds} rounds: give more, or '
      'lower rounds',
    )
    self.texts = texts
    longest = max(map(len, texts)) + x.new_tokens
    # A step may reach beyond the last token.
    self.longest = round_slots(longest + drafter.depth + 1 + drafter.beyond)

  def _decode(self, number: int, weights: Any) -> dict[str, np.ndarray]:
    """The texts of a round, by a drafter, and what was accepted."""
    x = self.x
    texts = self.texts[number * self.size : (number + 1) * self.size]
    held = HeldOut(
      new_tokens=x.new_tokens,
      temperatures=(x.temperature,),
      depth=x.depth,
      seed=x.seed + number,
    )
    trial = held_out.Trial(
      self.m.target, self.m.weights, {'round': texts}, held
    )
    # One program for all rounds: their buffers are of one size.
    state = trial.decode(self.drafter, weights, slots=self.longest)
    state = jax.device_get(state)
    width = state.tokens.shape[1]
    tokens = np.zeros((self.size, max(self.longest, width)), np.int32)
    tokens[:, :width] = state.tokens
    return {
      'tokens': tokens,
      'start': state.start,
      'length': state.length,
      'overlap': state.counts.overlap,
      'steps': state.counts.histogram.sum(1),
      'emitted': state.counts.tokens,
      'calls': state.counts.target_calls,
    }

  def get(self, number: int, weights: Any) -> dict[str, np.ndarray]:
    """A round as it was; it is decoded where it is not there yet."""
    path = self.folder / f'{number:06d}.npz'
    if not path.exists():
      found = self._decode(number, weights)
      before = self._decode(number, self.first)
      found |= {f'first_{k}': v for k, v in before.items()}
      data.write_arrays('folder', path, found)
    return data.read_arrays('folder', path)

  def batch(self, step: int, weights: Any) -> dict[str, Any]:
    """Windows of the last rounds; the round of this step among them."""
    x, o = self.x, self.x.optimization
    number = step // x.updates
    self.get(number, weights)
    kept = [
      self.get(i, weights)
      for i in range(max(0, number - x.memory + 1), number + 1)
    ]
    rng = np.random.default_rng((x.seed, step))
    tokens = np.zeros((o.batch, o.length), np.int32)
    counts = np.zeros((o.batch, o.length), np.float32)
    for row in range(o.batch):
      one = kept[rng.integers(len(kept))]
      which = rng.integers(self.size)
      start, end = int(one['start'][which]), int(one['length'][which])
      # A place of the answer is in the window, and what follows it.
      low = max(0, min(start - 1, end - 2))
      high = max(low, end - o.length)
      first = int(rng.integers(max(0, low - o.length + 2), high + 1))
      ids = one['tokens'][which, first : min(end, first + o.length)]
      tokens[row, : len(ids)] = ids
      counts[row, max(start - 1 - first, 0) : len(ids) - 1] = 1
    return {'tokens': tokens, 'counts': counts, 'step': np.int32(step)}


def line_of(number: int, found: dict[str, np.ndarray]) -> dict[str, Any]:
  """Acceptance of a round and of the first drafter, with intervals."""

  def both(name, numerator, denominator, most):
    told = {}
    for field, before in ((name, ''), (f'{name}_first', 'first_')):
      one = metrics.ratio(
        found[before + numerator], found[before + denominator]
      ).clipped(0.0, most)
      told |= {field: one.value, f'{field}_ci': one.interval}
    return told

  rows = (found[k] for k in ('overlap', 'steps'))
  first = (found[f'first_{k}'] for k in ('overlap', 'steps'))
  more = metrics.estimate(lambda a, b, c, d: a / b - c / d, *rows, *first)
  return {
    'round': number,
    **both('alpha', 'overlap', 'steps', 1.0),
    **both('tau', 'emitted', 'calls', np.inf),
    'alpha_gained': more.value,
    'alpha_gained_ci': more.interval,
  }


def main(x: Online) -> dict[str, Any]:
  if x.quick:
    shrink(x)
  check(x)
  asked = {'optimization.length': x.optimization.length}
  generated.check_target(x, asked)
  folder = pathlib.Path(x.folder)
  folders.claim(folder, x)
  m = generated.read_target(x)
  head = train_heads.make(x, m.target)
  drafter = head.drafter(x.depth)
  need_positions(drafter.positions, 'the drafter has', asked)
  first = begin(x, head, m)
  rounds = Rounds(m, drafter, first, folder / ROUNDS)
  loss = train_heads.recipe_loss(m, head)
  o, batch = x.optimization, rounds.batch
  params = train('online', folder, o, first, loss, m.weights, batch)
  lines = [line_of(i, rounds.get(i, params)) for i in range(x.rounds)]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  write_text(folder / 'rounds.jsonl', text, 'folder')
  for line in lines:
    print(json.dumps(line))
  path = train_heads.save('online', m, head, params)
  return {'head': str(path)} | lines[-1]
