"""Where speculation pays on accelerators that nobody here has: calculated.

  python -m experiments.paper_costs --config configs/paper_costs.py

A pass takes as long as the slowest of three limits (`measuring.roofline`), of
published peaks. From that follow v and c at every batch and context, and with a
rate of acceptance the speed-up, as from measured ones. Nothing is timed.

The last line is one JSON document: the folder, and up to which batch
speculation pays in each deployment, at the longest and the shortest context.
"""

import dataclasses
import json
from collections.abc import Callable

from experiments import paper_costs_report
from specjax import reports
from specjax.bench import results, roofline
from specjax.bench.config import Deployment, PaperCosts, PaperModel
from specjax.bench.loading import checks
from specjax.bench.roofline import Work
from specjax.cli import command
from specjax.errors import need
from specjax.models.config import TransformerConfig
from specjax.stats import theory

HEAD = 'head'


def shrink(x: PaperCosts) -> None:
  """The quick version."""
  x.deployments, x.contexts = x.deployments[:2], x.contexts[:2]
  x.batches = x.batches[:2]


def check(x: PaperCosts) -> None:
  """Checks the values.

  Raises:
    UserError: names the field, its value and the remedy.
  """
  for name in ('deployments', 'drafts', 'contexts', 'batches', 'gammas'):
    need(getattr(x, name), f'{name} is empty: give at least one')
  for name in ('contexts', 'batches', 'gammas'):
    values = getattr(x, name)
    need(min(values) >= 1, f'{name} must be of at least 1, got {values}')
  need(
    x.rates and all(0 <= rate <= 1 for rate in x.rates),
    f'rates must be in [0, 1], got {x.rates}',
  )
  checks.check_dtype('dtype', x.dtype)
  need(x.dtype != 'auto', 'dtype is auto, but there are no weights: name one')
  for name in x.drafts:
    need(
      name == HEAD or name in x.models,
      f'drafts: {name!r} is unknown; choose {HEAD} or one of '
      f'{", ".join(x.models)}',
    )
  for one in x.deployments:
    for field, known in (
      ('target', x.models),
      ('accelerator', x.accelerators),
    ):
      value = getattr(one, field)
      need(
        value in known,
        f'deployments: {field} {value!r} is unknown; choose from '
        f'{", ".join(known)}',
      )
    heads = x.models[one.target].num_heads
    need(
      one.devices >= 1 and heads % one.devices == 0,
      f'deployments: devices is {one.devices}, which does not divide the '
      f'{heads} heads of {one.target}',
    )


class Calculation:
  """One deployment with one draft at one context."""

  def __init__(self, x: PaperCosts, one: Deployment, draft: str, context: int):
    self.x, self.one, self.context = x, one, context
    self.device = x.accelerators[one.accelerator]
    self.place = roofline.split_over(one.devices)
    target = x.models[one.target]
    self.target = roofline.config_of(target)
    self.draft = roofline.config_of(
      head_of(target, x.head_vocabulary) if draft == HEAD else x.models[draft]
    )

  def work(self, config: TransformerConfig, rows: int, tokens: int) -> Work:
    return roofline.work(
      config, self.place, rows, tokens, self.context, self.x.dtype
    )

  def limits(self, config, rows: int, tokens: int) -> dict[str, float]:
    """Seconds by limit."""
    work = self.work(config, rows, tokens)
    return roofline.seconds(work, self.device, self.one.devices)

  def seconds(self, config, rows: int, tokens: int) -> float:
    return max(self.limits(config, rows, tokens).values())

  def v(self, rows: int, gamma: int) -> float:
    scored = self.seconds(self.target, rows, gamma + 1)
    return scored / self.seconds(self.target, rows, 1)

  def c(self, rows: int) -> float:
    plain = self.seconds(self.target, rows, 1)
    return self.seconds(self.draft, rows, 1) / plain

  def best(self, rows: int, rate: float) -> tuple[int, float]:
    """The best draft length at a rate of acceptance, and its speed-up."""
    c = self.c(rows)
    speeds = {
      gamma: float(theory.speedup(rate, gamma, c, self.v(rows, gamma)))
      for gamma in self.x.gammas
    }
    gamma = max(speeds, key=lambda g: speeds[g])
    return gamma, speeds[gamma]

  def fits(self) -> int:
    """Rows whose caches fit beside the weights; 0 where these do not."""
    held = [
      roofline.held(config, self.place, self.x.dtype)
      for config in (self.target, self.draft)
    ]
    left = self.device.memory - sum(whole for whole, *_ in held)
    return max(0, int(left // (self.context * sum(x for *_, x in held))))

  def pays_up_to(self, rate: float) -> int | None:
    """The batch up to which every one pays; None where all that fit do."""
    fits = self.fits()
    return last(lambda rows: self.best(rows, rate)[1] > 1, fits)


def last(holds: Callable[[int], bool], most: int) -> int | None:
  """Up to which number from 1 on something holds; None: up to the most.

  What holds at two numbers, one twice the other, holds in between.
  """
  if not most:
    return 0
  low, high = 0, 1
  while high <= most and holds(high):
    low, high = high, 2 * high
  if high > most:
    if holds(most):
      return None
    high = most
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if holds(middle) else (low, middle)
  return low


def head_of(target: PaperModel, vocabulary: int) -> PaperModel:
  """A head of one layer with the target's sizes, as EAGLE-3 has it.

  The product that joins its features is left out.
  """
  return dataclasses.replace(target, num_layers=1, vocab_size=vocabulary)


def row(x: PaperCosts, one: Deployment, draft: str, context: int) -> dict:
  """All batches of a deployment with a draft at a context."""
  made = Calculation(x, one, draft, context)
  fits = made.fits()
  batches = [rows for rows in x.batches if rows <= fits]
  limits = [made.limits(made.target, rows, 1) for rows in batches]
  plain = [made.work(made.target, rows, 1) for rows in batches]
  best = {
    f'{rate:g}': [made.best(rows, rate) for rows in batches] for rate in x.rates
  }
  return results.plain(
    {
      'program': 'paper_costs',
      'config': x.name,
      'calculated': True,
      'target': one.target,
      'draft': draft,
      'accelerator': one.accelerator,
      'device': vars(made.device).copy(),
      'devices': one.devices,
      'dtype': x.dtype,
      'context': context,
      'fits': fits,
      'batches': batches,
      'plain_bytes': [w.bytes for w in plain],
      'plain_operations': [w.operations for w in plain],
      'plain_sums': [w.exchange.sums for w in plain],
      'plain_sum_bytes': [w.exchange.sum_bytes for w in plain],
      'plain_seconds': [max(each.values()) for each in limits],
      'plain_limit': [max(each, key=each.__getitem__) for each in limits],
      'c': [made.c(rows) for rows in batches],
      'v': {
        str(gamma): [made.v(rows, gamma) for rows in batches]
        for gamma in x.gammas
      },
      'best_gamma': {k: [g for g, _ in pairs] for k, pairs in best.items()},
      'speedup': {k: [s for _, s in pairs] for k, pairs in best.items()},
      'pays_up_to': {f'{rate:g}': made.pays_up_to(rate) for rate in x.rates},
    }
  )


def main(x: PaperCosts) -> None:
  if x.quick:
    shrink(x)
  check(x)
  folder = results.Folder(
    x.results or results.default_folder(x), results.settings_of(x)
  )
  folder.clear()  # It takes seconds, and is the same every time.
  for one in x.deployments:
    for draft in x.drafts:
      for context in x.contexts:
        folder.add(row(x, one, draft, context))
  text = paper_costs_report.summary(folder.rows)
  folder.write('summary.md', text)
  for draw in paper_costs_report.figures(folder.rows):
    reports.save(draw, folder.rows, folder.path)
  print(text)
  last_line = {
    'results': str(folder.path),
    'rows': len(folder.rows),
    'calculated': True,
    'pays_up_to': paper_costs_report.pays(folder.rows),
  }
  print(json.dumps(last_line))


if __name__ == '__main__':
  command.run(main, PaperCosts)
