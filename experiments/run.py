"""The main job: acceptance and speed of drafters, as a table.

  python -m experiments.run --config configs/quickstart.py

Every drafter and plain decoding take turns on the same prompts. Rows are kept
as they are made; the same command goes on where it was stopped.
"""

import json
import resource
import sys

import numpy as np
from tqdm import tqdm

from experiments import cells, command, measure, prompts, results, ties
from experiments.build import Built, Method, build
from experiments.checks import values
from experiments.settings import Experiment
from specjax import metrics
from specjax.generate import PARTS


def shrink(x: Experiment) -> None:
  """The quick version of an experiment: two drafters, few and short texts."""
  x.drafters = x.drafters or tuple(x.known)[:2]
  x.prompts.count = min(x.prompts.count, 2)
  x.max_new_tokens = min(x.max_new_tokens, 32)


def singles(methods) -> dict:
  """The ways to measure alpha, each with a method that it is for.

  Drafters that differ in their parameters alone share a program, so it is
  the name that tells them apart.
  """
  found: dict = {}
  for m in methods:
    for parts in (PARTS, m.chance):
      found.setdefault((m.drafter, parts), m)
  return found


class Runner:
  """One experiment in one process."""

  def __init__(self, x: Experiment):
    """Checks and loads everything, and only then opens the folder."""
    self.x = x
    self.built: Built = build(x)
    self.prompts = {d: c.texts for d, c in self.built.prompts.items()}
    for domain, texts in self.prompts.items():
      if x.batch > len(texts):
        raise ValueError(
          f'batch {x.batch} is more than the {len(texts)} prompts of {domain}: '
          'raise prompts.count, or lower batch'
        )
    self.folder = results.Folder(
      x.results or results.default_folder(x), results.settings_of(x)
    )
    self.conditions = results.conditions()
    self.folder.check_prompts(self.prompts)
    self.slots, self.source_slots = self.built.slots(x.max_new_tokens)
    self.groups = [
      (d, t)
      for d in self.prompts
      for t in x.temperatures
      if not all(self.done(m, d, t) for m in self.built.methods)
    ]
    self.alphas: dict = {}
    self.costs: dict = {}
    self.compilations = 0.0

  def cell(self, method: Method, domain: str, temperature: float) -> dict:
    """What identifies a row."""
    return {
      'drafter': method.drafter,
      'verifier': method.verifier,
      'gamma': method.gamma,
      'domain': domain,
      'temperature': temperature,
    }

  def done(self, method, domain, temperature) -> bool:
    return self.folder.has(**self.cell(method, domain, temperature))

  def todo(self, domain, temperature) -> dict[Method, dict]:
    """The methods that a group needs, with their cells.

    Where time is taken it needs all: they are compared with one another.
    """
    return {
      m: self.cell(m, domain, temperature)
      for m in self.built.methods
      if self.x.timed or not self.done(m, domain, temperature)
    }

  def job(self, texts, indices, temperature, slots=None) -> measure.Job:
    """Prompts with one temperature, or one [B] for each."""
    x = self.x
    return measure.Job(
      texts,
      np.asarray(indices),
      values(x, self.built.plain, len(texts), temperature),
      x.max_new_tokens,
      x.seed,
      slots or self.slots,
      self.source_slots,
    )

  def units(self, domain: str, temperature: float) -> list[measure.Job]:
    """Batches of the domain's prompts; what is left over is left out."""
    texts, batch = self.prompts[domain], self.x.batch
    return [
      self.job(texts[i : i + batch], range(i, i + batch), temperature)
      for i in range(0, len(texts) - batch + 1, batch)
    ]

  def whole(self, domain: str, temperature: float) -> measure.Job:
    """All prompts of a domain in one batch."""
    texts = self.prompts[domain]
    return self.job(texts, range(len(texts)), temperature)

  def warm_up(self, bar) -> None:
    """Compiles every program and measures the costs."""
    built, base = self.built, (self.built.plain, self.built.plain_params)
    job = self.units(*self.groups[0])[0]
    wide = self.whole(*self.groups[0])
    ways = {(built.plain, ''): (*base, job)}
    for m in built.methods:
      ways[m.spec, m.drafter] = (m.spec, m.params, job)
      nothing = measure.idle(m.spec, m.params, job)
      ways[nothing, ''] = (nothing, built.plain_params, job)
      ways[m.single, m.drafter] = (m.single, m.single_params, wide)
    bar.set_description('compiling')
    bar.total += len(ways)
    try:
      self.compilations = measure.compile_all(list(ways.values()), bar.update)
    except measure.NotFinite as error:
      cells = ', '.join(f'{d} at temperature {t:g}' for d, t in self.groups)
      raise measure.NotFinite(f'{error} in one of the cells {cells}') from error
    repeats = 3 if self.x.quick else 9
    for method in built.methods:
      bar.set_description(f'costs of {method.drafter}')
      self.costs[method] = measure.costs(
        (method.spec, method.params), base, job, repeats
      )
      bar.update()

  def measure_alpha(self, methods, domain, temperature, bar) -> None:
    """The mean of beta at every prefix of the target's own text."""
    jobs = self.units(domain, temperature)
    if self.x.timed:  # Nothing else runs in large batches then.
      jobs = [self.whole(domain, temperature)]
    for (drafter, parts), m in singles(methods).items():
      runs = []
      for job in jobs:
        runs.append(
          measure.decode(
            m.single, m.single_params, job, timed=False, parts=parts
          )
        )
        bar.update()
      where = domain, temperature
      self.alphas[drafter, parts, where] = cells.alpha_of(runs)

  def decode(self, method: Method, cell: dict, job: measure.Job) -> measure.Run:
    """One batch with a method; what is not finite names the cell."""
    run = measure.decode if self.x.timed else measure.record
    try:
      return run(method.spec, method.params, job)
    except measure.NotFinite as error:
      raise measure.NotFinite(f'{error} in the cell {cell}') from error

  def group(self, domain: str, temperature: float, bar) -> None:
    """Decodes one domain at one temperature with everything.

    Where time is taken, methods take turns on each batch.
    """
    built, jobs = self.built, self.units(domain, temperature)
    todo = self.todo(domain, temperature)
    bar.set_description(f'{domain}, temperature {temperature:g}')
    self.measure_alpha(todo, domain, temperature, bar)
    base, runs = [], {method: [] for method in todo}
    for job in jobs:
      base.append(
        measure.decode(built.plain, built.plain_params, job, timed=self.x.timed)
      )
      bar.update()
      if self.x.timed:
        for method, cell in todo.items():
          runs[method].append(self.decode(method, cell, job))
          bar.update()
    for method, cell in todo.items():
      for job in jobs[len(runs[method]) :]:
        runs[method].append(self.decode(method, cell, job))
        bar.update()
      if not self.done(method, domain, temperature):
        self.folder.add(self.row(method, cell, base, runs[method]))

  def row(self, method: Method, cell: dict, base, runs) -> dict:
    """The row of one cell; see the fields in the README."""
    x, domain = self.x, cell['domain']
    where = domain, cell['temperature']
    alpha = self.alphas[method.drafter, PARTS, where]
    under_rule = self.alphas[method.drafter, method.chance, where]
    times = cells.NO_SPEED
    if x.timed:
      times = cells.speed(runs, base, self.costs[method], method.gamma)
    return cells.plain(
      {
        'config': x.name,
        'target': self.built.target,
        'draft': method.draft,
        **cell,
        'lossless': method.spec.rule.lossless,
        'timed': x.timed,
        'batch': x.batch,
        'prompts': len(runs) * x.batch,
        'prompts_hash': prompts.digest(self.prompts[domain]),
        'prompts_from': self.built.prompts[domain].facts(),
        'new_tokens': x.max_new_tokens,
        **cells.acceptance(runs, alpha, under_rule),
        **times,
        **self.compare(method, cell, base, runs),
        'repetition': metrics.repetition(t for r in base for t in r.texts),
        'compilations': self.compilations + sum(r.compilations for r in runs),
        'paper': None,
        'seed': x.seed,
        **self.conditions,
      }
    )

  def compare(self, method: Method, cell: dict, base, runs) -> dict:
    """At temperature 0, whether the texts are those of plain decoding.

    A difference is listed as `ties.Difference` says: a tie or a bug. A lossy
    rule's text is another one.
    """
    if cell['temperature'] or not method.spec.rule.lossless:
      return {'identical_to_plain': None, 'differences': []}
    differences, same = [], 0
    units = self.units(cell['domain'], 0.0)
    ways = [
      ties.way(spec, params, self.x.batch, self.slots, self.source_slots)
      for spec, params in (
        (self.built.plain, self.built.plain_params),
        (method.spec, method.params),
      )
    ]
    for job, plain_run, run in zip(units, base, runs, strict=True):
      pairs = zip(plain_run.texts, run.texts, strict=True)
      for i, (text, other) in enumerate(pairs):
        if text == other:
          same += 1
          continue
        one = self.job(job.prompts[i : i + 1], job.indices[i : i + 1], 0.0)
        found = ties.explain(ways, job.prompts[i], one.values, text, other)
        differences.append({'prompt': int(job.indices[i]), **found._asdict()})
    return {'identical_to_plain': same, 'differences': differences}

  def run(self) -> None:
    """Makes the rows that are missing."""
    if not self.groups:
      return
    units = len(self.units(*self.groups[0]))
    total = 0
    for group in self.groups:
      todo = self.todo(*group)
      alphas = len(singles(todo)) * (1 if self.x.timed else units)
      total += alphas + units * (1 + len(todo))
    with tqdm(total=total, file=sys.stderr) as bar:
      if self.x.timed:
        bar.total += len(self.built.methods)
        self.warm_up(bar)
      for domain, temperature in self.groups:
        self.group(domain, temperature, bar)


def best(rows: list[dict]) -> dict | None:
  """The lossless row with the largest speed-up."""
  lossless = [r for r in rows if r['lossless'] and r['speedup']]
  return max(lossless, key=lambda r: r['speedup'], default=None)


def main(x: Experiment) -> None:
  if x.quick:
    shrink(x)
  try:
    runner = Runner(x)
    folder = runner.folder
    for domain, chosen in runner.built.prompts.items():
      sentence = prompts.describe(len(chosen.texts), chosen.facts())
      print(f'{domain}: {sentence}', flush=True)
    if not runner.groups:
      print(f'{folder.path} is complete; --config.results measures elsewhere')
    runner.run()
  except (ValueError, measure.NotFinite) as error:
    raise SystemExit(f'error: {error}') from error
  if folder.warning:
    print(folder.warning, file=sys.stderr)
  text = results.summary(folder.rows)
  folder.write('summary.md', text)
  print(text)
  usage = resource.getrusage(resource.RUSAGE_SELF)
  print(
    json.dumps(
      {
        'results': str(folder.path),
        'cells': len(folder.rows),
        'best': best(folder.rows),
        'peak_memory_bytes': 1024 * usage.ru_maxrss,
      }
    )
  )


if __name__ == '__main__':
  command.run(main, Experiment)
