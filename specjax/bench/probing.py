"""Tries near readings of a head, to see that it is read as it was trained.

A head that is fed the wrong layers, normed in the wrong place or given other
rotary positions keeps the output exact and loses its acceptance, and nothing
says so. Here the same weights draft under every near reading of their
configuration, along the same greedy texts of the target: at every place a whole
draft is made, of which nothing is accepted (`replay`), and the tokens are
counted that would have been.
"""

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specjax import verify
from specjax.bench import measure, replay
from specjax.bench.load import doubts, load_drafter
from specjax.bench.methods import Loaded, make_drafter
from specjax.bench.plan import PlannedDrafter
from specjax.drafters.shapes.shape import Shape
from specjax.errors import UserError
from specjax.models import layouts
from specjax.prompts import Chosen
from specjax.stats.readings import CONFIGURED, Look, best_of, compare
from specjax.types import Drafter, LoadedDrafter, Params, Spec

BATCH = 8  # prompts at once, at most
DEPTH = 3  # tokens of a draft, where a reading can draft so many
# Options that make trees of the same tokens, or end drafts early.
_SHAPES = {'tree', *(field.name for field in dataclasses.fields(Shape))}


def has_alternatives(one: PlannedDrafter) -> bool:
  """Whether the weights of a drafter can be read in several ways."""
  return hasattr(sys.modules[one.read.__module__], 'alternatives')


def alternatives(one: PlannedDrafter, loaded: Loaded) -> dict[str, Mapping]:
  """Near readings of a drafter's configuration, by what they change.

  Returns:
    What to load with instead, by name; what was asked for comes first.
  """
  module = sys.modules[one.read.__module__]
  with doubts(one, tell=False):
    found = module.alternatives(loaded.target, one.path, **one.options)
  return {CONFIGURED: {}} | found


def _count(seen: replay.Watched, depth: int) -> tuple[int, np.ndarray]:
  """Places of a text with a whole draft behind them, and what agrees there."""
  places = max(len(seen.text) - depth + 1, 0)
  same = seen.accept(depth)[:places]
  return places, np.cumprod(same, 1).sum(0)


def _deepest(one: PlannedDrafter, head: LoadedDrafter, depth: int) -> Drafter:
  """The drafter of a reading, which may draft fewer tokens than others."""
  for fewer in range(depth, 1, -1):
    with contextlib.suppress(UserError):
      return make_drafter(one, head, fewer)
  return make_drafter(one, head, 1)


def look(
  one: PlannedDrafter,
  loaded: Loaded,
  changes: Mapping[str, Any],
  jobs: Sequence[measure.Job],
) -> Look:
  """Drafts with a reading of a head at every place of the target's texts.

  Args:
    one: the drafter.
    loaded: its target, and the other things that belong to it.
    changes: what to load with instead of what is configured.
    jobs: what the target continues, greedy.

  Raises:
    measure.NotFinite: what is configured has logits that are not finite. An
      alternative that has them accepts nothing.
  """
  options = {**one.options, **changes}
  own = dataclasses.replace(
    one, options={n: v for n, v in options.items() if n not in _SHAPES}
  )
  head = load_drafter(own, loaded.target, tell=False)
  longest = max(int(np.max(job.new_tokens)) for job in jobs)
  drafter = _deepest(own, head, min(DEPTH, longest, *one.gammas))
  target = loaded.forms[layouts.WHOLE]
  spec = Spec(target.model, drafter, verify.observe, loaded.target.eos)
  way = measure.Decoding(spec, Params(target.params, head.params))
  try:
    seen = [
      text for job in jobs for text in replay.watch(way, job, False)[: job.live]
    ]
  except measure.NotFinite:
    if not changes:
      raise
    base = look(one, loaded, {}, jobs)
    return Look(base.places, np.zeros_like(base.accepted))
  places, accepted = zip(*(_count(s, drafter.depth) for s in seen), strict=True)
  return Look(np.array(places), np.stack(accepted))


def jobs(
  job: Callable[..., measure.Job],
  chosen: Mapping[str, Chosen],
  prompts: int,
  new_tokens: int,
) -> list[measure.Job]:
  """The first prompts of all domains in turns, greedy, in batches.

  Args:
    job: as `Runner.job`.
    chosen: the prompts of each domain.
    prompts: so many at most.
    new_tokens: of each, at most.
  """
  turns = itertools.zip_longest(*(one.texts for one in chosen.values()))
  texts = [t for turn in turns for t in turn if t is not None][:prompts]
  rows, numbers = min(BATCH, len(texts)), range(len(texts))
  made = [
    job([texts[i] for i in part], part, 0.0, rows=rows)
    for part in (numbers[i : i + rows] for i in numbers[::rows])
  ]
  return [
    dataclasses.replace(one, new_tokens=np.minimum(one.new_tokens, new_tokens))
    for one in made
  ]


def short(
  one: PlannedDrafter, loaded: Loaded, jobs: Sequence[measure.Job]
) -> dict[str, Any]:
  """The probe of one head, as a field of the rows of a run.

  Args:
    one: the drafter.
    loaded: its target, and the other things that belong to it.
    jobs: what the target continues, greedy.

  Returns:
    `best`, the name of a reading, and `changes`, its options; `alternatives`
    that were tried; accepted tokens a draft of `gamma`, as `configured` and of
    the `best_accepted`; and the `prompts`. Nothing where all texts of the
    target ended before a whole draft.
  """
  changes = alternatives(one, loaded)
  base = look(one, loaded, changes.pop(CONFIGURED), jobs)
  if not base.places.any():
    return {}
  looks = {n: look(one, loaded, c, jobs) for n, c in changes.items()}
  count = len(looks)
  best = best_of({n: compare(base, o, count) for n, o in looks.items()})
  found = looks.get(best, base)
  depth = found.accepted.shape[1]
  return {
    'best': best,
    'changes': dict(changes.get(best, {})),
    'alternatives': count,
    'gamma': depth,
    'configured': base.cut(depth).mean,
    'best_accepted': found.mean,
    'prompts': len(base.places),
  }
