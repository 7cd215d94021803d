"""Plain decoding and methods, each in the layout chosen for it.

On a single CPU device weights have two layouts, `whole` and that of the
kernel, `native` (see `specjax.models.layouts`). What is not timed takes the
kernel's. What is timed takes the faster one, by measurement: plain decoding
races with the very loop, on whole texts; passes of a target that scores and of
a draft race alone.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax import checkpoints, verify
from specjax.bench import costs, drafter_facts, measure
from specjax.bench.measure import Decoding, Job
from specjax.bench.plan import Plan, PlannedDrafter
from specjax.bench.sampling_stages import values
from specjax.cli import progress
from specjax.drafters import plain
from specjax.errors import blame, need
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts
from specjax.models.layouts import Arranged, LayoutChoice
from specjax.models.transformer import Model
from specjax.prompts import Chosen
from specjax.types import Drafter, LoadedDrafter, Params, Rule, Spec, Target


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
  """A drafter with a rule and a draft length, ready to run.

  Attributes:
    draft: names of the models that draft; None without any.
    gamma: the drafter's depth.
    single: the same drafter with K = 1, for many rows: it measures alpha.
    verification: layout of the target that scores a draft.
    drafting: layout of a draft that is a model of its own.
    chance: parts of a step that count the chance that the rule accepts.
    brings: fields of a row, see `drafter_facts.describe`.
    draft_dtype: type of the drafter's weights; None without any.
    one_pass: model and weights that a drafted token passes through, where
      drafts are made token by token.
  """

  drafter: str
  draft: str | None
  verifier: str
  gamma: int
  spec: Spec
  params: Params
  single: Decoding
  verification: LayoutChoice
  drafting: LayoutChoice | None
  chance: generate.StepParts = generate.PARTS
  brings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  draft_dtype: str | None = None
  one_pass: tuple[Model, Any] | None = None

  @property
  def way(self) -> Decoding:
    return Decoding(self.spec, self.params)

  def cell(self, domain: str, temperature: float) -> dict:
    """The fields that identify a row."""
    return {
      'drafter': self.drafter,
      'verifier': self.verifier,
      'gamma': self.gamma,
      'domain': domain,
      'temperature': temperature,
    }

  def layouts(self) -> dict:
    """Fields of a row: the layouts, with the times that chose them."""
    return {
      'verification': self.verification.fields(),
      'drafting': self.drafting and self.drafting.fields(),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """A checked experiment with its prompts and weights, and what runs of it.

  Attributes:
    plan: the checked config.
    target: the target without its weights, which lie in `forms`.
    prompts: prompts by domain.
    forms: the target in every layout; empty once layouts were measured.
    drafts: drafters for each of these forms, by layout and name; empty, too.
    base: plain decoding.
    baseline: the layout of plain decoding.
    methods: every drafter with every rule and draft length.
  """

  plan: Plan
  target: Target
  prompts: dict[str, Chosen]
  forms: Mapping[str, Arranged]
  drafts: Mapping[str, Mapping[str, LoadedDrafter]]
  base: Decoding
  baseline: LayoutChoice
  methods: tuple[Method, ...]

  @property
  def plain(self) -> Spec:
    return self.base.spec

  @property
  def target_name(self) -> str:
    return checkpoints.title_of(self.plan.target)

  @property
  def held(self) -> dict:
    """Fields of a row: the bits of matrices, where they are no floats."""
    text = self.plan.form.text
    return {'weights': text} if text else {}

  def models(self, method: Method) -> dict:
    """Fields of a row: the target and the draft of a method."""
    return {
      'target': self.target_name,
      'target_revision': checkpoints.revision_of(self.plan.target),
      'draft': method.draft,
      'draft_revision': method.brings.get('draft_revision'),
      'dtype': self.target.dtype,
      **self.held,
      'draft_dtype': method.draft_dtype,
    }

  @functools.cached_property
  def slots(self) -> tuple[int, int | None]:
    """Slots that serve every prompt and method: of texts, and of sources."""
    specs = [self.plain, *(m.spec for m in self.methods)]
    longest, sources = max(one.longest for one in self.prompts.values()), None
    if self.target.model.config.encoder is not None:
      longest, sources = 1, caches.round_slots(longest)
    limit = longest + self.plan.max_new_tokens
    return max(generate.slots_for(spec, limit) for spec in specs), sources

  def job(
    self,
    texts: Sequence[list[int]],
    indices: Sequence[int],
    temperature,
    rows: int = 0,
  ) -> Job:
    """Prompts that are decoded together.

    Up to `rows` the batch is filled with prompts that get no new tokens:
    another number of rows would be another program.

    Args:
      texts: the prompts.
      indices: their numbers in the experiment, which seed their keys.
      temperature: of all, or [B] of each row.
      rows: rows of the batch, at least.
    """
    plan, live = self.plan, len(texts)
    place = np.arange(max(rows, live)) % live
    new_tokens: int | np.ndarray = plan.max_new_tokens
    if live < len(place):
      new_tokens = np.where(np.arange(len(place)) < live, new_tokens, 0)
    return Job(
      [texts[i] for i in place],
      np.asarray(indices)[place],
      values(plan.sampling, self.plain, len(place), temperature),
      new_tokens,
      plan.seed,
      *self.slots,
      live,
    )

  def race(self) -> 'Loaded':
    """Measures which layout is fastest, and keeps only what is used.

    Layouts that were measured already are kept.
    """
    if not self.forms:
      return self
    texts = next(iter(self.prompts.values())).texts
    # A greedy batch: any one costs the same.
    place = np.arange(self.plan.batch) % len(texts)
    job = self.job([texts[i] for i in place], place, 0.0)
    turns = 3 if self.plan.quick else layouts.TURNS
    with progress.phase('choosing layouts of weights'):
      return self.settle(Race(job, turns))

  def settle(self, race: 'Race') -> 'Loaded':
    """Takes the layouts that a race chooses, and drops the other weights."""
    chosen = assemble(
      self.plan, self.target, self.prompts, self.forms, self.drafts, race
    )
    return dataclasses.replace(chosen, forms={}, drafts={})


@dataclasses.dataclass
class Race:
  """Finds the layout with the smallest median time; layouts take turns.

  A loop is timed only long after its prompt was prefilled: the first steps
  behind a prefill take longer, and would favour what takes fewer of them.

  Attributes:
    job: a greedy one.
    turns: of each layout.
  """

  job: Job
  turns: int = layouts.TURNS

  def plain(self, ways: Mapping[str, Decoding]) -> LayoutChoice:
    """Races plain decoding with the loop itself."""
    for way in ways.values():
      measure.decode(way, self.job, 1, timed=False)
    return layouts.fastest(
      {
        name: functools.partial(costs.seconds_per_step, way, self.job)
        for name, way in ways.items()
      },
      self.turns,
    )

  def passes(self, forms: Mapping[str, Arranged], count: int) -> LayoutChoice:
    """Races passes over `count` tokens of every text."""
    model = next(iter(forms.values())).model
    job, encodes = self.job, model.encode is not None
    begun = 1 if encodes else max(map(len, job.prompts))
    buffer = layouts.Buffer(
      len(job.prompts),
      job.slots,
      begun + int(np.max(job.new_tokens)) // 2,
      job.source_slots,
    )
    return layouts.race(forms, buffer, count, self.turns)


def make_drafter(
  planned: PlannedDrafter, loaded: LoadedDrafter, gamma: int
) -> Drafter:
  """Makes the drafter of a draft length.

  Raises:
    UserError: there is none; names the function.
  """
  with blame(f'{planned.field}: {planned.load}: '):
    drafter = loaded.make(gamma)
  need(
    isinstance(drafter, Drafter),
    f'{planned.field}: {planned.load}: make({gamma}) must return a '
    f'specjax.Drafter, got {type(drafter).__name__}',
  )
  return drafter


def _chance(rule: Rule, single: Drafter) -> generate.StepParts:
  """Parts that count the chance of a first token under a rule.

  For one candidate and an exact rule that looks at q that chance has the mean
  of the overlap.
  """
  if rule.lossless and single.nodes == 1 and not rule.placed:
    return generate.PARTS
  return generate.PARTS._replace(overlap=verify.chance(rule))


def assemble(
  plan: Plan,
  target: Target,
  prompts: dict[str, Chosen],
  forms: Mapping[str, Arranged],
  drafts: Mapping[str, Mapping[str, LoadedDrafter]],
  race: Race | None = None,
) -> Loaded:
  """Makes plain decoding and all methods, in the layouts that are chosen.

  Without a race the kernel's layout is taken. See `Loaded` for the others.
  """
  chosen: dict[Any, LayoutChoice] = {}
  guess = LayoutChoice(
    layouts.NATIVE if layouts.NATIVE in forms else next(iter(forms))
  )

  def choose(key, forms: Mapping[str, Arranged], count: int) -> LayoutChoice:
    """Chooses once for a draft model, or for rows that the target scores."""
    if key not in chosen:
      several = race is not None and len(forms) > 1
      chosen[key] = race.passes(forms, count) if several else guess
    return chosen[key]

  def methods_of(name: str, planned: PlannedDrafter):
    by_layout = {layout: loaded[name] for layout, loaded in drafts.items()}
    looking_on = by_layout[guess.layout]
    single = make_drafter(planned, looking_on, 1)
    watched = forms[guess.layout]
    depths = set()
    for gamma in planned.gammas:
      drafter = make_drafter(planned, looking_on, gamma)
      if drafter.depth in depths:  # A tree has a depth of its own.
        continue
      depths.add(drafter.depth)
      scoring = choose(drafter.nodes + 1, forms, drafter.nodes + 1)
      drafting = None
      if looking_on.draft is not None:
        models = {n: Arranged(*one.draft) for n, one in by_layout.items()}
        drafting = choose(name, models, 1)
      # A drafter that computes with the target's weights takes them as they
      # are laid out for scoring.
      own = by_layout[(drafting or scoring).layout]
      drafter = make_drafter(planned, own, gamma)
      model, weights = forms[scoring.layout]
      for rule_name, rule in planned.rules.items():
        yield Method(
          drafter=name,
          draft=planned.draft,
          verifier=rule_name.removeprefix('specjax.verify.'),
          gamma=drafter.depth,
          spec=Spec(model, drafter, rule, target.eos),
          params=Params(weights, own.params),
          single=Decoding(
            Spec(watched.model, single, verify.observe, target.eos),
            Params(watched.params, looking_on.params),
          ),
          chance=_chance(rule, single),
          brings=drafter_facts.describe(planned, own.params, own.pairing),
          draft_dtype=drafter_facts.dtype_of(own),
          verification=scoring,
          drafting=drafting,
          one_pass=own.draft or (own.passes and (own.passes, weights)),
        )

  ways = {
    name: Decoding(
      Spec(model, plain.make(), verify.token, target.eos), Params(weights, None)
    )
    for name, (model, weights) in forms.items()
  }
  several = race is not None and len(ways) > 1
  baseline = race.plain(ways) if several else guess
  methods = (methods_of(*one) for one in plan.drafters.items())
  return Loaded(
    plan=plan,
    target=target,
    prompts=prompts,
    forms=forms,
    drafts=drafts,
    base=ways[baseline.layout],
    baseline=baseline,
    methods=tuple(m for some in methods for m in some),
  )


def singles(methods) -> dict[tuple, Method]:
  """Returns the ways to measure alpha, each with a method that it is for.

  Drafters that differ in their parameters alone share a program, so the name
  tells them apart.
  """
  ways: dict = {}
  for m in methods:
    for parts in (generate.PARTS, m.chance):
      ways.setdefault((m.drafter, parts), m)
  return ways
