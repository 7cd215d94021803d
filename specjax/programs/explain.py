"""Why is it fast, or slow? Where a step's time goes, and what would help.

  specjax explain

Takes any config that `specjax run` takes: its first drafter and rule are
measured at gamma 1 to 8 (or `gammas`), like a run of them, in a folder like
that of a run. Then the loop is timed without its parts (`costs`), and the
numbers give the verdict (`verdict`). `--device=h100` estimates the same for a
device that is not there, as `specjax compiled` does.
"""

import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np

from specjax.bench import costs, measure, memory, results
from specjax.bench.compiled import quote
from specjax.bench.config import Compiled, Experiment, OnDevice
from specjax.bench.methods import Method
from specjax.bench.plan import Plan, plan, whole_steps
from specjax.bench.plan import choose as choose_drafters
from specjax.bench.runner import Runner
from specjax.cli import command, progress
from specjax.errors import need
from specjax.models import prefill, transformer
from specjax.models.config import TransformerConfig
from specjax.reports import compiled as device_report
from specjax.reports import explain as explain_report
from specjax.reports import intervals
from specjax.stats import sanity_checks


def narrow(x: Experiment) -> int:
  """Leaves one drafter, one rule and every draft length of interest.

  Returns:
    The draft length that the experiment asks for.

  Raises:
    UserError: the drafter is unknown, or there is none; or time is not taken.
  """
  need(x.timed, 'timed is False, but speed is explained: leave it True')
  x.drafters = x.drafters[:1] or tuple(x.known)[:1]
  need(x.drafters, 'candidates is empty: there is no drafter to explain')
  ((_, candidate),) = choose_drafters(x).values()
  x.verifiers = (candidate.verifiers or x.verifiers)[:1]
  candidate.verifiers = ()
  own = candidate.gamma
  if not x.gammas:
    x.gammas = (1, own) if x.quick else (*range(1, 9), own)
    x.gammas = tuple(sorted(set(x.gammas)))
  x.name = f'explain-{x.name}'
  return own if own in x.gammas else x.gammas[0]


class Explainer(Runner):
  """A run whose costs are measured between its prompts, for each cell.

  What else the machine does meets the prediction as it meets what is
  predicted; no time is used for both.
  """

  program = 'explain'

  def __init__(self, plan: Plan, asked: int):
    """Takes the plan, and the draft length that the experiment asked for."""
    super().__init__(plan)
    depths = [m.gamma for m in self.built.methods]
    # A tree may be less deep than was asked for.
    self.asked = min(depths, key=lambda depth: abs(depth - asked))

  def row(self, method, cell, base, runs):
    return super().row(method, cell, base, runs) | {'asked_gamma': self.asked}

  def measure_costs(self, units):
    """Nothing before the first prompt."""

  def group(self, domain, temperature):
    greedy = self.units(domain, 0.0)
    self.jobs = itertools.cycle(greedy[1:] + greedy[:1])
    self.timer.clear()
    super().group(domain, temperature)

  def between(self):
    self.timer.turn(next(self.jobs))


def measure_phases(
  runner: Runner, method: Method, jobs: Sequence[measure.Job]
) -> dict:
  """Seconds of a step of every loop of `costs`, plain and speculative."""
  built = runner.built
  methods = {
    'plain': (built.base, built.plain),
    'speculative': (method.way, costs.replay(method.way, jobs[0])),
  }
  timer = costs.Timer(built.base, methods, explain_report.LOOPS)
  for full, spec in methods.values():
    loops = costs.to_compile(full, spec, jobs[0], explain_report.LOOPS)
    measure.compile_all(loops)
  turns = range(3 if runner.plan.quick else 15)
  for i in progress.over('phases of a step', turns, alike=1):
    timer.turn(jobs[i % len(jobs)])
  return timer.times


def read_bytes(
  runner: Runner, method: Method, jobs: Sequence[measure.Job]
) -> dict:
  """Bytes of weights and cache that a plain step and a drafted token read.

  Behind the longest text of the prompts; None of a draft that has no passes.
  """
  longest = max(len(prompt) for job in jobs for prompt in job.prompts)
  used = longest + runner.plan.max_new_tokens
  plain = runner.built.plain.target, runner.built.base.params.target
  ways = {'plain': plain, 'drafted': method.one_pass}
  return {'tokens': used} | {
    name: way and list(memory.bytes_per_token(*way, used))
    for name, way in ways.items()
  }


def touched(chosen: np.ndarray, count: int, tokens: int) -> list[float]:
  """Returns how many experts steps go to, by layer.

  Args:
    chosen: [L, B, T, chosen] numbers of the experts of each token.
    count: of the experts of a layer.
    tokens: of a row that follow each other in a step.
  """
  hit = (chosen[..., None] == np.arange(count)).any((1, 3))  # [L, T, X]
  steps = hit.shape[1] - tokens + 1
  seen = [hit[:, i : i + steps] for i in range(tokens)]
  return np.any(seen, 0).sum(-1).mean(-1).tolist()


def count_experts(
  runner: Runner, method: Method, jobs: Sequence[measure.Job], used: int
) -> dict | None:
  """Experts that a plain and a speculative step touch; None: no mixture.

  Measured on the texts of one batch, as if all drafted tokens were right. On a
  mesh, and where texts are shorter than a step, it is calculated for tokens
  that choose evenly, each for itself: the most of independent choices.
  """
  base = runner.built.base
  model, params = runner.built.plain.target, base.params.target
  config, job = model.config, jobs[0]
  if not isinstance(config, TransformerConfig) or config.experts is None:
    return None
  e, batch = config.experts, len(job.prompts)
  layers = sum(config.is_sparse(i) for i in range(config.num_layers))
  widths = 1, method.way.spec.drafter.nodes + 1
  source, by_width = 'uniform', []
  for width in widths:
    missed = (1 - e.chosen / e.count) ** (batch * width)
    by_width.append([e.count * (1 - missed)] * layers)
  if model.placement is None:
    added = measure.decode(base, job, timed=False).texts
    new = min(map(len, added))
    if new >= widths[1]:
      texts = [[*a, *b] for a, b in zip(job.prompts, added, strict=False)]
      tokens = prefill.pad(texts, max(map(len, texts)))[0]
      chosen = np.asarray(transformer.choose_experts(model, params, tokens))
      begins = [len(prompt) for prompt in job.prompts]
      rows = [chosen[:, i, begins[i] :][:, :new] for i in range(len(texts))]
      chosen = np.stack(rows, 1)
      source = 'router'
      by_width = [touched(chosen, e.count, width) for width in widths]
  # Many tokens walk over all experts, see `models.experts`.
  read = [
    some if batch * width * e.chosen <= e.count else [e.count] * layers
    for width, some in zip(widths, by_width, strict=True)
  ]
  sizes = [
    memory.bytes_per_token(model, params, used, experts=some)[0]
    for some in read
  ]
  return {
    'count': e.count,
    'chosen': e.chosen,
    'layers': layers,
    'tokens': [batch * width for width in widths],
    'source': source,
    'touched': by_width,
    'read': [float(np.mean(some)) for some in read],
    'bytes': sizes,
  }


def add_phases(runner: Explainer) -> None:
  """Measures the phases at the best gamma, where the folder has them not."""
  rows = runner.folder.rows
  best, phases = explain_report.best_of(rows), explain_report.phases(rows)
  if best is None:
    return
  if phases and phases['gamma'] == best['gamma']:
    return
  runner.settle()  # Where all rows were there already.
  jobs = runner.units(best['domain'], 0.0)
  (method,) = (m for m in runner.built.methods if m.gamma == best['gamma'])
  copied = ('drafter', 'verifier', 'gamma', 'domain', 'prompts_hash', 'config')
  copied += tuple(n for n in ('dtype', 'draft_dtype') if n in best)
  reads = read_bytes(runner, method, jobs)
  runner.folder.add(
    {
      'program': runner.program,
      **{name: best[name] for name in copied},
      'temperature': None,
      'asked_gamma': runner.asked,
      'loops': measure_phases(runner, method, jobs),
      'reads': reads,
      'experts': count_experts(runner, method, jobs, reads['tokens']),
      **runner.conditions,
    }
  )


def report(
  folder: results.Folder, asks: Mapping[str, Compiled] | None = None
) -> dict:
  """Writes and prints what was found; returns the last line.

  Args:
    folder: of the rows.
    asks: what to compile for another device, see `quote.prepare`.
  """
  rows = folder.rows
  results.publish(folder)
  best = explain_report.best_of(rows)
  elsewhere = quote.beside(asks or {}, best or {})
  if elsewhere:
    print(device_report.beside(elsewhere, best))
  if remark := sanity_checks.noise(best or {}):
    print(remark)
  names = ('c', 'v', 'tau', 'predicted_speedup', 'speedup', 'speedup_ci')
  last = {
    'results': str(folder.path),
    'impossible': len(sanity_checks.of(rows)),
  }
  if best is None:
    more = 'best_gamma', 'remedy', 'verdict', 'experts'
    return last | dict.fromkeys((*names, *more))
  found = explain_report.decide(rows)
  return {
    **last,
    **{name: best[name] for name in names},
    'ratio_ci': intervals.stored(
      best, explain_report.field_of(best, 'measured_over_predicted')
    ),
    'best_gamma': best['gamma'],
    'remedy': found[0].name if found else None,
    'verdict': explain_report.sentence(best, found),
    'experts': explain_report.mixture(rows),
    **device_report.quoted(elsewhere),
  }


def main(x: OnDevice) -> None:
  asked = narrow(x)
  if x.quick:
    x.shrink()
  planned = whole_steps(plan(x))
  asks = quote.prepare(x, planned)
  runner = Explainer(planned, asked)
  runner.run()
  add_phases(runner)
  last = report(runner.folder, asks)
  sanity_checks.warn(runner.folder.rows)
  print(json.dumps(last))


def start() -> None:
  command.run(main, OnDevice, resumes=True, extends=True)
