"""What constraints do to acceptance and speed, from loose ones to tight ones.

  python -m experiments.constrained --config configs/constrained.py

Each language constrains target and draft alike; a draft that is not masked is
told nothing of it, and `none` constrains neither. All continue the same prompts
with the same keys, and the speed-up is over plain decoding under the same
constraint.

forced      share of the tokens that were the only ones allowed
free alpha  mean of beta where more were, of a draft that is masked: at forced
            tokens its beta is 1
ended       share of the texts that ended by themselves; the others were cut,
            and are the beginning of a text of the language
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from experiments import constrained_report
from specjax import prompts
from specjax.bench import measure, results, row_fields, sampling_stages
from specjax.bench.checks import need_one_turn
from specjax.bench.config import Languages, SamplingValues
from specjax.bench.load import load_experiment
from specjax.bench.measure import Decoding
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, plan, whole_steps
from specjax.cli import command
from specjax.errors import need
from specjax.sampling import Automaton
from specjax.stats import metrics
from specjax.types import Drafter, Spec

NONE = 'none'


class Way(NamedTuple):
  """A method under a constraint, and whether its drafts are, too."""

  method: Method
  masked: bool

  @property
  def spec(self) -> Spec:
    return self.method.spec if self.masked else blind(self.method.spec)

  @property
  def decoding(self) -> Decoding:
    return Decoding(self.spec, self.method.params)

  @property
  def single(self) -> Decoding:
    way = self.method.single
    return way if self.masked else way._replace(spec=blind(way.spec))


@functools.cache
def _unmasked(drafter: Drafter) -> Drafter:
  """The same drafter, which is told of no constraint."""

  def free(ctx):
    return ctx._replace(
      sampling=ctx.sampling._replace(constraint=None),
      history=ctx.history._replace(state=None),
    )

  def init(params, ctx, hidden):
    return drafter.init(params, free(ctx), hidden)

  def propose(params, state, ctx, key):
    return drafter.propose(params, state, free(ctx), key)

  def commit(params, state, ctx, verdict, hidden):
    return drafter.commit(params, state, free(ctx), verdict, hidden)

  return drafter._replace(init=init, propose=propose, commit=commit)


def blind(spec: Spec) -> Spec:
  return dataclasses.replace(spec, drafter=_unmasked(spec.drafter))


class Setting(NamedTuple):
  """One language at one temperature, and the prompts that it continues."""

  language: str
  stages: SamplingValues
  temperature: float
  built: Loaded
  plan: Plan
  texts: list[list[int]]

  @property
  def automaton(self) -> Automaton | None:
    return getattr(self.stages, 'constraint', None)

  def job(self, indices) -> measure.Job:
    own = sampling_stages.values(
      self.stages, self.built.plain, len(indices), self.temperature
    )
    return measure.Job(
      [self.texts[i] for i in indices],
      np.asarray(indices),
      own,
      self.plan.max_new_tokens,
      self.plan.seed,
      *self.built.slots(self.plan.max_new_tokens),
    )

  def forced(self, texts) -> np.ndarray:
    """How many tokens of each text were the only ones allowed."""
    if self.automaton is None:
      return np.zeros(len(texts), int)
    counts = []
    for text in texts:
      state, count = 0, 0
      for token in text:
        count += self.automaton.only[state] == token
        state = self.automaton.follow([token], state)
      counts.append(count)
    return np.array(counts)

  def ways(self) -> list[Way]:
    """Masked drafts, and those that were told nothing where that differs."""
    found = [Way(method, True) for method in self.built.methods]
    if self.automaton is not None:
      # What has no distribution of its own is not masked anyway.
      found += [
        Way(m, False) for m in self.built.methods if m.draft is not None
      ]
    return found


def prepare(x: Languages) -> tuple[Plan, dict[str, SamplingValues]]:
  """The plan, and the stages of each language by name.

  Raises:
    UserError: names the field and the remedy.
  """
  need(x.languages, 'languages is empty: give at least one file of a schema')
  need(
    NONE not in x.languages,
    f'languages has {NONE!r}, which is measured anyway: choose another name',
  )
  need(
    not x.sampling.constrains,
    'sampling.regex and sampling.json_schema constrain all texts here: name '
    'languages instead',
  )
  need(x.batch == 1, f'batch is {x.batch}, but single prompts are timed here')
  need_one_turn(x.prompts)
  planned = whole_steps(plan(x))
  need(
    len(planned.rules) == 1,
    f'verifiers must be a single one here, got {planned.rules}',
  )
  stages = {NONE: x.sampling}
  for name, path in x.languages.items():
    own = dataclasses.replace(x.sampling, json_schema=path)
    sampling_stages.check_stages(own)
    stages[name] = sampling_stages.compile_for(
      own, planned.target, planned.max_new_tokens
    )
  return planned, stages


def row(setting: Setting, way: Way, base, runs, alpha: measure.Run) -> dict:
  """A row; `base` and `runs` have a run for each prompt."""
  counts = row_fields.join(runs)
  tau = metrics.ratio(counts.tokens, counts.target_calls)
  overlap, prefixes = alpha.counts.overlap, alpha.counts.histogram.sum(1)
  forced = setting.forced(alpha.texts)
  mean = metrics.ratio(overlap, prefixes).clipped(0.0, 1.0)
  own = np.maximum(overlap - forced, 0)  # But for rounding it is not less.
  free = metrics.ratio(own, prefixes - forced).clipped(0.0, 1.0)
  # Only a distribution that is masked is one-hot where one token is allowed.
  certain = way.masked and way.method.draft is not None
  speed = metrics.speedup(
    np.array([run.seconds for run in base]),
    np.array([len(run.texts[0]) for run in base]),
    np.array([run.seconds for run in runs]),
    np.array([len(run.texts[0]) for run in runs]),
  )
  share = metrics.ratio(forced, [len(text) for text in alpha.texts], most=1.0)
  automaton, eos = setting.automaton, setting.built.plain.eos
  texts = [run.texts[0] for run in runs]
  wrong = [t for t in texts if automaton and automaton.follow(t) < 0]
  if wrong:
    raise RuntimeError(f'a text is not of its language: {wrong[0]}')
  return {
    'masked': way.masked,
    'states': 0 if automaton is None else len(automaton.next),
    'classes': 0 if automaton is None else automaton.next.shape[1],
    'tokens': int(counts.tokens.sum()),
    'target_calls': int(counts.target_calls.sum()),
    'alpha': mean.value,
    'alpha_ci': mean.interval,
    'free_alpha': free.value if certain else None,
    'free_alpha_ci': free.interval if certain else None,
    'forced': share.value,
    'forced_ci': share.interval,
    'tau': tau.value,
    'tau_ci': tau.interval,
    'speedup': speed.value,
    'speedup_ci': speed.interval,
    'ended': float(np.mean([t[-1] in eos for t in texts])),
    'unit_overlap': overlap.tolist(),
    'unit_prefixes': prefixes.tolist(),
    'unit_tokens': counts.tokens.tolist(),
    'unit_target_calls': counts.target_calls.tolist(),
    **way.method.layouts(),
  }


def cells(
  settings: list[Setting], folder: results.Folder
) -> Iterator[tuple[Setting, list[tuple[Way, dict]]]]:
  """What is missing of each setting."""
  for setting in settings:
    missing = []
    for way in setting.ways():
      cell = {
        'language': setting.language,
        'temperature': setting.temperature,
        'drafter': way.method.drafter,
        'gamma': way.method.gamma,
        'masked': way.masked,
      }
      if not folder.has(**cell):
        missing.append((way, cell))
    if missing:
      yield setting, missing


def measure_setting(setting: Setting, missing, bar) -> Iterator[tuple]:
  """Plain decoding and all ways, in turn on each prompt; then alpha."""
  built, count = setting.built, len(setting.texts)
  jobs, wide = (
    [setting.job([i]) for i in range(count)],
    setting.job(range(count)),
  )
  compiled = [(built.base, jobs[0])]
  for way, _ in missing:
    compiled += [(way.decoding, jobs[0]), (way.single, wide)]
  measure.compile_all(compiled, lambda: None)
  base, runs = [], {way: [] for way, _ in missing}
  for job in jobs:
    base.append(measure.decode(built.base, job))
    for way, _ in missing:
      runs[way].append(measure.decode(way.decoding, job))
    bar.update()
  for way, cell in missing:
    alpha = measure.decode(way.single, wide, timed=False)
    yield cell, row(setting, way, base, runs[way], alpha)
  bar.update()


def run(
  x: Languages, planned: Plan, stages: dict, folder: results.Folder
) -> None:
  """Makes the rows that are missing."""
  built = load_experiment(planned).race()
  (domain, chosen), *others = built.prompts.items()
  need(
    not others,
    f'prompts.domains must be a single one here, got {tuple(built.prompts)}',
  )
  settings = [
    Setting(name, own, temperature, built, planned, chosen.texts)
    for name, own in stages.items()
    for temperature in planned.temperatures
  ]
  common = {
    'program': 'constrained',
    'config': x.name,
    'domain': domain,
    'prompts': len(chosen.texts),
    'prompts_hash': prompts.digest(chosen.texts),
    'new_tokens': planned.max_new_tokens,
    'batch': 1,
    'seed': planned.seed,
    'baseline': built.baseline.fields(),
    **results.conditions(),
  }
  todo = list(cells(settings, folder))
  with tqdm(total=len(todo) * (len(chosen.texts) + 1), file=sys.stderr) as bar:
    for setting, missing in todo:
      bar.set_description(f'{setting.language}, {setting.temperature:g}')
      methods = {way.method.drafter: way.method for way, _ in missing}
      for cell, made in measure_setting(setting, missing, bar):
        models = built.models(methods[cell['drafter']])
        folder.add(results.plain({**common, **models, **cell, **made}))


def main(x: Languages) -> None:
  if x.quick:
    x.shrink()
    x.languages = dict(list(x.languages.items())[:1])
  planned, stages = prepare(x)
  folder = results.Folder(planned.results, planned.settings)
  run(x, planned, stages, folder)
  text = constrained_report.summary(folder.rows)
  folder.write('summary.md', text)
  print(text)
  outcome: dict[str, Any] = {'results': str(folder.path)}
  print(json.dumps(outcome | {'rows': len(folder.rows)}))


if __name__ == '__main__':
  command.run(main, Languages, resumes=True)
