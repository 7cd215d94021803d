"""What runs: plain decoding and methods, from what a plan loaded.

Drafters and the target are loaded with whole weights. They are put together
here, each in the layout that is chosen for it (`layouts`); a layout that
nothing takes is not kept.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from specjax import checkpoints, verify
from specjax.bench import drafter_facts, measure
from specjax.bench.loading import drafter_loading
from specjax.bench.loading.checks import values
from specjax.bench.loading.layouts import Chooser, Guess, Layouts, Race
from specjax.bench.loading.loaded import Loaded
from specjax.bench.loading.plan import Plan
from specjax.drafters import plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import layouts
from specjax.models.layouts import LayoutChoice
from specjax.models.transformer import Model
from specjax.prompts import Chosen
from specjax.types import Drafter, Params, Rule, Spec


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

  def race(
    self,
    tell: Callable[[str], Any] = lambda what: None,
    over_cores: bool | None = None,
  ) -> 'Built':
    """The same in the layouts that are the fastest, where none was measured.

    Args:
      tell: is told what is measured.
      over_cores: only layouts over the cores, or only those on one device; a
        method that has none of these is left out.
    """
    if self.loaded is None:
      return self
    plan = self.loaded.plan
    turns = 3 if plan.quick else layouts.TURNS
    loaded = dataclasses.replace(self.loaded, over_cores=over_cores)
    among = dataclasses.replace(self, loaded=loaded)
    return among.settle(Race(self.job(plan), turns, tell))

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


def _methods(loaded: Loaded, chosen: Layouts, name: str) -> Iterator[Method]:
  """All lengths and rules of a drafter."""
  planned, eos = loaded.plan.drafters[name], loaded.target.eos
  one, watched = loaded.drafts[name], chosen.watching()
  looking_on = chosen.draft(name, watched)
  single = drafter_loading.make(planned, looking_on, 1)
  watched_model, watched_parameters = loaded.forms[watched]
  for gamma in loaded.gammas(name):
    drafter = drafter_loading.make(planned, one, gamma)
    pair = chosen.pair(name, drafter)
    if pair is None:
      continue
    scoring, drafting = pair
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
        single=Spec(watched_model, single, verify.observe, eos),
        single_params=Params(watched_parameters, looking_on.params),
        chance=_chance(rule, single),
        brings=drafter_facts.describe(planned, own.params, own.pairing),
        draft_dtype=drafter_facts.dtype_of(own),
        verification=scoring,
        drafting=drafting,
        one_pass=own.draft or (own.passes and (own.passes, parameters)),
      )


def assemble(loaded: Loaded, choose: Chooser) -> Built:
  """Plain decoding and all methods, in the layouts that are chosen."""
  chosen = Layouts(loaded, choose)
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
