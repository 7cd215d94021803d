"""The main job: acceptance and speed of drafters, as a table.

  specjax run quickstart

Every drafter and plain decoding take turns on the same prompts. Rows are kept
as they are made; the same command goes on where it was stopped.
"""

import json
import resource

from specjax import prompts
from specjax.bench import checks, results, samples
from specjax.bench.config import Experiment
from specjax.bench.plan import plan, whole_steps
from specjax.bench.runner import Runner
from specjax.cli import command, hosts, progress
from specjax.programs import probe as probing
from specjax.reports import batches, page
from specjax.reports import run as run_report
from specjax.stats import sanity_checks
from specjax.stats.readings import CONFIGURED

_PROBED, _PROBED_TOKENS = 8, 24  # prompts of a short probe, and of each


def main(x: Experiment) -> None:
  if x.quick:
    x.shrink()
  checks.check_mesh(x)  # Before other processes are waited for.
  hosts.join(x.mesh)
  runner = Runner(whole_steps(plan(x, sweeps=True)))
  runner.conditions['command'] = command.given() or None
  if hosts.is_primary():
    announce(runner)
  if x.probe:
    probe(runner)
  runner.run()
  texts = samples.add(runner)
  if hosts.is_primary():
    finish(runner.folder, texts)


def announce(runner: Runner) -> None:
  """Prints what is continued."""
  for domain, chosen in runner.built.prompts.items():
    sentence = prompts.describe(len(chosen.texts), chosen.facts())
    print(f'{domain}: {sentence}', flush=True)
  if runner.folder.warning:
    hosts.tell(runner.folder.warning)
  if runner.complete():
    path = runner.folder.path
    print(f'{path} is complete; --results measures elsewhere')


def probe(runner: Runner) -> None:
  """Looks whether heads of others are read as they were trained.

  What is found is in their rows; where another reading is clearly better, a
  line says so at once.
  """
  loaded = runner.built
  heads = {
    m.drafter: runner.plan.drafters[m.drafter]
    for m in loaded.methods
    if m.brings.get('pairing')
  }
  if runner.complete() or loaded.target.model.placement:
    return
  for name, one in heads.items():
    if not probing.has_alternatives(one):
      continue
    jobs = probing.jobs(loaded, _PROBED, _PROBED_TOKENS)
    found = probing.short(one, loaded, jobs)
    runner.readings[name] = {'reading': results.plain(found)}
    if found and found['best'] != CONFIGURED:
      hosts.tell(f'warning: {run_report.reading(name, found)}')


def brief(row: dict | None) -> dict | None:
  """Returns the fields that identify a row, and its main numbers."""
  names = ('alpha', 'tau', 'speedup')
  names = (*results.KEY, *names, *(f'{name}_ci' for name in names))
  return row and {name: row[name] for name in names}


def finish(folder: results.Folder, texts: list[dict]) -> None:
  """Writes and prints the tables; the last line is one JSON object."""
  with progress.phase('report'):
    folder.write('summary.md', run_report.summary(folder.rows))
    page.write(folder, texts)
  print(run_report.brief(folder.rows))
  print(f'{folder.path / "report.html"} has the same and a few texts')
  sanity_checks.warn(folder.rows)
  print(json.dumps(last_line(folder)))


def _rounded(x: list[dict]) -> list[dict]:
  """Returns the same with four digits behind the point."""
  return json.loads(json.dumps(x), parse_float=lambda t: round(float(t), 4))


def last_line(folder: results.Folder) -> dict:
  """Returns the verdict, where the results are, and the best of them."""
  usage, rows = resource.getrusage(resource.RUSAGE_SELF), folder.rows
  swept = batches.swept(rows)
  found = run_report.headline_of(rows)
  names = 'batch', 'tau', 'speedup', 'speedup_ci'
  return {
    'verdict': found.verdict,
    'results': str(folder.path),
    'report': str(folder.path / 'report.html'),
    'cells': len(folder.rows),
    'impossible': len(sanity_checks.of(folder.rows)),
    'pooled': _rounded([{n: r.get(n) for n in names} for r in found.pooled]),
    'best': brief(run_report.best(folder.rows)),
    **({'batches': batches.last_line(rows)} if swept else {}),
    'peak_memory_bytes': 1024 * usage.ru_maxrss,
  }


def start() -> None:
  command.run(main, Experiment, resumes=True)
