"""How near are rules to the most that any exact rule could accept?

  python -m experiments.optimal_acceptance

The target writes, and at every place of its text p and q are kept. There the
drafts for one place are drawn many times, each rule is asked how likely it
accepts one of them (`verify.chance`), and the bound (`stats.optimal`) is
computed. No time is taken; ten minutes on two idle cores, `--quick` one.

  python -m experiments.optimal_acceptance :FOLDER \\
    --prompts.path=HumanEval.jsonl.gz --prompts.chat --drafts=1,2,4

is the same for the pair of `configs/real_pair.py`, whose files FOLDER has.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from configs import real_pair
from specjax import pair, verify
from specjax.bench import costs, measure, replay, results, study
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.bench.plan import whole_steps
from specjax.bench.runner import Runner
from specjax.cli import command, progress
from specjax.cli.fields import Between, Count
from specjax.drafters.shapes import static_tree
from specjax.errors import need
from specjax.reports import Draw
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks
from specjax.stats import metrics, optimal
from specjax.stats.row import group, pick
from specjax.types import Draft, Rule, Scores

# Rules by how the drafts for a place are drawn; with a hub, two of them.
RULES = {
  'independent': ('recursive', 'k_seq', 'multi_path', 'importance', 'naive'),
  'different': ('recursive', 'naive'),
  'hub': ('recursive', 'hub', 'naive'),
}
LAWS = {
  'independent': None,
  'different': static_tree.remaining,
  'hub': static_tree.beside_hub,
}
_BINS = 32


@dataclasses.dataclass
class OptimalAcceptance(Experiment):
  """An experiment on the drafts for one place.

  Attributes:
    drafts: numbers of drafts.
    draws: of all drafts, at each place.
    kept: tokens of a place that are looked at one by one, the likeliest under
      p or q. Others are put together by p / q, into 32 tokens.
  """

  drafts: tuple[Count, ...] = (1, 2, 4, 8)
  draws: Count = 64
  kept: Annotated[int, Between(1)] = 256

  def shrink(self) -> None:
    super().shrink()
    self.drafts, self.draws = self.drafts[:2], min(self.draws, 16)


def get_config(folder: str = '') -> OptimalAcceptance:
  """Returns the config of the embedded pair, or of files of a folder."""
  temperatures = {'temperatures': (0.3, 0.6, 1.0), 'timed': False}
  if folder:
    x = real_pair.get_config(folder)
    few = {'drafters': ('sibling',), 'max_new_tokens': 32, 'batch': 10}
    x.prompts.count = 10
    return OptimalAcceptance(**vars(x) | few | temperatures)
  return OptimalAcceptance(
    name='optimal_acceptance',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 1, pair.path('draft-128'))},
    prompts=Prompts(domains=('code', 'documentation'), count=16),
    max_new_tokens=32,
    batch=16,
    **temperatures,
  )


# Places of the target's text.


def places(
  way: measure.Decoding, job: measure.Job
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields prompt, p [V] and q [V] for each new token of the target.

  Args:
    way: of a drafter of one token; its rule accepts nothing.
    job: the prompts.

  Raises:
    NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec, params, _ = way
  vocab = spec.target.config.vocab_size

  def blank(batch, depth):
    del depth  # Unused.
    none = jnp.zeros((batch, vocab))
    return none, none

  look = replay.onlooker(
    (spec.drafter,),
    blank,
    lambda draft, verdict: (verdict.probs, draft.probs[:, 0]),
  )
  way = measure.Decoding(
    dataclasses.replace(spec, drafter=look),
    params._replace(drafter=(params.drafter,)),
    replay.PARTS,
  )
  for live, state in measure.one_by_one(way, measure.start(way, job)):
    ((_, (p, q)),) = state.drafter
    for row in np.flatnonzero(live[: job.live]):
      yield job.indices[row], np.asarray(p[row]), np.asarray(q[row])


def fewer_tokens(p, q, kept: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns p and q over the likeliest tokens, and over groups of the others.

  Tokens of nearly one p / q become one. With p / q equal, nothing that rules
  and bounds depend on changes but the chance to draw one token twice.

  Args:
    p: [V].
    q: [V].
    kept: tokens that stay, the most probable ones under p or q.

  Returns:
    Both as float64 [min(V, kept + 32)].
  """
  p, q = (np.asarray(x, np.float64) for x in (p, q))
  if len(p) <= kept + _BINS:
    return p / p.sum(), q / q.sum()
  order = np.argsort(-np.maximum(p, q))
  few, rest = order[:kept], order[kept:]
  with np.errstate(divide='ignore', invalid='ignore'):
    rest = rest[np.argsort(p[rest] / q[rest])]
  mass = np.cumsum(p[rest] + q[rest])
  share = mass / mass[-1] if mass[-1] else mass
  to = np.minimum((share * _BINS).astype(int), _BINS - 1)
  both = [
    np.concatenate([x[few], np.bincount(to, x[rest], _BINS)]) for x in (p, q)
  ]
  return both[0] / both[0].sum(), both[1] / both[1].sum()


@functools.partial(jax.jit, static_argnums=(0, 1))
def accepted(rule: Rule, law: Callable | None, u, p, q) -> jax.Array:
  """Returns the mean chance that a rule accepts one of the drafts for a place.

  Args:
    rule: the rule.
    law: of later drafts for a place, see `static_tree`; None: of the first.
    u: [places, draws, n] uniform numbers that the drafts are drawn by.
    p: [places, V].
    q: [places, V].
  """
  n = u.shape[-1]

  def chance(p, q, u):
    drawn, tokens, probs = jnp.zeros(q.shape, bool), [], []
    for i in range(n):
      own = law(q, drawn, q, 1.0) if law and i else q
      below = jnp.cumsum(own)
      token = jnp.searchsorted(below, u[i] * below[-1], 'right')
      drawn = drawn.at[token].set(True)
      tokens.append(token)
      probs.append(own)
    draft = Draft(
      jnp.stack(tokens), jnp.zeros(n, jnp.int32), jnp.int32(n), jnp.stack(probs)
    )
    rows = jnp.broadcast_to(p, (n + 1, len(p)))
    return verify.chance(rule)(draft, Scores(rows, rows))

  def of_place(place):
    u, p, q = place
    return jax.vmap(chance, (None, None, 0))(p, q, u).mean()

  return jax.lax.map(of_place, (u, p, q))


def spread(random: np.random.Generator, shape: tuple) -> np.ndarray:
  """Returns uniform numbers [places, draws, n], one in each of `draws` parts.

  So their mean over draws varies less than that of independent ones.
  """
  begin = np.argsort(random.random(shape), 1)
  return (begin + random.random(shape)) / shape[1]


Cell = tuple[int, str, str]  # drafts, how they are drawn, rule


def cells(x: OptimalAcceptance) -> Iterator[Cell]:
  """Yields every cell; one draft is drawn in one way."""
  for n, (siblings, rules) in itertools.product(x.drafts, RULES.items()):
    if siblings == 'independent' or n == 2 or (n > 2 and siblings != 'hub'):
      yield from ((n, siblings, rule) for rule in rules)


def bound(n: int, siblings: str) -> Callable[..., float]:
  """Returns the function (p, q) -> bound for drafts that are drawn so."""
  if siblings == 'hub':
    return optimal.acceptance_beside_hub
  replacement = siblings == 'independent'
  return functools.partial(optimal.acceptance, n=n, replacement=replacement)


def measured(
  x: OptimalAcceptance,
  todo: list[Cell],
  prompts: np.ndarray,
  p: np.ndarray,
  q: np.ndarray,
) -> Iterator[dict]:
  """Yields the numbers of each cell.

  Args:
    x: the settings.
    todo: the cells.
    prompts: [places] the prompt of each place.
    p: [places, V].
    q: [places, V].
  """
  ones = np.ones(len(p))

  def sums(numbers) -> np.ndarray:
    return np.bincount(prompts, numbers)

  for (n, siblings), some in itertools.groupby(todo, lambda cell: cell[:2]):
    random = np.random.default_rng((x.seed, n))  # All rules have these draws.
    bounds = [*map(bound(n, siblings), p, q)]
    u = spread(random, (len(p), x.draws, n))
    for _, _, name in some:
      with jax.enable_x64(True):
        rule = getattr(verify, name)
        chances = np.asarray(accepted(rule, LAWS[siblings], u, p, q))
      yield {
        'drafts': n,
        'siblings': siblings,
        'verifier': name,
        'places': len(p),
        **metrics.fields(
          accepted=metrics.ratio(sums(chances), sums(ones)).clipped(0, 1),
          bound=metrics.ratio(sums(bounds), sums(ones)).clipped(0, 1),
          share=metrics.ratio(sums(chances), sums(bounds)),
        ),
        'unit_places': sums(ones).tolist(),
        'unit_accepted': sums(chances).tolist(),
        'unit_bound': sums(bounds).tolist(),
      }


def run(x: OptimalAcceptance) -> None:
  """Makes the rows that are missing."""
  need(
    x.drafts, 'drafts is empty: name numbers of drafts, such as --drafts=2,4'
  )
  need(
    max(x.drafts) <= x.kept,
    f'kept is {x.kept}, but drafts {max(x.drafts)}: raise kept',
  )
  x.gammas = (1,)
  runner = Runner(whole_steps(study.plan_one(x, 'verifiers')))
  (method, *others) = runner.built.methods
  need(not others, f'drafters: one is looked at, got {len(others) + 1}')
  texts = next(iter(runner.prompts.values()))[:1]
  first = runner.built.job(texts, [0], x.temperatures[0])
  need(
    costs.is_drawn(method.single, first),
    f'drafters: {method.drafter!r} chooses its tokens and draws none: name one '
    'that draws, such as lm',
  )

  def missing(domain: str, temperature: float) -> list[Cell]:
    names = 'drafts', 'siblings', 'verifier'
    where = {'domain': domain, 'temperature': temperature}
    return [
      cell
      for cell in cells(x)
      if not runner.folder.has(**where, **dict(zip(names, cell, strict=True)))
    ]

  groups = itertools.product(runner.prompts, x.temperatures)
  todo = [where for where in groups if missing(*where)]
  for domain, temperature in progress.over('cells', todo):
    texts, seen = runner.prompts[domain], []
    for job in runner.units(domain, temperature):
      for prompt, p, q in places(method.single, job):
        seen.append((prompt, *fewer_tokens(p, q, x.kept)))
    columns = (np.array(column) for column in zip(*seen, strict=True))
    facts = study.facts('optimal_acceptance', x, runner.built, texts)
    facts |= {'domain': domain, 'temperature': temperature}
    facts |= {'drafter': method.drafter, 'draft': method.draft}
    for row in measured(x, missing(domain, temperature), *columns):
      runner.folder.add(results.plain(facts | row))
  study.publish(runner.folder)


# The rows as tables.


fields = study.alike(
  text='target draft drafter domain siblings verifier',
  count='drafts places',
  number='temperature accepted bound share',
  ends='accepted_ci bound_ci share_ci',
  numbers='unit_places unit_accepted unit_bound',
)


def headline(rows: list[dict]) -> str:
  count = f'{values(rows, "prompts")} prompts of each domain'
  pairs = f'{values(rows, "draft")} for {values(rows, "target")}'
  what = f'Drafts of {pairs}, and what any exact rule could accept of them'
  return study.headline(what, rows, count)


def summary(rows: list[dict]) -> str:
  """The headline, and the share of each rule by domain and temperature."""
  tables = []
  known = {row['verifier'] for row in rows}
  every = dict.fromkeys(itertools.chain(*RULES.values()))
  rules = [rule for rule in every if rule in known]
  for (domain, t), mine in group(rows, 'domain', 'temperature').items():
    lines = []
    for (n, siblings), some in group(mine, 'drafts', 'siblings').items():
      by = {row['verifier']: study.shown('share', '.3f')(row) for row in some}
      bound = study.shown('bound', '.3f')(some[0])
      shares = [by.get(rule, '-') for rule in rules]
      lines.append([str(n), siblings, bound, *shares])
    head = ['drafts', 'siblings', 'bound', *rules]
    title = f'Share of the bound: {domain}, temperature {t:g}'
    tables.append(Table(title, '', head, lines).markdown())
  return blocks(headline(rows), *tables)


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  from specjax.reports import figure_style  # matplotlib takes a second

  @figure_style.in_style
  def acceptance_by_drafts(rows: list[dict]):
    """The bound and what rules accept, by the number of independent drafts."""
    shown = pick(rows, siblings='independent')
    shown.sort(key=lambda row: row['temperature'])
    figure, panels = figure_style.panels(shown, 'drafts', 'accepted')
    rules = figure_style.distinct(shown, 'verifier')
    for axes, here in panels:
      bounds = pick(here, verifier=rules[0])
      lines = [(bounds, 'bound', 'bound', {'color': 'black', 'linewidth': 2})]
      for i, rule in enumerate(rules):
        look = {'color': figure_style.colour(i), 'marker': 'o'}
        lines.append((pick(here, verifier=rule), 'accepted', rule, look))
      for mine, name, label, look in lines:
        numbers = [row['drafts'] for row in mine]
        axes.plot(numbers, [row[name] for row in mine], label=label, **look)
      axes.set_xscale('log', base=2)
      axes.set_xticks(numbers := [r['drafts'] for r in bounds], numbers)
      axes.minorticks_off()
    return figure_style.finish(
      figure,
      shown,
      'Chance that a rule accepts one of the drafts for a place, in the mean '
      "over places of the target's text; the bound is that of the best rule.",
    )

  return (acceptance_by_drafts,)


if __name__ == '__main__':
  command.study(run, get_config)
