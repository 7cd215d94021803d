"""Drafts that a drafter really makes, and the law that they break.

Its drafts are looked at behind texts that it has just read, and along a real
run, in which every drafted token is accepted with a chance of one half. What
the rule makes of them is multiplied out.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees, verify
from specjax.certify import counterexamples, drafter_laws, exact
from specjax.certify.tiny_models import TinyModels
from specjax.loop import generate, scoring
from specjax.types import Context, Draft, Drafter, Params, Spec

_TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
_DRAWS = 2048  # behind one text
_TRIES = 60  # texts among which a counterexample is sought


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
  """Rows of texts, what a drafter remembers of them, and many drafts.

  Attributes:
    label: when.
    ctx: B texts.
    memory: of them.
    key: [B] keys of the drafts by which memories are compared.
    drafts: of all rows, under one key after the other.
    accepted: [B] drafted tokens that the last step accepted; -1: none was made.
  """

  label: str
  ctx: Context
  memory: Any
  key: jax.Array
  drafts: Draft
  accepted: np.ndarray


class Watched:
  """A drafter on the tiny models, and its drafts.

  Args:
    tiny: the models; the drafter has its own parameters there.
    drafter: that is watched.
    quick: fewer drafts.
  """

  def __init__(self, tiny: TinyModels, drafter: Drafter, quick: bool):
    self.tiny, self.drafter = tiny, drafter
    self.rows = 64 if quick else 256
    self.turns = 24 if quick else 64
    self.propose = jax.jit(drafter.propose)
    chain = drafter.nodes == drafter.depth
    self.rule = verify.token if chain else verify.recursive

  @property
  def params(self) -> Params:
    return self.tiny.params

  def _drafts(self, ctx: Context, memory: Any, first: int) -> Draft:
    every = np.arange(self.rows)
    made = [
      self.propose(
        self.params,
        memory,
        ctx,
        generate.row_keys(first + turn, every),
      )[0]
      for turn in range(self.turns)
    ]
    return drafter_laws.join(jax.device_get(made))

  def fresh(self) -> Moment:
    """Behind texts that were just read."""
    tokens, length = drafter_laws.random_texts(self.rows, self.tiny.vocab)
    values = sampling.make(self.rows, np.resize(_TEMPERATURES, self.rows))
    ctx, memory = drafter_laws.read(
      self.drafter, self.params, tokens, length, values, target=self.tiny.target
    )
    none = np.full(self.rows, -1)
    key = generate.row_keys(0, range(self.rows))
    drafts = self._drafts(ctx, memory, 100)
    return Moment('a text that was read', ctx, memory, key, drafts, none)

  def along(self, steps: int) -> list[Moment]:
    """Behind the first steps of a run that rejects half of all tokens."""
    tokens, length = drafter_laws.random_texts(self.rows, self.tiny.vocab)
    prompts = [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]
    spec = Spec(self.tiny.target, self.drafter, verify.simulated(0.5))
    state = generate.start(
      self.params,
      prompts,
      spec=spec,
      new_tokens=24,
      key=generate.row_keys(1, range(self.rows)),
      values=sampling.make(self.rows, np.resize(_TEMPERATURES, self.rows)),
    )
    moments = []
    for step in range(1, steps + 1):
      before = np.asarray(state.length)
      state = generate.generate(self.params, state, jnp.int32(1), spec=spec)
      accepted = np.asarray(state.length) - before - 1
      ctx, memory, key = jax.tree.map(
        jnp.copy, (generate.context(state), state.drafter, state.key)
      )
      drafts = self._drafts(ctx, memory, 100 * (step + 1))
      label = f'step {step} of a run'
      moments.append(Moment(label, ctx, memory, key, drafts, accepted))
    return moments

  def gaps(self, moment: Moment) -> np.ndarray:
    """How far [B] q is from that of a text that was read anew."""
    return drafter_laws.rows_apart(*self.reread(moment))

  def reread(self, moment: Moment) -> drafter_laws.Reread:
    return drafter_laws.reread(
      self.tiny.target,
      self.drafter,
      self.params,
      moment.memory,
      moment.ctx,
      moment.key,
    )

  def one_row(self, moment: Moment, row: int) -> tuple[Context, Draft]:
    """Many drafts behind one of the texts."""
    pick = np.full(self.rows, row)
    ctx, memory = jax.tree.map(
      lambda x: x[pick] if x.ndim and len(x) == self.rows else x,
      (moment.ctx, moment.memory),
    )
    made = [
      self.propose(
        self.params,
        memory,
        ctx,
        generate.row_keys(7000 + turn, np.arange(self.rows)),
      )[0]
      for turn in range(_DRAWS // self.rows)
    ]
    return ctx, drafter_laws.join(jax.device_get(made))

  @functools.cached_property
  def _scored(self) -> Callable[..., Any]:
    """p of the rows of drafts, as the loop has it."""

    def scores(ctx, draft):
      _, logits = scoring.feed(self.tiny.target, self.params.target, ctx, draft)
      above = jax.vmap(functools.partial(trees.above, depth=self.drafter.depth))
      return sampling.distributions(
        logits, ctx.sampling, ctx.history, above(draft.parents, draft.tokens)
      )

    return jax.jit(scores)

  def first_tokens(self, ctx: Context, draft: Draft):
    """Expected and obtained distribution [V] of the next token.

    The coins of the rule are multiplied out; the drafts are those made.
    """
    tokens = draft.tokens.astype(np.int32)
    parents = draft.parents.astype(np.int32)
    # As the loop has it.
    says = np.isfinite(draft.probs).all(-1, keepdims=True)
    probs = np.where(says, draft.probs, 0)
    draft = draft._replace(tokens=tokens, parents=parents, probs=probs)
    got = np.zeros(self.tiny.vocab)
    wanted = np.zeros_like(got)
    count = len(tokens) // self.rows
    for turn in range(count):
      part = jax.tree.map(
        lambda x, t=turn: x[t * self.rows : (t + 1) * self.rows], draft
      )
      scores = self._scored(ctx, part)
      accept, rest, _ = map(np.asarray, exact.judged(self.rule, part, scores))
      exists = drafter_laws.existing(part)
      stays = np.ones(self.rows)
      for node in range(tokens.shape[1]):
        below = (part.parents[:, node] == 0) & exists[:, node]
        moves = stays * np.clip(accept[:, node], 0, 1) * below
        np.add.at(got, part.tokens[:, node], moves / len(tokens))
        stays = stays - moves
      got += (stays[:, None] * rest[:, 0]).sum(0) / len(tokens)
      wanted += np.asarray(scores.probs)[:, 0].sum(0) / len(tokens)
    return wanted, got


def ignores_keys(draft: Draft, rows: int) -> bool:
  """Whether drafts under many keys are the same, where q leaves a choice."""
  tokens = draft.tokens[:, 0].reshape(-1, rows)
  sure = draft.probs[:, 0].max(1).reshape(-1, rows)
  open_ = sure.max(0) < 0.9
  return bool(open_.any() and (tokens == tokens[0])[:, open_].all())


def broken(draft: Draft, rows: int, level: float) -> int:
  """The law that drawn drafts break; 0 where they break none.

  Args:
    draft: of `rows` texts under many keys.
    rows: B.
    level: of each test.
  """
  if drafter_laws.no_distribution(draft):
    return 5
  if ignores_keys(draft, rows):
    return 6
  found = drafter_laws.fits(draft)
  if found.least >= level:
    return 0
  marginal = min(found.token.p_value, found.rank.p_value)
  if (draft.size < draft.tokens.shape[1]).any():
    total = np.asarray(draft.probs).sum(2)
    drawn = np.abs(total - 1).max() < 1e-4
    if drawn and drafter_laws.fits(draft, whole=True).least >= level:
      return 2
  return 1 if marginal < level else 6


def _cell(draft: Draft) -> tuple[int, np.ndarray]:
  """The first node that is off behind some earlier tokens, and where.

  Returns:
    The node, and which drafts [M] have it behind the same earlier tokens.
  """
  exists, worst = drafter_laws.existing(draft), []
  off = exists & ~(np.abs(draft.probs.sum(2) - 1) <= 1e-4)
  if off.any():  # No distribution that could be drawn from.
    node = int(off.any(0).argmax())
    return node, off[:, node]
  for node in range(draft.tokens.shape[1]):
    _, group = np.unique(draft.tokens[:, :node], axis=0, return_inverse=True)
    group = group.reshape(-1)
    for number in range(group.max() + 1):
      here = (group == number) & exists[:, node]
      one = draft._replace(
        tokens=draft.tokens[here, node : node + 1],
        probs=draft.probs[here, node : node + 1],
        size=np.ones(here.sum(), int),
      )
      if here.any():
        worst.append((drafter_laws.fits(one).least, node, here))
    if worst and min(p for p, *_ in worst) < 1e-6:
      break
  if not worst:
    return 0, np.ones(len(exists), bool)
  _, node, here = min(worst, key=lambda cell: cell[0])
  return node, here


def _counted(draft: Draft, vocab: int) -> dict[str, Any]:
  """A node of many drafts beside its probabilities."""
  node, here = _cell(draft)
  drawn = np.bincount(draft.tokens[here, node], minlength=vocab)
  expected = draft.probs[here, node].sum(0)
  before = draft.tokens[here][0, :node] if here.any() else ()
  return {
    'node': node + 1,
    'behind': counterexamples.text_in_words(before),
    'q': [f'{x:.4g}' for x in draft.probs[here, node].mean(0)],
    'drafted': [int(x) for x in drawn],
    'drafted_by_q': [f'{x:.1f}' for x in expected],
    'drafts': len(draft.tokens),
    'drafts_by_size': np.bincount(draft.size).tolist(),
  }


def _simple(place: tuple[Moment, int]) -> tuple:
  """The order of texts, those that are read most easily first."""
  moment, row = place
  warm = float(moment.ctx.sampling.temperature[row])
  return int(moment.ctx.length[row]), warm != 1, warm


def smallest(
  watched: Watched, moments: list[Moment], law: int, level: float
) -> dict[str, Any]:
  """The shortest text that shows a law broken, as numbers.

  Args:
    watched: the drafter.
    moments: in which it breaks the law.
    law: one of drawn tokens.
    level: of a test.
  """
  places = [(m, row) for m in moments for row in range(watched.rows)]
  for moment, row in sorted(places, key=_simple)[:_TRIES]:
    ctx, draft = watched.one_row(moment, row)
    here = broken(draft, 1, level) == law
    if law == 6:  # Each row may have the same coins under every key.
      here = ignores_keys(draft, watched.rows) or here
    if here:
      return text_of(moment, row) | _tell(watched, ctx, draft)
  # Nowhere alone: in all texts together.
  told = _counted(moments[0].drafts, watched.tiny.vocab)
  told |= {
    'when': moments[0].label,
    'what': 'tokens drafted behind all texts, and how many are expected by q',
  }
  for name, key in (('expected', 'drafted_by_q'), ('obtained', 'drafted')):
    told[name] = {str(i): str(x) for i, x in enumerate(told[key])}
  return told


def _tell(watched: Watched, ctx: Context, draft: Draft) -> dict[str, Any]:
  wanted, got = watched.first_tokens(ctx, draft)
  keys = len(draft.tokens) // watched.rows
  by_row = draft.tokens.reshape(keys, watched.rows, -1).swapaxes(0, 1)
  different = min(len(np.unique(row, axis=0)) for row in by_row)
  return {
    'rule': 'token' if watched.rule is verify.token else 'recursive',
    **_counted(draft, watched.tiny.vocab),
    'different_drafts': f'{different} under {keys} keys, in the worst row',
    'what': 'the next token, the coins of the rule multiplied out',
    'expected': {str(i): f'{x:.4f}' for i, x in enumerate(wanted)},
    'obtained': {str(i): f'{x:.4f}' for i, x in enumerate(got)},
    'total_variation': f'{exact.total_variation(wanted, got):.4f}',
    'sampling_error': f'{0.5 / np.sqrt(len(draft.tokens)):.4f}',
  }


def text_of(moment: Moment, row: int) -> dict[str, Any]:
  """Where a draft is made."""
  length = int(moment.ctx.length[row])
  accepted = int(moment.accepted[row])
  told: dict[str, Any] = {
    'text': counterexamples.text_in_words(moment.ctx.tokens[row, :length]),
    'temperature': float(moment.ctx.sampling.temperature[row]),
    'when': moment.label,
  }
  return told | ({'accepted_before': accepted} if accepted >= 0 else {})
