"""Which kind of trained drafter is best, where all have learned the same?

  python -m experiments.contest
  python -m experiments.contest --target.path=TARGET \\
    --examples.prompts.path=answers.jsonl --prompts.path=HumanEval.jsonl.gz

Every kind of drafter is trained for one target on the same windows, in the same
order, with the same optimizer, for each of several numbers of steps. All heads
read the target's own embedding and output layer, and have as many other
parameters, as near as their sizes allow:

  eagle3      a layer over three features of the target, on its own steps too
  eagle1      a layer that predicts the target's next feature
  peagle      as eagle3, but masks say all places in one pass
  medusa      a residual block for each place ahead
  dflash      a layer that fills a block of masks in one pass
  dspark      the same, corrected by the token drawn before each place
  early_exit  the target's first layers, a norm and an adapter of their own
  lm          an independent draft of two layers, with tables of its own
  pard        as lm, but masks say all places in one pass

Then all draft for the same held-out prompts. tau is measured. FLOPs and bytes
of a step are counted in the traced program, the forward pass over accepted
tokens included, and costs on a chip (v and c) are calculated from these: no
host, no launches. Heads stay in `heads`, and rows in `results`, so a stopped
contest goes on: half an hour of processor time, `--quick` two minutes.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from experiments.papers import findings
from experiments.papers.claims import finding
from specjax import pair, sampling, verify
from specjax.bench import load, study
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.bench.plan import whole_steps
from specjax.bench.runner import Runner
from specjax.cli import command
from specjax.cli.fields import Between, Count, check_fields
from specjax.cli.names import resolve
from specjax.drafters import plain
from specjax.drafters.heads.trainable import Trainable
from specjax.errors import blame, need
from specjax.loop import generate
from specjax.models.transformer import Model
from specjax.reports import paired
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, estimated
from specjax.stats import metrics, roofline
from specjax.stats.row import group
from specjax.training import folders, train_heads
from specjax.training.recipes import (
  Examples,
  Heads,
  HeldOut,
  Optimization,
  Texts,
)
from specjax.types import Params, Spec

CHIPS = ('h100', 'v5e')
BATCHES = (1, 64)  # rows of a chip
PLACE = f'{CHIPS[0]}, batch {BATCHES[0]}'  # where draft lengths are chosen
WIDE = 2  # bytes of a number on a chip
# Orders that others have published: the first is better; in the speed-up alone
# where a source says no tau of both.
PUBLISHED = {
  ('eagle3', 'eagle1'): 'arXiv:2503.01840',
  ('eagle1', 'medusa'): 'arXiv:2401.15077',
  ('eagle3', 'medusa'): 'arXiv:2503.01840',
  ('dflash', 'eagle3'): 'arXiv:2602.06036',
  ('dspark', 'dflash'): 'arXiv:2607.05147',
  ('peagle', 'eagle3'): 'arXiv:2602.01469, speed-up',
  ('pard', 'lm'): 'arXiv:2504.18583, speed-up',
  ('eagle1', 'lm'): 'arXiv:2401.15077',
  ('medusa', 'lm'): 'arXiv:2401.10774, speed-up',
}


class Kind(NamedTuple):
  """A kind of drafter that can be trained.

  load: its module in `specjax.drafters`.
  options: (sizes of the target, n) -> options of `trainable`; n decides how
    many parameters there are.
  numbers: (sizes of the target) -> the n that there may be.
  """

  load: str
  options: Callable[[Any, int], dict[str, Any]]
  numbers: Callable[[Any], range]


def _steps_of(most: float) -> Callable[[Any], range]:
  """Multiples of 32 up to a multiple of the target's width."""
  return lambda target: range(32, int(most * target.width) + 1, 32)


def _attention(width: int) -> dict[str, int]:
  """Heads of 32 entries, as many as fill half of a width; a pair a key."""
  pairs = max(1, width // 128)
  return {'num_heads': 2 * pairs, 'num_kv_heads': pairs, 'head_dim': 32}


def _eagle(version: int) -> Callable[[Any, int], dict[str, Any]]:
  def options(target, n):
    own = {'version': version, 'width': target.width, 'mlp_width': n}
    own |= {'own_unembedding': False, 'projects': False}
    return own | _attention(target.width)

  return options


def _masked(options: Callable[[Any, int], dict[str, Any]]):
  """Options of the same drafter with masks: the target's last token."""
  return lambda target, n: (
    options(target, n) | {'mask_token': target.vocab_size - 1}
  )


def _dflash(target, n):
  return {'layers': 1, 'mlp_width': n, **_attention(target.width)}


def _dspark(target, n):
  rank = target.width // 8
  return _dflash(target, n) | {'correction': 'markov', 'rank': rank}


def _lm(target, n):
  width = max(32, target.width // 64 * 32)
  size = {'num_layers': 2, 'width': width, 'mlp_width': n}
  return size | _attention(width) | {'tied_embeddings': True}


KINDS = {
  # First, as it reads the most layers: the features of the others are theirs.
  'eagle3': Kind('eagle', _eagle(3), _steps_of(4)),
  'eagle1': Kind('eagle', _eagle(1), _steps_of(4)),
  'peagle': Kind('eagle', _masked(_eagle(3)), _steps_of(4)),
  'medusa': Kind('medusa', lambda _, n: {'count': n}, lambda _: range(1, 17)),
  'dflash': Kind('dflash', _dflash, _steps_of(4)),
  'dspark': Kind('dflash', _dspark, _steps_of(4)),
  'early_exit': Kind(
    'early_exit',
    lambda target, n: {'layers': max(1, target.num_layers // 6), 'rank': n},
    _steps_of(1),
  ),
  'lm': Kind('lm', _lm, _steps_of(8)),
  'pard': Kind('lm', _masked(_lm), _steps_of(8)),
}


@dataclasses.dataclass
class Contest(Experiment):
  """An experiment whose drafters are trained first.

  Attributes:
    kinds: that take part.
    steps: of training, a drafter of each kind for each.
    size: parameters of a drafter but tables of tokens, in squares of the
      target's width.
    optimization: of all; its schedule ends at each of `steps` in turn.
    examples: learned instead of the embedded corpus and the target's texts,
      where they name a file.
    texts: that the target writes without examples.
    held_out: prompts that every finished drafter is tried on.
    heads: folder of all training; by default runs/<name>-heads.
    features_gib: size of the features there at most, see `Heads`.
  """

  kinds: tuple[str, ...] = tuple(KINDS)
  steps: tuple[Count, ...] = (40, 120)
  size: Count = 8
  optimization: Optimization = dataclasses.field(
    default_factory=lambda: Optimization(
      ((20, 4e-3), (120, 0.0)),
      batch=4,
      length=128,
      muon=True,
      checkpoint_every=40,
    )
  )
  examples: Examples = dataclasses.field(default_factory=Examples)
  texts: Texts = dataclasses.field(
    default_factory=lambda: Texts(count=512, length=128)
  )
  held_out: HeldOut = dataclasses.field(
    default_factory=lambda: HeldOut(prompts=1, prompt_length=64, new_tokens=16)
  )
  heads: str = ''
  features_gib: Annotated[float, Between(0)] = 16.0

  def shrink(self) -> None:
    super().shrink()
    self.kinds, self.steps, self.size = self.kinds[:2], (3,), 2
    self.drafters, self.gammas = (), self.gammas[:1]
    self.optimization.shrink(8, 32)
    self.texts = Texts(count=8, batch=8, length=32)
    self.held_out.shrink()

  def check(self) -> None:
    check_fields(self)
    for name in self.kinds:
      need(
        name in KINDS,
        f'kinds: {name!r} is none; choose from {", ".join(KINDS)}',
      )
    need(self.gammas, 'gammas is empty: give a draft length, such as 3')
    warm = max((step for step, _ in self.optimization.schedule[:-1]), default=0)
    need(
      self.steps and min(self.steps) > warm,
      f'steps must be above {warm}, where optimization.schedule turns, and at '
      f'least one, got {self.steps}',
    )


def get_config() -> Contest:
  return Contest(
    name='contest',
    target=Checkpoint(pair.path('target')),
    candidates={},
    gammas=(2, 5),
    prompts=Prompts(domains=('code', 'documentation'), count=16, length=96),
    max_new_tokens=32,
    batch=16,
    timed=False,
  )


# Sizes.


def own_numbers(head: Trainable, target: Any) -> int:
  """Parameters of a drafter but its tables of tokens.

  Args:
    head: the drafter in training.
    target: shapes of its target's weights.
  """
  made = jax.eval_shape(head.init, jax.random.key(0), target)
  tables = 'embedding', 'unembedding'
  return sum(
    leaf.size
    for path, leaf in jax.tree_util.tree_leaves_with_path(made)
    if getattr(path[-1], 'key', None) not in tables
  )


class Entry(NamedTuple):
  """A drafter that takes part, of sizes that were chosen for its target."""

  name: str
  kind: Kind
  options: dict[str, Any]
  head: Trainable
  numbers: int  # see `own_numbers`

  def recipe(self, x: Contest, steps: int) -> Heads:
    """Its training."""
    corner, o = (steps, 0.0), x.optimization
    return Heads(
      folder=f'{x.heads}/{self.name}-{steps}',
      target=x.target.path,
      trainable=_full(self.kind),
      options=self.options,
      optimization=dataclasses.replace(o, schedule=(*o.schedule[:-1], corner)),
      dtype=x.dtype,
      seed=x.seed,
      data=f'{x.heads}/data',
      features=f'{x.heads}/features',
      features_gib=x.features_gib,
      texts=x.texts,
      examples=x.examples,
      held_out=x.held_out,
    )


def _full(kind: Kind) -> str:
  return f'specjax.drafters.{kind.load}.trainable'


def enter(x: Contest, target: Model) -> list[Entry]:
  """Chooses the sizes of every kind that come nearest to `x.size`."""
  config, entries = target.config, []
  shapes = jax.eval_shape(target.init, jax.random.key(0))
  for name in x.kinds:
    kind = KINDS[name]

    def made(n, name=name, kind=kind):
      options = kind.options(config, n)
      head = resolve('kinds', _full(kind))(target, **options)
      return Entry(name, kind, options, head, own_numbers(head, shapes))

    # All grow evenly with n.
    numbers = kind.numbers(config)
    low, high = (made(numbers[i]).numbers for i in (0, -1))
    share = (x.size * config.width**2 - low) / (high - low)
    place = round(min(max(share, 0), 1) * (len(numbers) - 1))
    entries.append(made(numbers[place]))
  return entries


# Costs.


class Work(NamedTuple):
  """The products of a program for one row.

  flops: of all of them.
  weights: numbers of the factors that all rows share.
  memory: numbers of the other factors: of caches.
  """

  flops: float = 0.0
  weights: float = 0.0
  memory: float = 0.0

  def __add__(self, other):
    return Work(*map(sum, zip(self, other, strict=True)))

  def times(self, count: float) -> 'Work':
    return Work(*(count * x for x in self))

  def seconds(self, chip: roofline.Chip, rows: int) -> float:
    """The least time that a chip takes for so many rows."""
    read = WIDE * (self.weights + rows * self.memory)
    return max(read / chip.bandwidth, rows * self.flops / chip.operations)


def work(jaxpr, turns: int, phase: str = '') -> dict[str, Work]:
  """Counts the products of a program by the phase of a step.

  Args:
    jaxpr: the program.
    turns: of a loop whose length the program does not say: a draft's.
    phase: that it belongs to, where it is the part of one.
  """
  found: dict[str, Work] = {}
  for eqn in jaxpr.eqns:
    scope = phase or str(eqn.source_info.name_stack).partition('/')[0]
    if eqn.primitive.name == 'dot_general':
      (contract, _), (batch, _) = eqn.params['dimension_numbers']
      one, other = (v.aval for v in eqn.invars)
      across = math.prod(one.shape[i] for i in contract)
      flops = 2.0 * across * math.prod(eqn.outvars[0].aval.shape)
      each = (
        (0, one.size + other.size) if batch else (max(one.size, other.size), 0)
      )
      found[scope] = found.get(scope, Work()) + Work(flops, *each)
    times = {'scan': eqn.params.get('length'), 'while': turns}
    for inner in core.jaxprs_in_params(eqn.params):
      for name, part in work(inner, turns, scope).items():
        more = part.times(times.get(eqn.primitive.name, 1))
        found[name] = found.get(name, Work()) + more
  return found


def work_of(head: Trainable | None, target: Model, gamma: int) -> dict:
  """Counts the products of a step of one row, by phase; without weights.

  Args:
    head: the drafter; None: plain decoding.
    target: what it drafts for.
    gamma: drafted tokens.
  """
  drafter = head.drafter(gamma) if head else plain.make()
  spec, key = Spec(target, drafter, verify.token), jax.random.key(0)

  def shapes(keys):
    frozen = target.init(keys[0])
    params = Params(frozen, head and head.init(keys[0], frozen))
    state = generate.start(
      params,
      [[1] * 8],
      spec=spec,
      new_tokens=64,
      key=keys,
      values=sampling.make(1, 0.0),
    )
    return params, state

  given = jax.eval_shape(shapes, key[None])
  step = functools.partial(generate.step, spec=spec)
  return work(jax.make_jaxpr(step)(*given).jaxpr, gamma - 1)


def costs(head: Trainable, target: Model, gamma: int) -> dict[str, Any]:
  """Returns FLOPs of a drafted token, and v and c by chip and batch.

  Texts are short, 72 tokens, so caches hardly count.
  """
  plainly = work_of(None, target, 0)['score']
  mine = work_of(head, target, gamma)
  draft = mine.get('propose', Work()) + mine.get('tell', Work())
  found = {}
  for name, rows in itertools.product(CHIPS, BATCHES):
    base, scored, drafted = (
      each.seconds(roofline.CHIPS[name], rows)
      for each in (plainly, mine['score'], draft)
    )
    cost = {'v': scored / base, 'c': drafted / base / gamma}
    found[f'{name}, batch {rows}'] = cost
  return {
    'drafted_flops': draft.flops / gamma,
    'plain_flops': plainly.flops,
    'calculated': found,
  }


# The run.


class Judged(Runner):
  """A run whose rows say what a drafter is, learned and costs."""

  program = 'contest'

  def __init__(self, planned, facts: dict[str, dict], cost: Callable):
    super().__init__(planned)
    self.facts, self.cost = facts, cost

  def row(self, method, cell, base, runs) -> dict:
    own = self.facts[method.drafter]
    row = super().row(method, cell, base, runs)
    return row | own | self.cost(own['kind'], method.gamma)


def run(x: Contest) -> None:
  """Trains what is not trained, and makes the rows that are missing."""
  x.check()
  if x.examples.prompts.path and not x.examples.evaluation:
    x.examples.evaluation = x.prompts.path  # Nobody learns what is asked.
  # What is wrong with the comparison is said before the training.
  copying = {'ngram': Candidate('ngram', x.gammas[0])}
  planned = study.plan_one(dataclasses.replace(x, candidates=copying))
  found = load.survey(planned)
  texts = load.read_prompts(planned, found.tokenizer, found.described)
  load.check_batch(planned, texts)
  x.heads = x.heads or f'runs/{x.name}{"-quick" * x.quick}-heads'
  target = found.described['target'].model
  entries = {entry.name: entry for entry in enter(x, target)}
  with blame('gammas: '):
    for entry, gamma in itertools.product(entries.values(), x.gammas):
      entry.head.drafter(gamma)
  facts = {}
  for steps, entry in itertools.product(x.steps, entries.values()):
    recipe = entry.recipe(x, steps)
    weights = pathlib.Path(recipe.folder) / 'weights'
    if weights.exists():
      train_heads.check(recipe)
      folders.claim(weights.parent, recipe)  # Of these very settings.
    else:
      train_heads.main(recipe)
    name, o = f'{entry.name}-{steps}', recipe.optimization
    loader = f'specjax.drafters.{entry.kind.load}.load'
    x.candidates[name] = Candidate(loader, x.gammas[0], str(weights))
    facts[name] = {
      'kind': entry.name,
      'learned': steps * o.batch * o.length * o.accumulate,
      'sizes': entry.options,
      'own_numbers': entry.numbers,
    }

  @functools.cache
  def cost(name: str, gamma: int) -> dict[str, Any]:
    return costs(entries[name].head, target, gamma)

  runner = Judged(whole_steps(study.plan_one(x)), facts, cost)
  runner.run()
  study.publish(runner.folder)


# The rows as tables.


def fields(row: dict) -> dict[str, Any]:
  del row  # Unused: all rows have the same.
  own = study.fields(
    text='kind drafter domain',
    count='learned gamma own_numbers',
    number='temperature tau drafted_flops plain_flops',
  )
  return own | {'calculated': dict[str, dict[str, float]]}


def predicted(row: dict, place: str) -> float:
  """The calculated speed-up of a row on a chip."""
  cost = row['calculated'][place]
  return metrics.predicted_speedup(row['tau'], gamma=row['gamma'], **cost)


def _lead(one: dict, other: dict, place: str) -> metrics.Estimate | None:
  """`other` less `one`, in tau or in the speed-up on a chip, paired."""
  if not paired.same_prompts(one, other):
    return None
  # From tau to the compared number.
  a, b = (
    predicted(row, place) / row['tau'] if place else 1.0 for row in (one, other)
  )
  columns = (row[name] for row in (one, other) for name in paired.TAU)
  return metrics.estimate(lambda n, d, m, e: b * m / e - a * n / d, *columns)


def _mean(rows: list[dict], number: Callable[[dict], float]) -> float:
  return float(np.mean([number(row) for row in rows]))


def best_length(rows: list[dict], place: str) -> list[dict]:
  """The rows of the draft length whose calculated speed-up is largest."""
  lengths = group(rows, 'gamma').values()
  return max(lengths, key=lambda r: _mean(r, lambda row: predicted(row, place)))


def order(worse: list[dict], better: list[dict], place: str = '') -> tuple:
  """Judges whether some rows are above others, cell by cell and pooled.

  Args:
    worse: of one drafter.
    better: of the other.
    place: the chip on which each takes its best draft length; empty: tau, at
      every draft length.

  Returns:
    The pooled difference and its outcome; neither where no cell is common.
  """
  cell = ('domain', 'temperature', *(() if place else ('gamma',)))
  if place:
    worse, better = (best_length(rows, place) for rows in (worse, better))
  below = group(worse, *cell)
  found = []
  for where, (row,) in group(better, *cell).items():
    other = below.get(where)
    lead = _lead(other[0], row, place) if other else None
    if lead is not None:
      named = dict(zip(cell, where, strict=True))
      found.append(finding(named, '', lead, other[0]))
  if not found:
    return None, '-'
  return findings.pool(found).estimate, findings.overall(found)


def _ranked(rows: list[dict]) -> Table:
  """Every drafter, at its best length for one row of the first chip."""
  lines = []
  for (learned, kind), mine in group(rows, 'learned', 'kind').items():
    mine = best_length(mine, PLACE)
    tau = _mean(mine, lambda r: r['tau'])
    flops = mine[0]['drafted_flops']
    line = [kind, f'{learned:,}', f'{mine[0]["own_numbers"] / 1e6:.2f}']
    line += [str(mine[0]['gamma']), f'{tau:.2f}', f'{flops / 1e6:.1f}']
    line += [f'{(tau - 1) / (flops * mine[0]["gamma"]) * 1e9:.1f}']
    for where, cost in mine[0]['calculated'].items():
      fast = _mean(mine, functools.partial(predicted, place=where))
      line.append(f'{fast:.2f} (c {cost["c"]:.3f})')
    lines.append(line)
  return Table(
    'Drafters',
    'Means over domains and temperatures, at the draft length that is fastest '
    f'on {PLACE}. Parameters are without tables of tokens; v and c are '
    'calculated from FLOPs and bytes in 16 bits.',
    ['kind', 'tokens learned', 'parameters, M', 'gamma', 'tau',
     'MFLOP per drafted token', 'accepted per drafted GFLOP',
     *(f'speed-up, {where}' for where in rows[0]['calculated'])],
    lines,
  )  # fmt: skip


def _orders(rows: list[dict]) -> list[Table]:
  """Published orders, then those of all other pairs, for each amount."""
  of, places = group(rows, 'learned', 'kind'), ('', PLACE)
  amounts = sorted({row['learned'] for row in rows})
  kinds = dict.fromkeys(row['kind'] for row in rows)
  others = [
    pair
    for pair in itertools.combinations(kinds, 2)
    if not {pair, pair[::-1]} & {*PUBLISHED}
  ]
  heads = [
    f'{"speed-up" if place else "tau"}, {amount:,} tokens'
    for amount, place in itertools.product(amounts, places)
  ]

  def line(better: str, worse: str) -> list[str]:
    cells = []
    for amount, place in itertools.product(amounts, places):
      both = of.get((amount, worse)), of.get((amount, better))
      lead, outcome = order(*both, place) if all(both) else (None, '-')
      cells.append(f'{outcome}: {estimated(lead, "+.2f")}' if lead else outcome)
    return [f'{better} > {worse}', *cells]

  known = [pair for pair in PUBLISHED if {*pair} <= {*kinds}]
  note = (
    'Each order holds where the 95% interval of the pooled difference is above '
    '0, does not hold where it is below, and is undecided else. tau is '
    f'compared at equal draft lengths, the speed-up on {PLACE} at the best '
    'length of each, chosen on the same prompts. Both are paired on prompts, '
    'and intervals are over these '
    'alone: how another training would end is not in them.'
  )
  published = [[*line(*pair), PUBLISHED[pair]] for pair in known]
  made = [
    Table('Published orders', note, ['order', *heads, 'published'], published),
    Table('Other orders', '', ['order', *heads], [line(*x) for x in others]),
  ]
  return [table for table in made if table.lines]


def headline(rows: list[dict]) -> str:
  said = f'Drafters of {len({r["kind"] for r in rows})} kinds that learned the '
  said += f'same for {values(rows, "target")}'
  count = f'{values(rows, "prompts")} prompts of each domain'
  return study.headline(said, rows, count, f'gamma {values(rows, "gamma")}')


def summary(rows: list[dict]) -> str:
  """The headline, every drafter, and the order of every pair."""
  tables = _ranked(rows), *_orders(rows)
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
