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

from experiments import command, measure, prompts, results, ties
from experiments.build import Built, Method, build
from experiments.checks import values
from experiments.settings import Experiment
from specjax import metrics
from specjax.types import Counts


def shrink(x: Experiment) -> None:
  """The quick version of an experiment: two drafters, few and short texts."""
  x.drafters = x.drafters or tuple(x.known)[:2]
  x.prompts.count = min(x.prompts.count, 2)
  x.max_new_tokens = min(x.max_new_tokens, 32)


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
    ways = {built.plain: (*base, job)}
    for m in built.methods:
      ways[m.spec] = (m.spec, m.params, job)
      nothing = measure.idle(m.spec, m.params, job)
      ways[nothing] = (nothing, built.plain_params, job)
      ways[m.single] = (m.single, m.single_params, wide)
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

  def measure_alpha(self, domain: str, temperature: float) -> None:
    """The mean of beta at every prefix of the target's own text."""
    job, found = self.whole(domain, temperature), {}
    for m in self.built.methods:
      if m.single not in found:
        counts = measure.decode(
          m.single, m.single_params, job, timed=False
        ).counts
        found[m.single] = metrics.ratio(counts.overlap, counts.histogram.sum(1))
      self.alphas[m, (domain, temperature)] = found[m.single]

  def group(self, domain: str, temperature: float, bar) -> None:
    """Decodes one domain at one temperature with everything."""
    built = self.built
    base, runs = [], {method: [] for method in built.methods}
    bar.set_description(f'{domain}, temperature {temperature:g}')
    self.measure_alpha(domain, temperature)
    for job in self.units(domain, temperature):
      base.append(measure.decode(built.plain, built.plain_params, job))
      for method in built.methods:
        try:
          run = measure.decode(method.spec, method.params, job)
        except measure.NotFinite as error:
          cell = self.cell(method, domain, temperature)
          raise measure.NotFinite(f'{error} in the cell {cell}') from error
        runs[method].append(run)
      bar.update()
    for method in built.methods:
      if not self.done(method, domain, temperature):
        cell = self.cell(method, domain, temperature)
        self.folder.add(self.row(method, cell, base, runs[method]))

  def row(self, method: Method, cell: dict, base, runs) -> dict:
    """The row of one cell; see the fields in the README."""
    x, cost = self.x, self.costs[method]
    where = cell['domain'], cell['temperature']
    counts = Counts(
      *(np.concatenate(c) for c in zip(*(r.counts for r in runs), strict=True))
    )

    def column(name):
      return np.array([getattr(r.counts, name).sum() for r in runs])

    tokens, calls = column('tokens'), column('target_calls')
    steps = np.array([r.counts.target_calls.max() for r in runs])
    seconds = np.array([r.seconds for r in runs])
    base_seconds = np.array([r.seconds for r in base])
    base_tokens = np.array([r.counts.tokens.sum() for r in base])
    tau = metrics.ratio(tokens, calls)
    speedup = metrics.speedup(base_seconds, base_tokens, seconds, tokens)
    alpha = self.alphas[method, where]
    tried = int(counts.tried.sum())
    accepted, drafted = int(counts.accepted.sum()), int(counts.drafted.sum())
    unconditional, conditional = metrics.by_position(counts)
    predicted = metrics.predicted_speedup(
      tau.value, cost.c, cost.v, method.gamma
    )
    agreement = metrics.estimate(
      lambda bs, bt, s, t, n: (
        bs / bt / (s / t) / (t / n / (cost.v + method.gamma * cost.c))
      ),
      base_seconds,
      base_tokens,
      seconds,
      tokens,
      calls,
    )
    return plain(
      {
        'config': x.name,
        'target': self.built.target,
        'draft': method.draft,
        **cell,
        'lossless': method.spec.rule.lossless,
        'batch': x.batch,
        'prompts': len(runs) * x.batch,
        'prompts_hash': prompts.digest(self.prompts[cell['domain']]),
        'prompts_from': self.built.prompts[cell['domain']].facts(),
        'tokens': int(tokens.sum()),
        'unit_tokens': tokens.tolist(),
        'unit_target_calls': calls.tolist(),
        'target_calls': int(calls.sum()),
        'steps': int(steps.sum()),
        'drafted': drafted,
        'accepted': accepted,
        'coverage': 1 - counts.misses.sum() / max(counts.histogram.sum(), 1),
        'alpha': alpha.value,
        'alpha_ci': alpha.interval,
        'alpha_mle': accepted / tried if tried else None,
        'acceptance': accepted / drafted if drafted else None,
        'acceptance_by_position': unconditional,
        'acceptance_by_position_conditional': conditional,
        'histogram': counts.histogram.sum(0).tolist(),
        'tau': tau.value,
        'tau_ci': tau.interval,
        'seconds': seconds.sum(),
        'prefill_seconds': sum(r.prefill_seconds for r in runs),
        'tokens_per_second': tokens.sum() / seconds.sum(),
        'baseline_tokens_per_second': base_tokens.sum() / base_seconds.sum(),
        'speedup': speedup.value,
        'speedup_ci': speedup.interval,
        'c': cost.c,
        'v': cost.v,
        'predicted_speedup': predicted,
        'measured_over_predicted': agreement.value,
        'measured_over_predicted_ci': agreement.interval,
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

    A difference is listed as `ties.Difference` says: a tie or a bug.
    """
    if cell['temperature']:
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
    total = len(self.built.methods) + units * len(self.groups)
    with tqdm(total=total, file=sys.stderr) as bar:
      self.warm_up(bar)
      for domain, temperature in self.groups:
        self.group(domain, temperature, bar)


def plain(value):
  """numpy scalars as Python ones, NaN as None: JSON knows neither."""
  if isinstance(value, dict):
    return {k: plain(v) for k, v in value.items()}
  if isinstance(value, list):
    return [plain(v) for v in value]
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, float) and not np.isfinite(value):
    return None
  return value


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
  text = results.table(folder.rows) + results.rules(folder.rows)
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
