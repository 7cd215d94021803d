"""The trial of one drafter: its laws, and the texts of its compiled loop."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from specjax.bench import user_drafters
from specjax.bench.config import Certificate
from specjax.certify import counterexamples, drafter_laws, exact
from specjax.certify.case_rows import Row, row_of
from specjax.certify.tiny_models import TinyModels
from specjax.certify.verdicts import (
  Refusing,
  Verdict,
  law_row,
  need_seen,
  planted_row,
)
from specjax.certify.watched_drafts import (
  Moment,
  Watched,
  broken,
  smallest,
  text_of,
)
from specjax.drafters.shapes.step_model import Memory
from specjax.errors import UserError, need
from specjax.loop import scoring
from specjax.stats import fit_tests
from specjax.types import Draft, Drafter, Spec

_STEPS = 3  # of the run along which drafts are looked at
_APART = 1e-4  # difference of q that rounding does not make
_DRAWN = (5, 6, 2, 1)  # laws of tokens that are drawn, the plainest first


def check(who: str, tiny: TinyModels, drafter: Drafter) -> None:
  """Checks shapes, programs and numbers, before anything is sampled.

  Args:
    who: the field and the name of the drafter.
    tiny: the models, with the drafter's parameters.
    drafter: of one draft length.

  Raises:
    UserError: it does not keep the contract of `types.Drafter`.
  """
  named = {who: (drafter, tiny.params.drafter)}
  longest = len(tiny.prompt) + tiny.new
  with Refusing(who, 'a draft'):
    user_drafters.check_shapes(tiny.target, named, tiny.prompt, longest)
    fault = drafter_laws.not_fixed(tiny.target, drafter, tiny.params)
    need(not fault, f'{who}: {fault}; see specjax.types.Drafter')
    user_drafters.check_numbers(
      (tiny.target, tiny.params.target), named, tiny.prompt
    )


def _check_drafts(who: str, watched: Watched, moments: list[Moment]) -> None:
  """Checks the numbers of every draft; raises a UserError likewise."""
  for moment in moments:
    try:
      scoring.check_numbers(watched.drafter, moment.drafts, watched.tiny.vocab)
    except scoring.DraftError as error:
      raise UserError(f'{who}: {error}, behind {moment.label}') from error


def _level(x: Certificate, moments: list[Moment]) -> float:
  """Of each test: three of the drafts of every moment, and of every text."""
  return x.level / (6 * len(moments) + 20)


def _memory(watched: Watched, moments: list[Moment]) -> tuple[bool, Any]:
  """Whether law 3 holds, and otherwise the smallest text that shows it."""
  worst = None
  for moment in moments[1:]:
    found = watched.reread(moment)
    apart = drafter_laws.rows_apart(*found)
    for row in np.flatnonzero(apart > _APART):
      place = int(moment.ctx.length[row]), row, moment, found
      worst = min(worst or place, place, key=lambda x: x[:1])
  if worst is None:
    return True, None
  _, row, moment, found = worst
  told = text_of(moment, row)
  ours, theirs = (jax.tree.map(lambda x: x[row], part) for part in found)
  told['what'] = 'what is drafted, by its memory and by reading the text again'
  if ours.probs is None:
    told['expected'], told['obtained'] = (
      {'drafted': counterexamples.text_in_words(x.tokens[: x.size])}
      for x in (theirs, ours)
    )
    return False, told
  apart = np.abs(ours.probs - theirs.probs).max(1)
  node = int(np.argmax(apart > _APART))
  told['node'] = node + 1
  told['behind'] = counterexamples.text_in_words(ours.tokens[:node])
  told['expected'], told['obtained'] = (
    {str(i): f'{q:.4f}' for i, q in enumerate(x.probs[node])}
    for x in (theirs, ours)
  )
  far = exact.total_variation(ours.probs[node], theirs.probs[node])
  told['total_variation'] = f'{far:.4f}'
  return False, told


def _texts(x: Certificate, watched: Watched, level: float) -> list[Row]:
  """The texts of the compiled loop beside the target's, by setting."""
  tiny = watched.tiny
  spec = Spec(tiny.target, watched.drafter, watched.rule, tiny.eos)
  seen = tiny.sample(spec, x.rows, x.rounds, x.seed)
  rows = []
  with jax.enable_x64(True):
    plain = tiny.plain
  for setting, counts in seen.items():
    texts = counts.sum(1)
    fit = fit_tests.fit(texts, plain[setting])
    rows.append(
      row_of(
        'texts',
        setting=setting,
        samples=int(texts.sum()),
        p_value=fit.p_value,
        level=level,
        total_variation=exact.total_variation(
          texts / texts.sum(), plain[setting]
        ),
      )
    )
  return rows


def _changed(draft: Draft, rows: int) -> dict[str, Draft]:
  """Drafts with planted bugs."""
  q = np.take_along_axis(draft.probs, draft.tokens[..., None], 2)[..., 0]
  kept = np.cumprod(q > 0.4, 1).sum(1)
  first = np.tile(np.arange(rows), len(draft.tokens) // rows)
  return {
    'a drawn token is dropped for being unlikely': draft._replace(
      size=np.minimum(draft.size, kept).astype(draft.size.dtype)
    ),
    'the likeliest token is drafted, q is reported': draft._replace(
      tokens=draft.probs.argmax(2).astype(draft.tokens.dtype)
    ),
    # Temperatures come in turns of four.
    'the probabilities are those of another text': draft._replace(
      probs=np.roll(draft.probs, 4, 0)
    ),
    'every draft has the same coins': jax.tree.map(lambda x: x[first], draft),
  }


def _planted(
  watched: Watched, moments: list[Moment], level: float, remembers: bool
) -> list[Row]:
  """Whether bugs in this very drafter are seen, where they change anything."""
  rows, right = [], moments[0].drafts
  wrong = _changed(right, watched.rows) if right.probs is not None else {}
  for name, draft in wrong.items():
    changes = any(
      (a != b).any()
      for a, b in zip(draft[:4], right[:4], strict=True)
      if a is not None
    )
    law = broken(draft, watched.rows, level) if changes else 0
    detail = f'breaks law {law}' if law else ''
    rows.append(
      planted_row(
        name, changes, bool(law), detail if changes else 'changes nothing here'
      )
    )
  if remembers:
    old, new = moments[1:3]
    stale = Moment('', new.ctx, old.memory, new.key, new.drafts, new.accepted)
    same = all(
      np.array_equal(*pair)
      for pair in zip(
        jax.tree.leaves(old.memory), jax.tree.leaves(new.memory), strict=True
      )
    )
    apart = 0.0 if same else float(watched.gaps(stale).max())
    rows.append(
      planted_row(
        'the memory is not told of a step',
        not same,
        apart > _APART,
        'changes nothing here' if same else f'q off by {apart:.2g}',
      )
    )
  return rows


def try_drafter(
  x: Certificate,
  who: str,
  tiny: TinyModels,
  drafter: Drafter,
  add: Callable[[Row], None],
) -> Verdict:
  """The trial; hands over every row as soon as it is made.

  Args:
    x: the settings.
    who: the field and the name of what is on trial.
    tiny: the models, with the drafter's parameters.
    drafter: of one draft length.
    add: takes rows.

  Raises:
    UserError: it does not keep the contract of `types.Drafter`.
  """
  verdict = Verdict()
  check(who, tiny, drafter)
  add(law_row(4, True))
  watched = Watched(tiny, drafter, x.quick)
  with Refusing(who, 'a draft'):
    moments = [watched.fresh(), *watched.along(_STEPS)]
  _check_drafts(who, watched, moments)
  level = _level(x, moments)
  drawn = moments[0].drafts.probs is not None
  where: dict[int, list[Moment]] = {law: [] for law in _DRAWN}
  for moment in moments if drawn else ():
    if law := broken(moment.drafts, watched.rows, level):
      where[law].append(moment)
  for law in sorted(_DRAWN):
    detail = f'behind {where[law][0].label}' if where[law] else ''
    held = not where[law] if drawn else None
    add(law_row(law, held, detail if drawn else 'its tokens are chosen'))
  learns = drafter.learns and not isinstance(moments[0].memory, Memory)
  remembers, told = (True, None) if learns else _memory(watched, moments)
  why = 'it learns from verdicts' if learns else ''
  add(law_row(3, None if learns else remembers, why))
  texts = _texts(x, watched, level)
  for row in texts:
    add(row)
  worst = min(texts, key=lambda r: r['p_value'])
  off = [r['setting'] for r in texts if r['p_value'] < level]
  lost = f'its texts differ in {len(off)} of {len(texts)} settings'
  kept = 'its texts keep their distribution, but are drafted worse'
  for law in _DRAWN:
    if where[law] and verdict.exact:
      begin = f'behind {where[law][0].label}'
      verdict.breaks(law, f'{begin}; {lost}' if off else begin)
      verdict.counterexample = smallest(watched, where[law], law, level)
  if verdict.exact and not remembers:
    verdict.breaks(3, lost if off else kept)
    verdict.counterexample = told
  elif verdict.exact and off:
    verdict.lossy(
      worst['total_variation'],
      f'at these settings: {worst["setting"]}, p = {worst["p_value"]:.1g}',
    )
  if verdict.exact:
    planted = _planted(watched, moments, level, not learns)
    for row in planted:
      add(row)
    need_seen(verdict, planted)
  return verdict
