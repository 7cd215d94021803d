"""One experiment in one process: what is measured, and in which turns.

`specjax run` is its program; others measure between its prompts.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax

from specjax.bench import (
  costs,
  measure,
  meshes,
  results,
  row_fields,
  ties,
  turns,
)
from specjax.bench.load import load_experiment
from specjax.bench.methods import Loaded, Method, singles
from specjax.bench.plan import Plan
from specjax.cli import progress
from specjax.loop import generate
from specjax.stats import metrics, sanity_checks
from specjax.types import Spec

_AT_ONCE = 4  # methods that are compiled before programs are counted

# Methods with their loops and the replays of them.
Timed = dict[Method, tuple[measure.Decoding, Spec]]


class Runner:
  """One experiment in one process."""

  program = 'run'  # of its rows

  def __init__(
    self, plan: Plan, adapt: Callable[[Loaded], Loaded] = lambda loaded: loaded
  ):
    """Checks and loads everything, and only then opens the folder.

    Args:
      plan: of the experiment.
      adapt: changes what was loaded, such as its prompts, or refuses it.
    """
    results.check_folder(plan)
    self.built = adapt(load_experiment(plan))
    self.plan = self.built.plan  # Its mesh says whether drafts are split.
    # All layouts, where another batch may take others.
    self.before_races = self.built if len(plan.batches) > 1 else None
    self.prompts = {d: c.texts for d, c in self.built.prompts.items()}
    said = {d: c.said for d, c in self.built.prompts.items()}
    self.folder = results.open_folder(plan, said)
    self.conditions = results.conditions()
    self.alphas: dict = {}
    self.exchanged: dict = {}
    self.readings: dict[str, dict] = {}  # fields of heads that were probed
    self.compilations = 0.0
    self.turn = slice(None)  # of the methods; see `part`

  @property
  def part(self) -> Sequence[Method]:
    """The methods that are decoded in turns now: as many as fit at once."""
    return self.built.methods[self.turn]

  def left(self, batch: int) -> list[tuple[str, float]]:
    """Domains and temperatures in which methods of now lack rows of a batch."""
    return [
      where
      for where in itertools.product(self.prompts, self.plan.temperatures)
      if not all(
        self.folder.has(**m.cell(*where), batch=batch) for m in self.part
      )
    ]

  @property
  def groups(self) -> list[tuple[str, float]]:
    """Domains and temperatures that lack rows of the batch of now."""
    return self.left(self.plan.batch)

  def complete(self) -> bool:
    return not any(map(self.left, self.plan.batches))

  def take(self, batch: int) -> None:
    """Decodes another batch from now on; its layouts are not measured yet."""
    if batch != self.plan.batch and self.before_races:
      self.plan = dataclasses.replace(self.plan, batch=batch)
      self.built = dataclasses.replace(self.before_races, plan=self.plan)

  def todo(self, domain, temperature) -> dict[Method, dict]:
    """The methods of this part that a group needs, with their cells.

    Where time is taken it needs all: they are compared with one another.
    """
    batch = {'batch': self.plan.batch}
    cells = {m: m.cell(domain, temperature) | batch for m in self.part}
    if self.plan.timed:
      return cells
    return {m: c for m, c in cells.items() if not self.folder.has(**c)}

  def units(
    self, domain: str, temperature: float, batch: int = 0
  ) -> list[measure.Job]:
    """Batches of the domain's prompts; the last one is filled up."""
    texts, batch = self.prompts[domain], batch or self.plan.batch
    return [
      self.built.job(
        texts[i : i + batch],
        range(len(texts))[i : i + batch],
        temperature,
        rows=batch,
      )
      for i in range(0, len(texts), batch)
    ]

  def whole(self, domain: str, temperature: float) -> measure.Job:
    """All prompts of a domain in one batch, filled up for the mesh."""
    rows = meshes.round_rows(len(self.prompts[domain]), self.plan.mesh)
    (job,) = self.units(domain, temperature, rows)
    return job

  def settle(self) -> None:
    """Measures which layout of weights is fastest, where it was not yet."""
    self.built = self.built.race()

  def warm_up(self) -> None:
    """Chooses layouts, compiles every program, and measures the costs."""
    units = self.units(self.groups[0][0], 0.0)
    try:
      self.settle()
      timed = self.compile(units[0])
    except measure.NotFinite as error:
      cells = ', '.join(f'{d} at temperature {t:g}' for d, t in self.groups)
      raise measure.NotFinite(f'{error} in one of the cells {cells}') from error
    self.timer = costs.Timer(self.built.base, timed)
    self.measure_costs(units)
    for method, (way, _) in timed.items():
      self.exchanged[method] = measure.exchanged(way, units[0])

  def compile(self, job: measure.Job) -> Timed:
    """Compiles methods until there are no more, or programs crowd the process.

    Only these methods are decoded in this turn. Returns each with its replay.
    """
    begin, methods = self.turn.start, self.part
    wide = self.whole(*self.groups[0])
    programs, timed, done = 0, {}, set()
    while len(timed) < len(methods) and not (timed and measure.crowded()):
      some = methods[len(timed) : len(timed) + _AT_ONCE]
      begun = {
        m: (m.way, costs.replay(m.way, job))
        for m in progress.over('preparing methods', some)
      }
      new = {
        n: w for n, w in self.loops(begun, job, wide).items() if n not in done
      }
      programs += measure.compile_all(list(new.values()))
      timed |= begun
      done |= new.keys()
    self.compilations = programs / len(done)
    self.turn = slice(begin, begin + len(timed))
    return timed

  def loops(self, timed: Timed, job: measure.Job, wide: measure.Job) -> dict:
    """Returns all loops of some methods, by what tells programs apart.

    Drafters that differ in their parameters alone share a program, but on a
    mesh it is remembered for each. What another batch or the race of layouts
    compiled is left out.

    Args:
      timed: the methods.
      job: one batch of prompts.
      wide: all prompts of a domain, on which alpha is measured.
    """
    ways: dict = {}
    if self.turn.start or self.built.baseline.seconds is None:
      ways['plain'] = self.built.base, job
    for m, pair in timed.items():
      for way, its in costs.to_compile(*pair, job, ('whole', 'scored')):
        ways[way.spec, m.drafter] = way, its
    for (drafter, parts), m in singles(timed).items():
      if any((drafter, parts, g) not in self.alphas for g in self.groups):
        single = m.single._replace(parts=parts)
        ways[(single.spec, parts), drafter] = single, wide
    return ways

  def measure_costs(self, units: list[measure.Job]) -> None:
    """Takes the turns that costs are medians of, on greedy jobs."""
    turns = range(3 if self.plan.quick else 7)
    for i in progress.over('costs of a step', turns, alike=1):
      self.timer.turn(units[i % len(units)])

  def between(self) -> None:
    """Measures whatever else is wanted between two batches of prompts."""

  def play(self, decode, domain: str, job: measure.Job, lead=()) -> measure.Run:
    """Decodes a batch of prompts with all turns; see `turns.play`."""
    return turns.play(decode, job, self.built.prompts[domain].talks, lead)

  def measure_alpha(self, methods, domain, temperature, base) -> None:
    """Measures the mean of beta at every prefix of the target's own text.

    It is that of any batch, so it is measured once. Later turns of
    conversations hold the answers of plain decoding.
    """
    units, leads = self.units(domain, temperature), [[run] for run in base]
    if self.plan.timed:  # Nothing else runs in large batches then.
      units, leads = [self.whole(domain, temperature)], [base]
    where = domain, temperature
    for (drafter, parts), m in singles(methods).items():
      if (drafter, parts, where) in self.alphas:
        continue
      runs, way = [], m.single._replace(parts=parts)
      decode = functools.partial(measure.decode, way, timed=False)
      for job, lead in zip(units, leads, strict=True):
        runs.append(self.play(decode, domain, job, lead))
      # The rows beyond are there to fill up the mesh.
      alpha = row_fields.alpha_of(runs, len(self.prompts[domain]))
      self.alphas[drafter, parts, where] = alpha

  def decode(
    self, method: Method, cell: dict, job: measure.Job, base: measure.Run
  ) -> measure.Run:
    """Decodes one batch with a method; what is not finite names the cell.

    At temperature 0 later turns hold the answers of plain decoding: they are
    the method's own, up to ties. Above it each method holds its conversation.
    """
    way = measure.decode if self.plan.timed else measure.record
    lead = () if cell['temperature'] else [base]
    try:
      return self.play(
        functools.partial(way, method.way), cell['domain'], job, lead
      )
    except measure.NotFinite as error:
      raise measure.NotFinite(f'{error} in the cell {cell}') from error

  def in_turns(
    self, title: str, domain: str, temperature: float, cells: dict[Method, dict]
  ) -> tuple[list[measure.Run], dict[Method, list[measure.Run]]]:
    """Decodes every batch of a domain plainly, and then with each method.

    Args:
      title: of the phase.
      domain: of the prompts.
      temperature: of sampling.
      cells: the methods with their cells.

    Returns:
      The runs of plain decoding, a batch each, and those of the methods.
    """
    base, runs = [], {method: [] for method in cells}
    plain = functools.partial(
      measure.decode, self.built.base, timed=self.plan.timed
    )
    units = self.units(domain, temperature)
    for job in progress.over(title, units, alike=1):
      base.append(self.play(plain, domain, job))
      for method, cell in cells.items():
        runs[method].append(self.decode(method, cell, job, base[-1]))
      self.between()
    return base, runs

  def group(self, domain: str, temperature: float) -> None:
    """Decodes one domain at one temperature with everything.

    Where time is taken, methods take turns on each batch.
    """
    todo = self.todo(domain, temperature)
    timed, more = self.plan.timed, len(self.groups) - 1
    title = f'{domain}, temperature {temperature:g}'
    title += f', batch {self.plan.batch}' * (len(self.plan.batches) > 1)
    title += f' ({more} more)' * (more > 0)
    first = title if timed else f'{title}, plain decoding'
    at_once = todo if timed else {}
    base, runs = self.in_turns(first, domain, temperature, at_once)
    units = self.units(domain, temperature)
    second = f'{title}, alpha' if timed else f'{title}, drafters'
    with progress.phase(second, len(todo)) as phase:
      self.measure_alpha(todo, domain, temperature, base)
      for method, cell in todo.items():
        if not timed:  # Else they are all compiled and decoded.
          measure.make_room()
          pairs = zip(units, base, strict=True)
          runs[method] = [self.decode(method, cell, *pair) for pair in pairs]
        if not self.folder.has(**cell):
          self.folder.add(self.row(method, cell, base, runs[method]))
        phase.advance()

  def row(self, method: Method, cell: dict, base, runs) -> dict:
    """Returns the row of one cell; see docs/measuring.md."""
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
        **self.readings.get(method.drafter, {}),
        **row_fields.language(
          getattr(plan.sampling, 'constraint', None), runs, self.built.plain.eos
        ),
        'lossless': method.spec.rule.lossless,
        'timed': plan.timed,
        'prompts': sum(len(r.texts) for r in runs),
        **row_fields.which(self.built.prompts[domain].said),
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
    return row | {'impossible': sanity_checks.find(row)}

  def compare(self, method: Method, cell: dict, base, runs) -> dict:
    """Compares greedy texts with those of plain decoding, for a row.

    Each difference is explained: a tie or a bug. A lossy rule's text is
    another one.
    """
    if cell['temperature'] or not method.spec.rule.lossless:
      return {'identical_to_plain': None, 'differences': []}
    ways = [
      ties.way(way, self.plan.batch, *self.built.slots)
      for way in (self.built.base, method.way)
    ]
    talks = self.built.prompts[cell['domain']].talks
    differences, same = [], 0
    units = self.units(cell['domain'], 0.0)
    for first, plain, run in zip(units, base, runs, strict=True):
      for text in turns.pairs(first, talks, plain, run):
        if text.plain == text.other:
          same += 1
          continue
        values = self.built.job([text.prompt], [0], 0.0).values
        found = ties.explain(ways, text.prompt, values, text.plain, text.other)
        differences.append(text.where | found._asdict())
    return {'identical_to_plain': same, 'differences': differences}

  def run(self) -> None:
    """Makes the rows that are missing, batch by batch."""
    for batch in self.plan.batches:
      if self.left(batch):
        self.take(batch)
        self.run_batch()
    self.take(self.plan.batches[0])

  def run_batch(self) -> None:
    """Makes the rows of a batch: as many methods at a time as programs fit."""
    self.turn, count = slice(0, 1), len(self.built.methods)
    while self.part:
      if self.groups:  # The methods before have their rows.
        self.turn = slice(self.turn.start, count)
        self.run_part()
      self.turn = slice(self.turn.stop, self.turn.stop + 1)
    self.turn = slice(None)

  def run_part(self) -> None:
    """Makes the rows of the methods of one turn."""
    measure.make_room()
    if self.plan.timed:
      self.warm_up()
    for group in self.groups:
      self.group(*group)
