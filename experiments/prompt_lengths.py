"""Are longer prompts easier to draft for?

  python -m experiments.prompt_lengths

The same held-out texts are continued behind their last 16 to 256 tokens, so a
length changes what the models see and not where the text goes on. No time is
taken, so the machine may do other things; five minutes on two idle cores,
`--quick` one. Expect the lookup to gain with the length and the draft not to.
"""

import dataclasses

from specjax import pair
from specjax.bench import study
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.bench.methods import Loaded
from specjax.bench.plan import Plan, whole_steps
from specjax.bench.runner import Runner
from specjax.cli import command
from specjax.cli.fields import Count
from specjax.errors import need
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks
from specjax.stats.row import group


@dataclasses.dataclass
class PromptLengths(Experiment):
  """An experiment on prompts that are cut from the left.

  Attributes:
    lengths: tokens that are left of each prompt.
  """

  lengths: tuple[Count, ...] = (16, 64, 256)


def get_config() -> PromptLengths:
  return PromptLengths(
    name='prompt_lengths',
    target=Checkpoint(pair.path('target')),
    candidates={
      'draft-128': Candidate('lm', 3, pair.path('draft-128')),
      'ngram': Candidate('ngram', 3),
    },
    prompts=Prompts(domains=('code', 'documentation'), count=40, length=256),
    max_new_tokens=64,
    batch=20,
    timed=False,
  )


class Lengths(Runner):
  """A run in which each length of a domain is a domain of its own."""

  program = 'prompt_lengths'

  def __init__(self, plan: Plan, lengths: tuple[int, ...]):
    self.lengths: dict[str, tuple[str, int]] = {}

    def cut(loaded: Loaded) -> Loaded:
      found = {}
      for domain, chosen in loaded.prompts.items():
        for length in lengths:
          name = f'{domain}, {length} tokens'
          texts = [text[-length:] for text in chosen.texts]
          found[name] = dataclasses.replace(chosen, texts=texts)
          self.lengths[name] = domain, length
      return dataclasses.replace(loaded, prompts=found)

    super().__init__(plan, cut)

  def row(self, method, cell, base, runs) -> dict:
    of, length = self.lengths[cell['domain']]
    return super().row(method, cell, base, runs) | {'of': of, 'length': length}


def run(x: PromptLengths) -> None:
  """Makes the rows that are missing."""
  need(
    0 < max(x.lengths, default=0) <= x.prompts.length,
    f'lengths must be from 1 to prompts.length, {x.prompts.length}, and at '
    f'least one, got {x.lengths}',
  )
  runner = Lengths(whole_steps(study.plan_one(x)), x.lengths)
  runner.run()
  study.publish(runner.folder)


fields = study.alike(
  text='of drafter',
  count='length gamma',
  number='temperature',
  maybe='tau alpha',
)


def headline(rows: list[dict]) -> str:
  count = f'{values(rows, "prompts")} prompts of each domain'
  return study.headline('Texts behind prompts of other lengths', rows, count)


def summary(rows: list[dict]) -> str:
  """The headline, and tau and alpha by length of each drafter and domain."""
  lengths, tables = sorted({row['length'] for row in rows}), []
  for name in ('tau', 'alpha'):
    show, lines = study.shown(name), []
    places = group(rows, 'of', 'temperature', 'drafter', 'gamma')
    for (domain, temperature, drafter, gamma), mine in places.items():
      by = {row['length']: show(row) for row in mine}
      line = [domain, f'{temperature:g}', f'{drafter}, {gamma}']
      lines.append([*line, *(by.get(n, '-') for n in lengths)])
    head = ['domain', 'T', 'drafter', *(f'{n} tokens' for n in lengths)]
    tables.append(Table(f'{name} by prompt length', '', head, lines))
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
