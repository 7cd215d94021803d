"""Whether a head is loaded as it was trained: the near alternatives of it.

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
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from specjax import verify
from specjax.bench import measure, replay
from specjax.bench.load import doubts, load_drafter
from specjax.bench.methods import Loaded, make_drafter
from specjax.bench.plan import PlannedDrafter
from specjax.drafters.shapes.shape import Shape
from specjax.errors import UserError
from specjax.models import layouts
from specjax.prompts import Chosen
from specjax.stats import metrics
from specjax.types import Drafter, LoadedDrafter, Params, Spec

CONFIGURED = 'as configured'
BATCH = 8  # prompts at once, at most
DEPTH = 3  # tokens of a draft, where a reading can draft so many
CHANCE = 0.05  # that any alternative which is no better is called better
CLEAR = 0.05  # share of the accepted tokens that a clear difference has
LEAST = 0.02  # accepted tokens a draft that it has at least
# Options that make trees of the same tokens, or end drafts early.
_SHAPES = {'tree', *(field.name for field in dataclasses.fields(Shape))}


def has_alternatives(one: PlannedDrafter) -> bool:
  """Whether the weights of a drafter could be read in several ways."""
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


class Look(NamedTuple):
  """What one reading of a head drafted, along texts of the target."""

  places: np.ndarray  # [N] of each prompt
  accepted: np.ndarray  # [N, K] of them where the first k + 1 tokens agree

  def cut(self, depth: int) -> 'Look':
    """The same of drafts of at most so many tokens."""
    return Look(self.places, self.accepted[:, :depth])

  @property
  def tokens(self) -> np.ndarray:
    """Accepted tokens [N] of all drafts of a prompt."""
    return self.accepted.sum(1)

  @property
  def mean(self) -> float:
    """Accepted tokens a draft."""
    return float(self.tokens.sum() / self.places.sum())

  @property
  def alphas(self) -> list[float]:
    """Chance [K] that a token agrees where those before it do."""
    reached = np.concatenate([[self.places.sum()], self.accepted.sum(0)])
    pairs = zip(reached[1:], reached, strict=False)
    return [float(a / b) if b else math.nan for a, b in pairs]


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


class Difference(NamedTuple):
  """Accepted tokens of an alternative a draft, less those as configured."""

  value: float
  low: float  # of the interval that holds for all alternatives together
  high: float
  better: bool  # clearly


def compare(configured: Look, other: Look, alternatives: int) -> Difference:
  """An alternative beside what is configured, paired on prompts.

  Drafts of both are cut to as many tokens as either has.

  Args:
    configured: of the same prompts.
    other: of the alternative.
    alternatives: that are compared; intervals hold for all of them together.
  """
  depth = min(x.accepted.shape[1] for x in (configured, other))
  configured, other = configured.cut(depth), other.cut(depth)
  found = metrics.estimate(
    lambda a, n, b, m: a / n - b / m,
    other.tokens,
    other.places,
    configured.tokens,
    configured.places,
  )
  reach = math.nan
  if found.error == 0 and metrics.enough(len(other.places)):
    reach = 0.0  # Every prompt says the same.
  elif metrics.enough(found.freedom + 1):
    chance = 1 - CHANCE / max(alternatives, 1) / 2
    reach = float(special.stdtrit(found.freedom, chance)) * found.error
  clear = max(CLEAR * configured.mean, LEAST)
  low = found.value - reach
  return Difference(
    float(found.value),
    float(low),
    float(found.value + reach),
    bool(low > 0 and found.value >= clear),
  )


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


def best_of(differences: Mapping[str, Difference]) -> str:
  """The alternative that is clearly the best, or what is configured."""
  better = {name: d.value for name, d in differences.items() if d.better}
  return max(better, key=better.__getitem__, default=CONFIGURED)


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
