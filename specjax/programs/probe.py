"""Is this head loaded as it was trained? Its near alternatives say so.

  specjax probe pair \\
    --target.path=TARGET --draft.path=HEAD

A head that is fed the wrong layers, normed in the wrong place or given other
rotary positions keeps the output exact and accepts little, and nothing else
tells. The same weights draft along the same greedy texts of the target, read as
they are configured and in every near way (`alternatives` of the drafter's
module); with a chat template also with other system prompts. The exit status is
1 where one of them is clearly better.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from specjax import prompts
from specjax.bench import load, measure, probing, results
from specjax.bench.config import Experiment
from specjax.bench.plan import Plan, PlannedDrafter, need_one_device, plan
from specjax.bench.runner import Runner
from specjax.cli import command
from specjax.errors import need
from specjax.prompts import Chosen
from specjax.reports import probe as probe_report
from specjax.stats.readings import CONFIGURED, Look

_PROMPTS = 32  # of all domains together
_NEW_TOKENS = 32
_SYSTEM = 'You are a helpful assistant.'


def prepare(x: Experiment) -> Plan:
  """The plan of the drafters whose weights can be read in several ways.

  Raises:
    UserError: names the field and the remedy.
  """
  need_one_device(x.mesh, 'a head is probed')
  x.temperatures, x.timed = (0.0,), False
  x.prompts.count = min(x.prompts.count, _PROMPTS)
  x.prompts.turns = 1
  x.max_new_tokens = min(x.max_new_tokens, _NEW_TOKENS)
  x.batch = 1
  x.results = x.results or f'{results.default_folder(x)}-probe'
  planned = plan(x)
  heads = {
    name: dataclasses.replace(one, gammas=(min(probing.DEPTH, *one.gammas),))
    for name, one in planned.drafters.items()
    if probing.has_alternatives(one)
  }
  need(
    heads,
    f'drafters: none of {", ".join(planned.drafters)} reads features of the '
    'target in a way that could be mistaken: name a head, such as eagle:PATH',
  )
  return dataclasses.replace(planned, drafters=heads)


def _other_prompts(plan: Plan) -> dict[str, Plan]:
  """Plans with other system prompts, where a template puts them anywhere."""
  if not plan.prompts.chat:
    return {}
  other = '' if plan.prompts.system else _SYSTEM
  name = f'system prompt {_SYSTEM!r}' if other else 'no system prompt'
  changed = dataclasses.replace(plan.prompts, system=other)
  return {name: dataclasses.replace(plan, prompts=changed)}


class Probe:
  """The probe of all heads of a plan, in one process."""

  def __init__(self, plan: Plan):
    """Checks and loads everything, and only then opens the folder."""
    self.plan = plan
    self.runner = Runner(plan)
    self.folder = self.runner.folder
    self.built = self.runner.built
    self.jobs = {CONFIGURED: self.batches(self.built.prompts)}
    self.others = _other_prompts(plan)

  def batches(self, chosen: Mapping[str, Chosen]) -> list[measure.Job]:
    """Batches of prompts of all domains, which the target continues."""
    most = self.plan.max_new_tokens
    return probing.jobs(self.runner.job, chosen, _PROMPTS, most)

  def other_jobs(self) -> dict[str, list[measure.Job]]:
    """Batches with other system prompts, by what they change."""
    found = {}
    for name, other in self.others.items():
      seen = load.survey(other)
      texts = load.read_prompts(other, seen.tokenizer, seen.described)
      longer = dataclasses.replace(self.built, prompts=texts)
      slots, _ = longer.slots(self.plan.max_new_tokens)
      found[name] = [
        dataclasses.replace(job, slots=max(job.slots, slots))
        for job in self.batches(texts)
      ]
    return found

  def row(
    self, one: PlannedDrafter, name: str, changes: Mapping[str, Any], seen: Look
  ) -> dict:
    """The row of one reading of one head."""
    if name in self.others:
      changes = {'prompts.system': self.others[name].prompts.system}
    jobs = self.jobs.get(name, self.jobs[CONFIGURED])
    texts = [text for job in jobs for text in job.prompts[: job.live]]
    (method,) = (m for m in self.built.methods if m.drafter == one.name)
    return {
      'program': 'probe',
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
      **self.runner.conditions,
    }

  def run(self) -> None:
    """Makes the rows that are missing."""
    loaded = self.built
    self.jobs |= self.other_jobs()
    todo = [
      (one, name, changes)
      for one in self.plan.drafters.values()
      for name, changes in (
        *probing.alternatives(one, loaded).items(),
        *((name, {}) for name in self.others),
      )
      if not self.folder.has(drafter=one.name, alternative=name)
    ]
    for one, name, changes in tqdm(todo, 'readings', file=sys.stderr):
      jobs = self.jobs.get(name, self.jobs[CONFIGURED])
      seen = probing.look(one, loaded, changes, jobs)
      need(
        seen.places.any(),
        f'prompts: all texts of the target end within {seen.accepted.shape[1]} '
        'tokens, before a whole draft: choose others',
      )
      self.folder.add(self.row(one, name, changes, seen))


def main(x: Experiment) -> None:
  if x.quick:
    x.shrink()
  probe = Probe(prepare(x))
  probe.run()
  folder = probe.folder
  folder.write('summary.md', probe_report.summary(folder.rows))
  print(probe_report.summary(folder.rows))
  verdicts = probe_report.verdicts(folder.rows)
  print(json.dumps({'results': str(folder.path), **verdicts}))
  if any(one != CONFIGURED for one in verdicts['best'].values()):
    raise SystemExit(1)


def start() -> None:
  command.run(main, Experiment, resumes=True)
