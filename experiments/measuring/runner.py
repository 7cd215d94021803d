"""One experiment in one process: what is measured, and in which turns.

`experiments.run` is its program; others measure between its prompts.
"""

import functools
import sys
from collections.abc import Callable

import jax
import numpy as np
from tqdm import tqdm

from experiments import prompts
from experiments.measuring import (
  costs,
  impossible,
  measure,
  results,
  row_fields,
  ties,
  turns,
)
from experiments.measuring.build import Built, Method, build
from experiments.setup import hosts, meshes
from experiments.setup.checks import values
from experiments.setup.plan import Plan
from specjax import generate, metrics


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


class Runner:
  """One experiment in one process."""

  program = 'run'  # that its rows are of

  def __init__(
    self, plan: Plan, refuse: Callable[[Plan, Built], None] | None = None
  ):
    """Checks and loads everything, and only then opens the folder.

    Args:
      plan: of the experiment.
      refuse: raises where it cannot do with what was loaded.
    """
    self.plan = plan
    results.check_folder(plan)
    self.built: Built = build(plan)
    if refuse is not None:
      refuse(plan, self.built)
    self.prompts = {d: c.texts for d, c in self.built.prompts.items()}
    said = {d: c.said for d, c in self.built.prompts.items()}
    self.folder = results.open_folder(plan, said)
    self.conditions = results.conditions()
    self.slots, self.source_slots = self.built.slots(plan.max_new_tokens)
    self.groups = [
      (d, t)
      for d in self.prompts
      for t in plan.temperatures
      if not all(self.done(m, d, t) for m in self.built.methods)
    ]
    self.alphas: dict = {}
    self.exchanged: dict = {}
    self.readings: dict[str, dict] = {}  # of heads that were probed, by name
    self.compilations = 0.0

  def done(self, method: Method, domain: str, temperature: float) -> bool:
    return self.folder.has(**method.cell(domain, temperature))

  def todo(self, domain, temperature) -> dict[Method, dict]:
    """The methods that a group needs, with their cells.

    Where time is taken it needs all: they are compared with one another.
    """
    return {
      m: m.cell(domain, temperature)
      for m in self.built.methods
      if self.plan.timed or not self.done(m, domain, temperature)
    }

  def job(self, texts, indices, temperature, rows=0) -> measure.Job:
    """Prompts with one temperature, or one [B] for each.

    Up to so many rows the batch is filled with prompts that get no new tokens:
    another number of rows would be another program.
    """
    plan, live = self.plan, len(texts)
    place = np.arange(max(rows, live)) % live
    new_tokens: int | np.ndarray = plan.max_new_tokens
    if live < len(place):
      new_tokens = np.where(np.arange(len(place)) < live, new_tokens, 0)
    return measure.Job(
      [texts[i] for i in place],
      np.asarray(indices)[place],
      values(plan.sampling, self.built.plain, len(place), temperature),
      new_tokens,
      plan.seed,
      self.slots,
      self.source_slots,
      live,
    )

  def units(self, domain: str, temperature: float) -> list[measure.Job]:
    """Batches of the domain's prompts; the last one is filled up."""
    texts, batch = self.prompts[domain], self.plan.batch
    return [
      self.job(
        texts[i : i + batch],
        range(len(texts))[i : i + batch],
        temperature,
        rows=batch,
      )
      for i in range(0, len(texts), batch)
    ]

  def whole(self, domain: str, temperature: float) -> measure.Job:
    """All prompts of a domain in one batch, filled up for the mesh."""
    texts = self.prompts[domain]
    rows = meshes.round_rows(len(texts), self.plan.mesh)
    return self.job(texts, range(len(texts)), temperature, rows=rows)

  def settle(self, bar) -> None:
    """Measures which layout of weights is fastest, where it was not yet."""
    self.built = self.built.race(
      lambda what: bar.set_description(f'layouts: {what}')
    )

  def warm_up(self, bar) -> None:
    """Chooses layouts, compiles every program, and measures the costs."""
    jobs = self.units(self.groups[0][0], 0.0)
    try:
      self.settle(bar)
      timed = self.compile(jobs[0], bar)
    except measure.NotFinite as error:
      cells = ', '.join(f'{d} at temperature {t:g}' for d, t in self.groups)
      raise measure.NotFinite(f'{error} in one of the cells {cells}') from error
    self.timer = costs.Timer(self.built.base, timed)
    self.measure_costs(jobs, bar)
    for method, (way, _) in timed.items():
      self.exchanged[method] = measure.exchanged(way, jobs[0])

  def compile(self, job: measure.Job, bar) -> dict:
    """Compiles every program; returns each method with its replay."""
    built, wide = self.built, self.whole(*self.groups[0])
    ways: dict = {}
    if built.baseline.seconds is None:  # It was not decoded with yet.
      ways[built.plain, ''] = built.base, job
    # Drafters that differ in their parameters alone share a program, but on a
    # mesh it is remembered for each.
    timed = {}
    for m in built.methods:
      timed[m] = m.way, costs.replay(m.way, job)
      for pair in costs.to_compile(*timed[m], job, ('whole', 'scored')):
        ways[pair[0].spec, m.drafter] = pair
    for (drafter, parts), m in singles(built.methods).items():
      single = measure.Decoding(m.single, m.single_params, parts)
      ways[(m.single, parts), drafter] = single, wide
    bar.set_description('compiling')
    bar.total += len(ways)
    self.compilations = measure.compile_all(list(ways.values()), bar.update)
    return timed

  def measure_costs(self, jobs: list[measure.Job], bar) -> None:
    """Takes the turns that costs are medians of, on greedy jobs."""
    bar.set_description('costs')
    turns = 3 if self.plan.quick else 7
    bar.total += turns
    for i in range(turns):
      self.timer.turn(jobs[i % len(jobs)])
      bar.update()

  def between(self) -> None:
    """Whatever else is to be measured between two batches of prompts."""

  def play(self, decode, domain: str, job: measure.Job, lead=()) -> measure.Run:
    """A batch of prompts with all turns; see `turns.play`."""
    return turns.play(decode, job, self.built.prompts[domain].talks, lead)

  def measure_alpha(self, methods, domain, temperature, base, bar) -> None:
    """The mean of beta at every prefix of the target's own text.

    Later turns of conversations hold the answers of plain decoding.
    """
    jobs, leads = self.units(domain, temperature), [[run] for run in base]
    if self.plan.timed:  # Nothing else runs in large batches then.
      jobs, leads = [self.whole(domain, temperature)], [base]
    for (drafter, parts), m in singles(methods).items():
      runs, way = [], measure.Decoding(m.single, m.single_params, parts)
      decode = functools.partial(measure.decode, way, timed=False)
      for job, lead in zip(jobs, leads, strict=True):
        runs.append(self.play(decode, domain, job, lead))
        bar.update()
      where = domain, temperature
      # The rows beyond are there to fill up the mesh.
      alpha = row_fields.alpha_of(runs, len(self.prompts[domain]))
      self.alphas[drafter, parts, where] = alpha

  def decode(
    self, method: Method, cell: dict, job: measure.Job, base: measure.Run
  ) -> measure.Run:
    """One batch with a method; what is not finite names the cell.

    At temperature 0 later turns hold the answers of plain decoding: they are
    the method's own, up to ties. Above it each method holds a conversation of
    its own.
    """
    way = measure.decode if self.plan.timed else measure.record
    lead = () if cell['temperature'] else [base]
    try:
      return self.play(
        functools.partial(way, method.way), cell['domain'], job, lead
      )
    except measure.NotFinite as error:
      raise measure.NotFinite(f'{error} in the cell {cell}') from error

  def group(self, domain: str, temperature: float, bar) -> None:
    """Decodes one domain at one temperature with everything.

    Where time is taken, methods take turns on each batch.
    """
    jobs = self.units(domain, temperature)
    todo = self.todo(domain, temperature)
    bar.set_description(f'{domain}, temperature {temperature:g}')
    plain = functools.partial(
      measure.decode, self.built.base, timed=self.plan.timed
    )
    base, runs = [], {method: [] for method in todo}
    for job in jobs:
      run = self.play(plain, domain, job)
      base.append(run)
      bar.update()
      if self.plan.timed:
        for method, cell in todo.items():
          runs[method].append(self.decode(method, cell, job, run))
          bar.update()
        self.between()
    self.measure_alpha(todo, domain, temperature, base, bar)
    for method, cell in todo.items():
      left = list(zip(jobs, base, strict=True))[len(runs[method]) :]
      for job, run in left:
        runs[method].append(self.decode(method, cell, job, run))
        bar.update()
      if not self.done(method, domain, temperature):
        self.folder.add(self.row(method, cell, base, runs[method]))

  def row(self, method: Method, cell: dict, base, runs) -> dict:
    """The row of one cell; see docs/measuring.md."""
    plan, domain = self.plan, cell['domain']
    where = domain, cell['temperature']
    alpha = self.alphas[method.drafter, generate.PARTS, where]
    under_rule = self.alphas[method.drafter, method.chance, where]
    times = row_fields.NO_SPEED
    if plan.timed:
      times = row_fields.speed(runs, base, self.timer.costs(method))
      times |= {'baseline': self.built.baseline.fields(), **method.layouts()}
    row = results.plain(
      {
        'program': self.program,
        'config': plan.name,
        **self.built.models(method),
        **cell,
        **method.brings,
        **self.reading(method),
        **row_fields.language(
          getattr(plan.sampling, 'constraint', None), runs, self.built.plain.eos
        ),
        'lossless': method.spec.rule.lossless,
        'timed': plan.timed,
        'batch': plan.batch,
        'prompts': sum(len(r.texts) for r in runs),
        'prompts_hash': prompts.digest(self.built.prompts[domain].said),
        'prompts_from': self.built.prompts[domain].facts(),
        'new_tokens': plan.max_new_tokens,
        **row_fields.acceptance(runs, alpha, under_rule),
        **row_fields.by_turn(runs, alpha, base if plan.timed else []),
        **times,
        **self.compare(method, cell, base, runs),
        'repetition': metrics.repetition(t for r in base for t in r.texts),
        'compilations': self.compilations + sum(r.compilations for r in runs),
        'paper': None,
        'seed': plan.seed,
        'mesh': plan.mesh.facts() | {'processes': jax.process_count()},
        'collectives': self.exchanged.get(method, {}),
        **self.conditions,
      }
    )
    return row | {'impossible': impossible.find(row)}

  def reading(self, method: Method) -> dict:
    """The field of a row that says how its head was read, if it was probed."""
    found = self.readings.get(method.drafter)
    return {'reading': found} if found else {}

  def compare(self, method: Method, cell: dict, base, runs) -> dict:
    """At temperature 0, whether the texts are those of plain decoding.

    A difference is listed as `ties.Difference` says: a tie or a bug. A lossy
    rule's text is another one.
    """
    if cell['temperature'] or not method.spec.rule.lossless:
      return {'identical_to_plain': None, 'differences': []}
    differences, same = [], 0
    units = self.units(cell['domain'], 0.0)
    talks = self.built.prompts[cell['domain']].talks
    ways = [
      ties.way(way, self.plan.batch, self.slots, self.source_slots)
      for way in (self.built.base, method.way)
    ]
    for first, plain_run, run in zip(units, base, runs, strict=True):
      for text in turns.pairs(first, talks, plain_run, run):
        if text.plain == text.other:
          same += 1
          continue
        values = self.job([text.prompt], [0], 0.0).values
        found = ties.explain(ways, text.prompt, values, text.plain, text.other)
        differences.append(text.where | found._asdict())
    return {'identical_to_plain': same, 'differences': differences}

  def run(self) -> None:
    """Makes the rows that are missing."""
    if not self.groups:
      return
    total = 0
    for group in self.groups:
      todo, units = self.todo(*group), len(self.units(*group))
      alphas = len(singles(todo)) * (1 if self.plan.timed else units)
      total += alphas + units * (1 + len(todo))
    quiet = not hosts.leads()
    with tqdm(total=total, file=sys.stderr, disable=quiet) as bar:
      if self.plan.timed:
        self.warm_up(bar)
      for domain, temperature in self.groups:
        self.group(domain, temperature, bar)
