"""The trial of one drafter: its laws, and the texts of its compiled loop.

Drafts are looked at behind texts that the drafter has just read, and along a
real run in which every drafted token is accepted with a chance of one half.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, verify
from specjax.bench import user_drafters
from specjax.bench.config import Certificate
from specjax.certify import exact, laws, planted
from specjax.certify.tiny_models import TinyModels
from specjax.drafters.shapes.step_model import Memory
from specjax.errors import UserError, need
from specjax.loop import generate, scoring
from specjax.stats import fit_tests
from specjax.types import Context, Draft, Drafter, Spec

_STEPS = 3  # of the run along which drafts are looked at
_APART = 1e-4  # difference of q that rounding does not make
_DRAWN = (5, 6, 2, 1)  # laws of tokens that are drawn, the plainest first
_TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
_DRAWS = 2048  # behind one text
_TRIES = 60  # texts among which a counterexample is sought


@dataclasses.dataclass(eq=False)
class Moment:
  """Rows of texts, and what a drafter remembers of them.

  Attributes:
    watched: the drafter.
    label: when.
    ctx: B texts.
    memory: what is remembered of them.
    key: [B] keys of the drafts by which memories are compared.
    first: number of the first key of the other drafts.
    accepted: [B] drafted tokens that the last step accepted; -1: no step.
  """

  watched: 'Watched'
  label: str
  ctx: Context
  memory: Any
  key: jax.Array
  first: int
  accepted: np.ndarray

  @functools.cached_property
  def drafts(self) -> Draft:
    """Drafts of all rows, under one key after the other."""
    watched = self.watched
    return watched.draw(self.ctx, self.memory, self.first, watched.turns)

  @functools.cached_property
  def reread(self) -> tuple[Draft, Draft]:
    """Drafts by the memory, and by having read the text anew."""
    w = self.watched
    return laws.reread(
      w.tiny.target, w.drafter, w.tiny.params, self.memory, self.ctx, self.key
    )

  @property
  def gaps(self) -> np.ndarray:
    return laws.rows_apart(*self.reread)


class Watched:
  """A drafter whose parameters are those of the tiny models' draft."""

  def __init__(self, tiny: TinyModels, drafter: Drafter, quick: bool):
    self.tiny, self.drafter = tiny, drafter
    self.rows = 64 if quick else 256
    self.turns = 24 if quick else 64
    self.propose = jax.jit(drafter.propose)
    self.values = sampling.make(self.rows, np.resize(_TEMPERATURES, self.rows))
    self.texts = laws.random_texts(self.rows, tiny.vocab)

  def draw(self, ctx: Context, memory: Any, first: int, turns: int) -> Draft:
    every = np.arange(self.rows)
    keys = (generate.row_keys(first + turn, every) for turn in range(turns))
    params = self.tiny.params
    return laws.join([self.propose(params, memory, ctx, k)[0] for k in keys])

  def fresh(self) -> Moment:
    """Behind texts that were just read."""
    target, params = self.tiny.target, self.tiny.params
    ctx, memory = laws.read(
      self.drafter, params, *self.texts, self.values, target=target
    )
    key, none = generate.row_keys(0, range(self.rows)), np.full(self.rows, -1)
    return Moment(self, 'a text that was read', ctx, memory, key, 100, none)

  def along(self, steps: int) -> list[Moment]:
    """Behind the first steps of a run that rejects half of all tokens."""
    prompts = [row[:n].tolist() for row, n in zip(*self.texts, strict=True)]
    spec = Spec(self.tiny.target, self.drafter, verify.simulated(0.5))
    state = generate.start(
      self.tiny.params,
      prompts,
      spec=spec,
      new_tokens=24,
      key=generate.row_keys(1, range(self.rows)),
      values=self.values,
    )
    moments = []
    for step in range(1, steps + 1):
      before = np.asarray(state.length)
      state = generate.generate(
        self.tiny.params, state, jnp.int32(1), spec=spec
      )
      accepted = np.asarray(state.length) - before - 1
      ctx, memory, key = jax.tree.map(
        jnp.copy, (generate.context(state), state.drafter, state.key)
      )
      label, first = f'step {step} of a run', 100 * (step + 1)
      moments.append(Moment(self, label, ctx, memory, key, first, accepted))
    return moments


def memory_gap(tiny: TinyModels, drafter: Drafter) -> float:
  """Largest difference of q between remembering a run and reading it again."""
  moments = Watched(tiny, drafter, quick=True).along(_STEPS)
  return float(max(moment.gaps.max() for moment in moments))


def _ignores_keys(draft: Draft, rows: int) -> bool:
  """Returns True where many keys draft alike though q leaves a choice."""
  tokens = draft.tokens[:, 0].reshape(-1, rows)
  sure = draft.probs[:, 0].max(1).reshape(-1, rows)
  unsure = sure.max(0) < 0.9
  return bool(unsure.any() and (tokens == tokens[0])[:, unsure].all())


def broken(draft: Draft, rows: int, level: float) -> int:
  """The law that drawn drafts break; 0 where they break none.

  Args:
    draft: drafts of `rows` texts under many keys.
    rows: B.
    level: false-alarm rate of each test.
  """
  if laws.no_distribution(draft):
    return 5
  if _ignores_keys(draft, rows):
    return 6
  found = laws.fits(draft)
  if found.least >= level:
    return 0
  marginal = min(found.token.p_value, found.rank.p_value)
  if (draft.size < draft.tokens.shape[1]).any():
    total = np.asarray(draft.probs).sum(2)
    drawn = np.abs(total - 1).max() < 1e-4
    if drawn and laws.fits(draft, whole=True).least >= level:
      return 2
  return 1 if marginal < level else 6


# Counterexamples


def _text(moment: Moment, row: int) -> dict[str, Any]:
  length, accepted = int(moment.ctx.length[row]), int(moment.accepted[row])
  found: dict[str, Any] = {
    'text': laws.text_in_words(moment.ctx.tokens[row, :length]),
    'temperature': float(moment.ctx.sampling.temperature[row]),
    'when': moment.label,
  }
  return found | ({'accepted_before': accepted} if accepted >= 0 else {})


def _worst_node(draft: Draft) -> tuple[int, np.ndarray]:
  """The first node that is off, and which drafts [M] have it.

  They have the same tokens before that node.
  """
  exists, worst = laws.existing(draft), []
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
        worst.append((laws.fits(one).least, node, here))
    if worst and min(p for p, *_ in worst) < 1e-6:
      break
  if not worst:
    return 0, np.ones(len(exists), bool)
  _, node, here = min(worst, key=lambda cell: cell[0])
  return node, here


def _counted(draft: Draft, vocab: int) -> dict[str, Any]:
  """Tokens of a node in many drafts, beside its probabilities."""
  node, here = _worst_node(draft)
  drawn = np.bincount(draft.tokens[here, node], minlength=vocab)
  expected = draft.probs[here, node].sum(0)
  before = draft.tokens[here][0, :node] if here.any() else ()
  return {
    'node': node + 1,
    'behind': laws.text_in_words(before),
    'q': [f'{x:.4g}' for x in draft.probs[here, node].mean(0)],
    'different_drafts': len(np.unique(draft.tokens, axis=0)),
    'drafts_by_size': np.bincount(draft.size).tolist(),
    'what': f'how often each token is drafted, in {here.sum()} drafts',
    'expected': {str(i): f'{x:.1f}' for i, x in enumerate(expected)},
    'obtained': {str(i): str(x) for i, x in enumerate(drawn)},
  }


def smallest(moments: list[Moment], law: int, level: float) -> dict[str, Any]:
  """The shortest text that shows a law of drawn tokens broken, as numbers."""
  watched = moments[0].watched

  def simple(place: tuple[Moment, int]) -> tuple:
    moment, row = place
    warm = float(moment.ctx.sampling.temperature[row])
    return int(moment.ctx.length[row]), warm != 1, warm

  places = [(m, row) for m in moments for row in range(watched.rows)]
  for moment, row in sorted(places, key=simple)[:_TRIES]:
    pick = np.full(watched.rows, row)
    ctx, memory = jax.tree.map(
      lambda x, pick=pick: x[pick] if x.ndim and len(x) == len(pick) else x,
      (moment.ctx, moment.memory),
    )
    draft = watched.draw(ctx, memory, 7000, _DRAWS // watched.rows)
    here = broken(draft, 1, level) == law
    if law == 6:  # Each row may have the same coins under every key.
      here = _ignores_keys(draft, watched.rows) or here
    if here:
      return _text(moment, row) | _counted(draft, watched.tiny.vocab)
  # Nowhere alone, but in all texts together.
  found = _counted(moments[0].drafts, watched.tiny.vocab)
  return {'when': moments[0].label, **found}


def _forgotten(moments: list[Moment]) -> dict[str, Any] | None:
  """The smallest text after which the memory is wrong, if there is one."""
  places = [
    (int(moment.ctx.length[row]), i, int(row))
    for i, moment in enumerate(moments)
    for row in np.flatnonzero(moment.gaps > _APART)
  ]
  if not places:
    return None
  _, i, row = min(places)
  found = _text(moments[i], row)
  found['what'] = 'what is drafted, by its memory and by reading the text again'
  ours, theirs = (
    jax.tree.map(lambda x: x[row], part) for part in moments[i].reread
  )
  if ours.probs is None:
    found['expected'], found['obtained'] = (
      {'drafted': laws.text_in_words(x.tokens[: x.size])}
      for x in (theirs, ours)
    )
    return found
  node = int(np.argmax(np.abs(ours.probs - theirs.probs).max(1) > _APART))
  found['node'] = node + 1
  found['behind'] = laws.text_in_words(ours.tokens[:node])
  found['expected'], found['obtained'] = (
    {str(i): f'{q:.4f}' for i, q in enumerate(x.probs[node])}
    for x in (theirs, ours)
  )
  far = exact.total_variation(ours.probs[node], theirs.probs[node])
  return found | {'total_variation': f'{far:.4f}'}


# The trial


def _check(who: str, tiny: TinyModels, drafter: Drafter) -> None:
  """Checks shapes, programs and numbers, before anything is sampled."""
  named = {who: (drafter, tiny.params.drafter)}
  longest = len(tiny.prompt) + tiny.new
  with laws.running(who, 'a draft'):
    user_drafters.check_shapes(tiny.target, named, tiny.prompt, longest)
    fault = laws.not_fixed(tiny.target, drafter, tiny.params)
    need(not fault, f'{who}: {fault}; see specjax.types.Drafter')
    user_drafters.check_numbers(
      (tiny.target, tiny.params.target), named, tiny.prompt
    )


def _texts(x: Certificate, watched: Watched, level: float) -> list[laws.Row]:
  """The texts of the compiled loop beside the target's, by setting."""
  tiny, drafter = watched.tiny, watched.drafter
  chain = drafter.nodes == drafter.depth
  rule = verify.token if chain else verify.recursive
  spec = Spec(tiny.target, drafter, rule, tiny.eos)
  seen = tiny.sample(spec, x.rows, x.rounds, x.seed)
  rows = []
  for setting, counts in seen.items():
    texts = counts.sum(1)
    far = exact.total_variation(texts / texts.sum(), tiny.plain[setting])
    rows.append(
      laws.row_of(
        'texts',
        setting=setting,
        samples=int(texts.sum()),
        p_value=fit_tests.fit(texts, tiny.plain[setting]).p_value,
        level=level,
        total_variation=far,
      )
    )
  return rows


def _planted(moments: list[Moment], level: float, remembers: bool):
  """Rows of bugs in this very drafter."""
  right, rows = moments[0].drafts, moments[0].watched.rows
  wrong = planted.in_drafts(right, rows) if right.probs is not None else {}
  for name, draft in wrong.items():
    changes = any(
      (a != b).any()
      for a, b in zip(draft[:4], right[:4], strict=True)
      if a is not None
    )
    law = broken(draft, rows, level) if changes else 0
    detail = f'breaks law {law}' if law else ''
    yield laws.planted_row(name, changes, bool(law), detail)
  if remembers:
    old, new = moments[1:3]
    stale = dataclasses.replace(new, memory=old.memory)
    leaves = (jax.tree.leaves(m.memory) for m in (old, new))
    changes = not all(map(np.array_equal, *leaves))
    apart = float(stale.gaps.max()) if changes else 0.0
    name = 'the memory is not told of a step'
    yield laws.planted_row(
      name, changes, apart > _APART, f'q off by {apart:.2g}'
    )


def try_drafter(
  x: Certificate,
  who: str,
  tiny: TinyModels,
  drafter: Drafter,
  add: Callable[[laws.Row], None],
) -> laws.Verdict:
  """Tries a drafter of one draft length.

  Args:
    x: the settings.
    who: the field and the name of what is on trial.
    tiny: the models, with the drafter's parameters.
    drafter: the drafter.
    add: takes every row as soon as it is made.

  Raises:
    UserError: the drafter does not keep the contract of `types.Drafter`.
  """
  verdict = laws.Verdict()
  _check(who, tiny, drafter)
  add(laws.law_row(4, True))
  watched = Watched(tiny, drafter, x.quick)
  with laws.running(who, 'a draft'):
    moments = [watched.fresh(), *watched.along(_STEPS)]
    for moment in moments:
      try:
        scoring.check_numbers(drafter, moment.drafts, tiny.vocab)
      except scoring.DraftError as error:
        raise UserError(f'{who}: {error}, behind {moment.label}') from error
  # Of each test: three of the drafts of every moment, and of every text.
  level = x.level / (6 * len(moments) + 20)
  drawn = moments[0].drafts.probs is not None
  where: dict[int, list[Moment]] = {law: [] for law in _DRAWN}
  for moment in moments if drawn else ():
    if law := broken(moment.drafts, watched.rows, level):
      where[law].append(moment)
  for law in sorted(_DRAWN):
    detail = f'behind {where[law][0].label}' if where[law] else ''
    held = not where[law] if drawn else None
    add(laws.law_row(law, held, detail if drawn else 'its tokens are chosen'))
  learns = drafter.learns and not isinstance(moments[0].memory, Memory)
  forgotten = None if learns else _forgotten(moments[1:])
  why = 'it learns from verdicts' if learns else ''
  add(laws.law_row(3, None if learns else forgotten is None, why))
  texts = _texts(x, watched, level)
  for row in texts:
    add(row)
  off = [r for r in texts if r['p_value'] < level]
  lost = f'its texts differ in {len(off)} of {len(texts)} settings'
  for law in _DRAWN:
    if where[law] and verdict.exact:
      begin = f'behind {where[law][0].label}'
      verdict.loses(law, f'{begin}; {lost}' if off else begin)
      verdict.counterexample = smallest(where[law], law, level)
  if verdict.exact and forgotten:
    if off:
      verdict.loses(3, lost)
    else:
      verdict.breaks(3, 'its texts keep their distribution, drafts change')
    verdict.counterexample = forgotten
  elif verdict.exact and off:
    worst = min(off, key=lambda r: r['p_value'])
    verdict.lossy(
      f'total variation {worst["total_variation"]:.3g} at these settings: '
      f'{worst["setting"]}, p = {worst["p_value"]:.1g}'
    )
  if verdict.exact:
    bugs = list(_planted(moments, level, not learns and not forgotten))
    for row in bugs:
      add(row)
    verdict.require_found(bugs)
  return verdict
