"""What runs: plain decoding and methods, from what a plan loaded.

Drafters and the target are loaded with whole weights. They are put together
here, each in the layout that is chosen for it (`layouts`); a layout that
nothing takes is not kept.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from experiments.measuring import drafter_facts, measure
from experiments.measuring.layouts import Chooser, Guess, Race
from experiments.prompts import Chosen
from experiments.setup import drafter_loading
from experiments.setup.checks import values
from experiments.setup.plan import Plan
from specjax import cache as caches
from specjax import checkpoints, generate, layouts, verify
from specjax.drafters import plain
from specjax.layouts import Arranged, LayoutChoice
from specjax.models.transformer import Model
from specjax.types import Drafter, LoadedDrafter, Params, Rule, Spec, Target


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
  """A drafter with a rule and a draft length, ready to run."""

  drafter: str
  draft: str | None
  verifier: str
  gamma: int  # the drafter's depth
  spec: Spec
  params: Params
  # The same drafter with K = 1, for many rows: what alpha is measured with.
  single: Spec
  single_params: Params
  # Layouts of the target that scores a draft, and of a draft that is a model.
  verification: LayoutChoice
  drafting: LayoutChoice | None
  # And what counts the chance that the rule accepts its token.
  chance: generate.StepParts = generate.PARTS
  # Fields of a row, see `drafter_facts.describe`.
  brings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  draft_dtype: str | None = None  # of its weights; None without any
  # Of a draft that goes from token to token: the model of a token's pass.
  one_pass: tuple[Model, Any] | None = None

  @property
  def way(self) -> measure.Decoding:
    return measure.Decoding(self.spec, self.params)

  def cell(self, domain: str, temperature: float) -> dict:
    """What identifies a row."""
    return {
      'drafter': self.drafter,
      'verifier': self.verifier,
      'gamma': self.gamma,
      'domain': domain,
      'temperature': temperature,
    }

  def layouts(self) -> dict:
    """Fields of a row: what was chosen, and between what times."""
    return {
      'verification': self.verification.fields(),
      'drafting': self.drafting and self.drafting.fields(),
    }


@dataclasses.dataclass(frozen=True)
class Loaded:
  """What was checked and read, before a layout is chosen.

  `drafts` are for the target with whole weights, which has none itself;
  `forms` are that target in every layout, with weights.
  """

  plan: Plan
  target: Target
  prompts: dict[str, Chosen]
  drafts: Mapping[str, LoadedDrafter]
  forms: Mapping[str, Arranged]
  # Drafts for the target in other layouts, by name and layout, read when asked.
  others: dict[tuple[str, str], LoadedDrafter] = dataclasses.field(
    default_factory=dict
  )

  def gammas(self, name: str) -> tuple[int, ...]:
    """Draft lengths of a drafter, each depth once: a tree has its own."""
    planned, by_depth = self.plan.drafters[name], {}
    for gamma in planned.gammas:
      drafter = drafter_loading.make(planned, self.drafts[name], gamma)
      by_depth.setdefault(drafter.depth, gamma)
    return tuple(by_depth.values())


@dataclasses.dataclass(frozen=True)
class Built:
  """A checked experiment with its prompts, by domain, and its weights."""

  target: str
  tokenizer: Any
  prompts: dict[str, Chosen]
  plain: Spec
  plain_params: Params
  methods: tuple[Method, ...]
  baseline: LayoutChoice  # the layout of plain decoding
  loaded: Loaded | None = None  # None once the layouts were measured
  dtype: str = 'float32'  # of the target's weights and cache
  target_revision: str | None = None  # its commit, where it is of the Hub

  @property
  def base(self) -> measure.Decoding:
    """Plain decoding."""
    return measure.Decoding(self.plain, self.plain_params)

  def models(self, method: Method) -> dict:
    """Fields of a row: the target and the draft of a method."""
    return {
      'target': self.target,
      'target_revision': self.target_revision,
      'draft': method.draft,
      'draft_revision': method.brings.get('draft_revision'),
      'dtype': self.dtype,
      'draft_dtype': method.draft_dtype,
    }

  def slots(self, new_tokens: int) -> tuple[int, int | None]:
    """Slots that serve every prompt and method: of texts, and of sources."""
    specs = [self.plain, *(m.spec for m in self.methods)]
    longest, sources = max(one.longest for one in self.prompts.values()), None
    if has_encoder(self.plain.target):
      longest, sources = 1, caches.round_slots(longest)
    limit = longest + new_tokens
    return max(generate.slots_for(spec, limit) for spec in specs), sources

  def job(self, plan: Plan) -> measure.Job:
    """The first batch of an experiment, greedy: any one costs the same."""
    texts = next(iter(self.prompts.values())).texts
    place = np.arange(plan.batch) % len(texts)
    return measure.Job(
      [texts[i] for i in place],
      place,
      values(plan.sampling, self.plain, plan.batch, 0.0),
      plan.max_new_tokens,
      plan.seed,
      *self.slots(plan.max_new_tokens),
    )

  def of_batch(self, batch: int) -> 'Built':
    """The same for another batch size, before layouts were measured."""
    if self.loaded is None or self.loaded.plan.batch == batch:
      return self
    plan = dataclasses.replace(self.loaded.plan, batch=batch)
    return assemble(dataclasses.replace(self.loaded, plan=plan), Guess())

  def race(self, tell: Callable[[str], Any] = lambda what: None) -> 'Built':
    """The same in the layouts that are the fastest, where none was measured.

    Args:
      tell: is told what is measured.
    """
    if self.loaded is None:
      return self
    plan = self.loaded.plan
    turns = 3 if plan.quick else layouts.TURNS
    return self.settle(Race(self.job(plan), turns, tell))

  def settle(self, choose: Chooser) -> 'Built':
    """The same in the layouts that are chosen now, once for all."""
    assert self.loaded is not None
    return dataclasses.replace(assemble(self.loaded, choose), loaded=None)


def has_encoder(target: Model) -> bool:
  """Whether prompts are read by an encoder, and the text begins anew."""
  return target.config.encoder is not None


def _chance(rule: Rule, single: Drafter) -> generate.StepParts:
  """Parts that count the chance of a first token under a rule.

  For one candidate and an exact rule that chance has the mean of the overlap.
  """
  if rule.lossless and single.nodes == 1:
    return generate.PARTS
  return generate.PARTS._replace(overlap=verify.chance(rule))


class _Layouts:
  """The choices for the parts of methods, each made once."""

  def __init__(self, loaded: Loaded, choose: Chooser):
    self.loaded, self.choose = loaded, choose
    self.batch = loaded.plan.batch
    names = layouts.allowed(loaded.forms, self.batch)
    self.forms = {name: loaded.forms[name] for name in names}
    self._scoring: dict[int, LayoutChoice] = {}
    self._drafting: dict[str, LayoutChoice] = {}

  def scoring(self, drafter: Drafter) -> LayoutChoice:
    """Of the target that scores what a drafter proposes."""
    rows = drafter.nodes + 1
    if rows not in self._scoring:
      names = layouts.allowed(self.forms, self.batch * rows)
      made = self.choose.tokens(names, self.forms.__getitem__, rows)
      self._scoring[rows] = made
    return self._scoring[rows]

  def draft(self, name: str, layout: str) -> LoadedDrafter:
    """A drafter for the target in a layout, which its weights take, too."""
    loaded = self.loaded
    if layout == layouts.WHOLE:
      return loaded.drafts[name]
    if (name, layout) not in loaded.others:
      target = dataclasses.replace(
        loaded.target, model=self.forms[layout].model
      )
      read = drafter_loading.load(loaded.plan.drafters[name], target)
      loaded.others[name, layout] = read
    return loaded.others[name, layout]

  def pair(
    self, name: str, drafter: Drafter
  ) -> tuple[LayoutChoice, LayoutChoice | None]:
    """Of the target and of a draft: together they make the shortest step.

    One program runs on one device or on the devices of one mesh, so both lie
    over the cores, or neither does.
    """
    scoring, drafting = self.scoring(drafter), self.drafting(name)
    if drafting is None:
      return scoring, None
    target, draft = scoring.measured, drafting.measured

    def seconds(pair: tuple[str, str]) -> float:
      return target[pair[0]] + drafter.depth * draft[pair[1]]

    pairs = [
      (one, other)
      for one, other in itertools.product(target, draft)
      if (one == layouts.CORES) == (other == layouts.CORES)
    ]
    best, fitting = min(pairs, key=seconds)
    return (
      dataclasses.replace(scoring, layout=best),
      dataclasses.replace(drafting, layout=fitting),
    )

  def drafting(self, name: str) -> LayoutChoice | None:
    """Of a draft that is a model of its own, which reads token by token."""
    if self.loaded.drafts[name].draft is None:
      return None

    def make(layout: str) -> Arranged:
      draft = self.draft(name, layout).draft
      assert draft is not None
      return Arranged(*draft)

    if name not in self._drafting:
      names = layouts.allowed(self.forms, self.batch)
      self._drafting[name] = self.choose.tokens(names, make, 1)
    return self._drafting[name]


def _methods(loaded: Loaded, chosen: _Layouts, name: str) -> Iterator[Method]:
  """All lengths and rules of a drafter."""
  planned, whole = loaded.plan.drafters[name], loaded.forms[layouts.WHOLE]
  eos, one = loaded.target.eos, loaded.drafts[name]
  single = drafter_loading.make(planned, one, 1)
  for gamma in loaded.gammas(name):
    drafter = drafter_loading.make(planned, one, gamma)
    scoring, drafting = chosen.pair(name, drafter)
    # What computes with the target's weights takes them as they are.
    own = chosen.draft(name, (drafting or scoring).layout)
    drafter = drafter_loading.make(planned, own, gamma)
    model, parameters = chosen.forms[scoring.layout]
    for rule_name, rule in planned.rules.items():
      yield Method(
        drafter=name,
        draft=planned.draft,
        verifier=rule_name.removeprefix('specjax.verify.'),
        gamma=drafter.depth,
        spec=Spec(model, drafter, rule, eos),
        params=Params(parameters, own.params),
        single=Spec(whole.model, single, verify.observe, eos),
        single_params=Params(whole.params, one.params),
        chance=_chance(rule, single),
        brings=drafter_facts.describe(planned, own.params, own.pairing),
        draft_dtype=drafter_facts.dtype_of(own),
        verification=scoring,
        drafting=drafting,
        one_pass=own.draft or (own.passes and (own.passes, parameters)),
      )


def assemble(loaded: Loaded, choose: Chooser) -> Built:
  """Plain decoding and all methods, in the layouts that are chosen."""
  chosen = _Layouts(loaded, choose)
  ways = {
    name: measure.Decoding(
      Spec(model, plain.make(), verify.token, loaded.target.eos),
      Params(params, None),
    )
    for name, (model, params) in chosen.forms.items()
  }
  baseline = choose.plain(ways)
  methods = [
    m for n in loaded.plan.drafters for m in _methods(loaded, chosen, n)
  ]
  return Built(
    target=checkpoints.title_of(loaded.plan.target),
    target_revision=checkpoints.revision_of(loaded.plan.target),
    tokenizer=loaded.target.tokenizer,
    prompts=loaded.prompts,
    plain=ways[baseline.layout].spec,
    plain_params=ways[baseline.layout].params,
    methods=tuple(methods),
    baseline=baseline,
    loaded=loaded,
    dtype=loaded.target.dtype,
  )


def singles(methods) -> dict:
  """The ways to measure alpha, each with a method that it is for.

  Drafters that differ in their parameters alone share a program, so it is
  the name that tells them apart.
  """
  ways: dict = {}
  for m in methods:
    for parts in (generate.PARTS, m.chance):
      ways.setdefault((m.drafter, parts), m)
  return ways
