"""Is this head loaded as it was trained? Its near alternatives say so.

  specjax probe pair \\
    --target.path=TARGET --draft.path=HEAD

A head that is fed the wrong layers, normed in the wrong place or given other
rotary positions keeps the output exact and accepts little, and nothing else
tells. The same weights draft along the same greedy texts of the target, read as
they are configured and in every near way (`alternatives` of the drafter's
module). At every place of a text a whole draft is made, of which nothing is
accepted (`replay`), and the tokens are counted that would have been. The exit
status is 1 where one of the readings is clearly better.
"""

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax import prompts, verify
from specjax.bench import load, measure, replay, results
from specjax.bench.config import Experiment
from specjax.bench.methods import Loaded, make_drafter
from specjax.bench.plan import Plan, PlannedDrafter, need_one_device, plan
from specjax.bench.runner import Runner
from specjax.cli import command, progress
from specjax.drafters.shapes.shape import Shape
from specjax.errors import UserError, need
from specjax.models import layouts
from specjax.reports import probe as probe_report
from specjax.stats.readings import CONFIGURED, Look, best_of, compare
from specjax.types import Drafter, LoadedDrafter, Params, Spec

_PROMPTS = 32  # of all domains together
_NEW_TOKENS = 32
BATCH = 8  # prompts at once, at most
DEPTH = 3  # tokens of a draft, where a reading can draft so many
# Options that make trees of the same tokens, or end drafts early.
_SHAPES = {'tree', *(field.name for field in dataclasses.fields(Shape))}


def has_alternatives(one: PlannedDrafter) -> bool:
  """Returns True where the weights of a drafter can be read in several ways."""
  return hasattr(sys.modules[one.read.__module__], 'alternatives')


def alternatives(one: PlannedDrafter, loaded: Loaded) -> dict[str, Mapping]:
  """Near readings of a drafter's configuration, by what they change.

  Returns:
    What to load with instead, by name; what was asked for comes first.
  """
  module = sys.modules[one.read.__module__]
  with load.doubts(one, tell=False):
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
  head = load.load_drafter(own, loaded.target, tell=False)
  longest = max(int(np.max(job.new_tokens)) for job in jobs)
  drafter = _deepest(own, head, min(DEPTH, longest, *one.gammas))
  forms = loaded.forms
  target = forms.get(layouts.WHOLE) or next(iter(forms.values()))
  spec = Spec(target.model, drafter, verify.observe, loaded.target.eos)
  way = measure.Decoding(spec, Params(target.params, head.params))
  try:
    seen = [
      text
      for job in jobs
      for text in replay.watch([way], job, [False])[0][: job.live]
    ]
  except measure.NotFinite:
    if not changes:
      raise
    base = look(one, loaded, {}, jobs)
    return Look(base.places, np.zeros_like(base.accepted))
  places, accepted = zip(*(_count(s, drafter.depth) for s in seen), strict=True)
  return Look(np.array(places), np.stack(accepted))


def jobs(loaded: Loaded, prompts: int, new_tokens: int) -> list[measure.Job]:
  """The first prompts of all domains in turns, greedy, in batches.

  Args:
    loaded: whose prompts they are.
    prompts: so many at most.
    new_tokens: of each, at most.
  """
  turns = itertools.zip_longest(*(x.texts for x in loaded.prompts.values()))
  texts = [t for turn in turns for t in turn if t is not None][:prompts]
  rows, numbers = min(BATCH, len(texts)), range(len(texts))
  made = [
    loaded.job([texts[i] for i in part], part, 0.0, rows=rows)
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


def prepare(x: Experiment) -> Plan:
  """The plan of the drafters whose weights can be read in several ways.

  Raises:
    UserError: names the field and the remedy.
  """
  need_one_device(x.mesh, 'a head is probed')
  x.temperatures, x.timed = (0.0,), False
  x.prompts.count = min(x.prompts.count, _PROMPTS)
  x.prompts.turns = 1
  x.max_new_tokens = min(x.max_new_tokens or _NEW_TOKENS, _NEW_TOKENS)
  x.batch = 1
  x.results = x.results or f'{results.default_folder(x)}-probe'
  planned = plan(x)
  heads = {
    name: dataclasses.replace(one, gammas=(min(DEPTH, *one.gammas),))
    for name, one in planned.drafters.items()
    if has_alternatives(one)
  }
  need(
    heads,
    f'drafters: none of {", ".join(planned.drafters)} reads features of the '
    'target in a way that could be mistaken: name a head, such as eagle:PATH',
  )
  return dataclasses.replace(planned, drafters=heads)


class Probe(Runner):
  """The probe of all heads of a plan, in one process."""

  program = 'probe'

  def __init__(self, plan: Plan):
    super().__init__(plan)
    self.jobs = jobs(self.built, _PROMPTS, plan.max_new_tokens)

  def row_of(
    self, one: PlannedDrafter, name: str, changes: Mapping[str, Any], seen: Look
  ) -> dict:
    """The row of one reading of one head."""
    texts = [text for job in self.jobs for text in job.prompts[: job.live]]
    (method,) = (m for m in self.built.methods if m.drafter == one.name)
    return {
      'program': self.program,
      'config': self.plan.name,
      **self.built.models(method),
      'drafter': one.name,
      'alternative': name,
      'changes': results.plain(dict(changes)),
      'gamma': seen.accepted.shape[1],
      'prompts': len(seen.places),
      'prompts_hash': prompts.digest(texts),
      'new_tokens': self.plan.max_new_tokens,
      'unit_places': seen.places.tolist(),
      'unit_accepted': seen.accepted.tolist(),
      'alphas': results.plain(seen.alphas),
      'seed': self.plan.seed,
      **self.conditions,
    }

  def run(self) -> None:
    """Makes the rows that are missing."""
    todo = [
      (one, name, changes)
      for one in self.plan.drafters.values()
      for name, changes in alternatives(one, self.built).items()
      if not self.folder.has(drafter=one.name, alternative=name)
    ]
    for one, name, changes in progress.over('readings', todo):
      seen = look(one, self.built, changes, self.jobs)
      need(
        seen.places.any(),
        f'prompts: all texts of the target end within {seen.accepted.shape[1]} '
        'tokens, before a whole draft: choose others',
      )
      self.folder.add(self.row_of(one, name, changes, seen))


def main(x: Experiment) -> None:
  if x.quick:
    x.shrink()
  probe = Probe(prepare(x))
  probe.run()
  folder = probe.folder
  results.publish(folder)
  verdicts = probe_report.verdicts(folder.rows)
  print(json.dumps({'results': str(folder.path), **verdicts}))
  if any(one != CONFIGURED for one in verdicts['best'].values()):
    raise SystemExit(1)


def start() -> None:
  command.run(main, Experiment, resumes=True)
