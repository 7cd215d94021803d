"""Which draft should I use, and how long should it draft?

  specjax predict

Any config of `specjax run` will do. The target writes text by plain
decoding while every candidate looks on (`replay`): that gives alpha and the
target calls of the speculative loop for every draft length, before it ever
runs. With measured costs this is a speed-up, a best length, and a ranking. Last
the loop runs with the best candidates of each domain and temperature, at their
best lengths, and stands beside its prediction.

Rows are kept as they are made, of three parts (replay, cost and check); the
same command goes on where it was stopped. `--device=h100` estimates the best
one for a device that is not there, as `specjax compiled` does.
"""

import dataclasses
import itertools
import json

import numpy as np

from specjax import prompts as reading
from specjax.bench import costs, measure, memory, replay, results
from specjax.bench.compiled import quote
from specjax.bench.config import Experiment, OnDevice
from specjax.bench.methods import Method
from specjax.bench.plan import Plan, need_one_device, plan, whole_steps
from specjax.bench.replay import Watched
from specjax.bench.runner import Runner
from specjax.cli import command, hosts, progress
from specjax.cli.fields import lower
from specjax.errors import need
from specjax.reports import compiled as device_report
from specjax.reports import predict as predict_report
from specjax.stats import metrics, sanity_checks, theory
from specjax.stats.row import pick

GAMMAS = (1, 2, 3, 5)
CHECKED = 3  # candidates of a domain and temperature, the fastest as predicted


def shrink(x: Experiment) -> None:
  """Leaves the quick version: two drafters, two lengths, few short texts."""
  x.drafters = x.drafters or tuple(x.known)[:2]
  lower(x, 'gammas', tuple(sorted({*(x.gammas or GAMMAS)}))[::2][:2])
  count = min(x.prompts.count, max(metrics.FEWEST, x.batch))
  lower(x, 'prompts.count', count)
  lower(x, 'max_new_tokens', min(x.max_new_tokens or 48, 48))


def prepare(x: Experiment) -> Plan:
  """Returns the plan of what can be replayed, in a folder of its own.

  Raises:
    UserError: names the field and the remedy.
  """
  need_one_device(x.mesh, 'texts are replayed')
  x.gammas = tuple(sorted({*(x.gammas or GAMMAS)}))
  x.results = x.results or f'{results.default_folder(x)}-predict'
  planned = whole_steps(plan(x))
  need(
    planned.rules == ('specjax.verify.token',),
    f'verifiers: only token is replayed, got {", ".join(planned.rules)}; '
    'measure other rules with specjax run',
  )
  return dataclasses.replace(planned, together=True)


class Predictor(Runner):
  """One prediction in one process."""

  program = 'predict'

  def __init__(self, plan: Plan):
    super().__init__(plan, replay.refuse_features)
    self.places = [*itertools.product(self.prompts, plan.temperatures)]
    self.drafters = tuple(dict.fromkeys(m.drafter for m in self.built.methods))

  @property
  def methods(self) -> dict[tuple[str, int], Method]:
    return {(m.drafter, m.gamma): m for m in self.built.methods}

  def rows(self, part: str, **cell) -> list[dict]:
    return pick(self.folder.rows, part=part, **cell)

  def add(self, part: str, method: Method, domain, temperature, **row) -> None:
    """Adds a row; what has times says the layouts that were timed."""
    full_row = {
      'program': self.program,
      'part': part,
      **dict.fromkeys(results.KEY),
      'batch': self.plan.batch,
      'config': self.plan.name,
      **self.built.models(method),
      'drafter': method.drafter,
      'verifier': method.verifier,
      'domain': domain,
      'temperature': temperature,
    }
    if part != 'cost':
      full_row['prompts'] = len(self.prompts[domain])
      said = self.built.prompts[domain].said
      full_row['prompts_hash'] = reading.digest(said)
    full_row |= row
    if part != 'replay':
      full_row |= {'baseline': self.built.baseline.fields()} | method.layouts()
    full_row |= {'seed': self.plan.seed, **self.conditions}
    full_row = results.plain(full_row)
    self.folder.add(full_row | {'impossible': sanity_checks.find(full_row)})

  def deepest(self, drafter: str) -> Method:
    """The method of a drafter's longest drafts."""
    return self.methods[drafter, max(self.plan.gammas)]

  def replay(
    self,
    drafter: str,
    domain: str,
    temperature: float,
    seen: list[list[Watched]],
  ) -> None:
    """Adds a row of the watched texts, with the turns of a prompt as one.

    A call gives 1 to gamma + 1 tokens, so intervals of tau end there.
    """
    every = [w for turns in seen for w in turns]
    tokens = np.array([sum(len(w.text) for w in turns) for turns in seen])
    beta = [sum(w.beta.sum() for w in turns) for turns in seen]
    alpha = metrics.ratio(beta, tokens).clipped(0.0, 1.0)
    gammas = self.plan.gammas
    calls = [[sum(w.calls(g) for w in turns) for turns in seen] for g in gammas]
    taus = [
      metrics.ratio(tokens, each).clipped(1, gamma + 1)
      for gamma, each in zip(gammas, calls, strict=True)
    ]
    by_beta = [sum(w.calls_by_beta(g) for w in every) for g in gammas]
    shared = float(np.clip(alpha.value, 0, 1))
    texts = [np.concatenate([w.text for w in turns]) for turns in seen]
    self.add(
      'replay',
      self.deepest(drafter),
      domain,
      temperature,
      tokens=int(tokens.sum()),
      unit_tokens=tokens.tolist(),
      unit_overlap=[round(float(x), 4) for x in beta],
      digests=[reading.digest([text]) for text in texts],
      coverage=float(np.concatenate([w.size > 0 for w in every]).mean()),
      alpha=alpha.value,
      alpha_ci=alpha.interval,
      gammas=list(gammas),
      unit_target_calls=calls,
      tau=[tau.value for tau in taus],
      tau_ci=[tau.interval for tau in taus],
      tau_by_beta=[tokens.sum() / each for each in by_beta],
      tau_iid=[float(theory.tokens_per_call(shared, g)) for g in gammas],
    )

  def look(self) -> None:
    """Part 1: every candidate looks on, everywhere."""
    missing = {}
    for domain, temperature in self.places:
      where = {'domain': domain, 'temperature': temperature}
      if names := [
        name
        for name in self.drafters
        if not self.rows('replay', drafter=name, **where)
      ]:
        missing[domain, temperature] = names
    if not missing:
      return
    job = self.units(*self.places[0])[0]

    def draws(drafter: str) -> bool:
      method = self.deepest(drafter)
      drawn = costs.is_drawn(method.way, job)
      if drawn:
        replay.refuse_stops(self.plan, method, job)
      return drawn

    def watch(cell: tuple[tuple[str, float], list[str]]):
      group, names = cell
      chosen = self.built.prompts[group[0]]
      seen: list[list[list[Watched]]] = [[] for _ in names]
      for job in self.units(*group, memory.rows_watched(len(chosen.texts))):
        made = replay.watch_turns(
          [self.deepest(name) for name in names],
          job,
          [drawn[name] for name in names],
          chosen.talks,
        )
        for every, part in zip(seen, made, strict=True):
          every += part[: job.live]
      return seen

    with progress.phase('drafters look on', len(missing)) as phase:
      every = [*dict.fromkeys(itertools.chain(*missing.values()))]
      found = measure.side_by_side(draws, every)
      drawn = dict(zip(every, found, strict=True))
      made = measure.side_by_side(watch, missing.items())
      for (group, names), seen in zip(missing.items(), made, strict=True):
        for name, texts in zip(names, seen, strict=True):
          self.replay(name, *group, texts)
        phase.advance()

  def price(self) -> None:
    """Part 2: what a step of every method costs, one drafter at a time."""
    missing = [
      cell
      for cell in self.methods
      if not self.rows('cost', drafter=cell[0], gamma=cell[1])
    ]
    if not missing:
      return
    jobs = self.units(self.places[0][0], 0.0)
    turns = range(3 if self.plan.quick else 7)
    names = dict.fromkeys(name for name, _ in missing)
    self.settle()
    for name in names:
      measure.make_room()
      methods = [self.methods[cell] for cell in missing if cell[0] == name]
      timed = {m: (m.way, costs.replay(m.way, jobs[0])) for m in methods}
      ways = [
        loop
        for pair in timed.values()
        for loop in costs.to_compile(*pair, jobs[0], ('whole', 'scored'))
      ]
      measure.compile_all([(self.built.base, jobs[0]), *ways])
      timer = costs.Timer(self.built.base, timed)
      for i in progress.over(f'costs of {name}', turns, alike=1):
        timer.turn(jobs[i % len(jobs)])
      for m in methods:
        cost = timer.costs(m)
        self.add(
          'cost',
          m,
          None,
          None,
          gamma=m.gamma,
          plain_seconds=np.median(cost.plain),
          v=cost.v,
          c=cost.c,
          seconds_per_step=cost.seconds(),
        )

  def choices(self) -> dict[tuple[str, float], list[tuple[str, int]]]:
    """Chooses the fastest of every cell, at their best lengths, to check.

    The candidate that is best over all domains is checked, too.
    """
    board = predict_report.Board(self.folder.rows)
    chosen = {}
    for domain, temperature in self.places:
      fastest = board.ranked(self.drafters, [domain], temperature)[:CHECKED]
      pairs = [(choice.drafter, choice.gamma) for choice in fastest]
      if winner := board.winner(temperature):
        pairs.append((winner.drafter, winner.gamma))
      chosen[domain, temperature] = [*dict.fromkeys(pairs)]
    return chosen

  def check_all(self) -> None:
    """Part 3: the loop itself, beside what was predicted."""
    missing: dict[tuple[str, float], list[tuple[str, int]]] = {}
    for (domain, temperature), pairs in self.choices().items():
      where = {'domain': domain, 'temperature': temperature}
      for name, gamma in pairs:
        if not self.rows('check', drafter=name, gamma=gamma, **where):
          missing.setdefault((domain, temperature), []).append((name, gamma))
    if not missing:
      return
    self.settle()
    every = dict.fromkeys(itertools.chain.from_iterable(missing.values()))
    job = self.units(*self.places[0])[0]
    ways = [self.built.base, *(self.methods[pair].way for pair in every)]
    measure.compile_all([(way, job) for way in ways])
    for (domain, temperature), pairs in missing.items():
      self.check(domain, temperature, [self.methods[pair] for pair in pairs])

  def check(self, domain: str, temperature: float, methods: list[Method]):
    """Decodes a cell with plain decoding and methods in turns; adds rows."""
    title = f'{domain}, temperature {temperature:g}, checking'
    cells = {m: m.cell(domain, temperature) for m in methods}
    base, runs = self.in_turns(title, domain, temperature, cells)
    where = {'domain': domain, 'temperature': temperature}
    for m in methods:
      (seen,) = self.rows('replay', drafter=m.drafter, **where)
      (cost,) = self.rows('cost', drafter=m.drafter, gamma=m.gamma)
      compared = replay.compare(seen, cost, base, runs[m])
      self.add('check', m, domain, temperature, gamma=m.gamma, **compared)

  def run(self) -> None:
    """Makes the rows that are missing."""
    self.look()
    if self.plan.timed:
      self.price()
      self.check_all()


def main(x: OnDevice) -> None:
  if x.quick:
    shrink(x)
  planned = prepare(x)
  asks = quote.prepare(x, planned)
  predictor = Predictor(planned)
  if predictor.folder.warning:
    hosts.tell(predictor.folder.warning)
  predictor.run()
  folder = predictor.folder
  results.publish(folder)
  board = predict_report.Board(folder.rows)
  row = board.best_row(asks)
  elsewhere = quote.beside(asks, row)
  if elsewhere:
    print(device_report.beside(elsewhere, row))
  elif asks:
    print(f'No draft that is a language model was checked: no {x.device}.')
  sanity_checks.warn(folder.rows)
  last = {'impossible': len(sanity_checks.of(folder.rows)), **board.last_line()}
  last |= device_report.quoted(elsewhere)
  print(json.dumps({'results': str(folder.path), **last}))


def start() -> None:
  command.run(main, OnDevice, resumes=True, extends=True)
