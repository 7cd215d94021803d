"""Does a draft length that adapts beat the best constant one?

  python -m experiments.draft_lengths

The target writes, and at every place a whole draft is made, whose first token
is judged as the loop judges it. If it is accepted it is the text's next token.
If not, the target's correction is, and the rest of the draft is what a step
that is rejected there has drafted. A step that begins at any place so finds
what it would have drafted: the text up to the first rejection, and that
rejected draft. This holds where q depends on the text alone, as a model's does.

  place       0    1    2    3        a step from 0 of five tokens
  accepted    yes  yes  no   yes      drafts y0 y1, and x2 x3 x4 made at place 2
  text        y0   y1   y2   y3       accepts two; the next step begins at 3

Every policy then takes its steps along the same texts with the same coins, by
the functions that run in the loop. No time is taken: a step of n drafted tokens
is said to cost 1 + n c + m scoring plain steps, with c from `costs`. With
ragged shapes m is n. With fixed shapes, as programs for a GPU or TPU have them,
m is the most that the policy may draft. A setting of a policy, and the constant
length that it is compared with, are chosen on other prompts. The oracle knows
what will be accepted.

`places.npz` in the folder of the rows keeps what was drafted, so a run that was
stopped goes on. Three minutes beside other work, `--quick` less than one.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import pair, prompts, trees, verify
from specjax.bench import measure, results, study
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.bench.measure import Decoding
from specjax.bench.plan import Plan, whole_steps
from specjax.bench.replay import refuse_features
from specjax.bench.runner import Runner
from specjax.cli import command, progress
from specjax.cli.fields import Count
from specjax.drafters.shapes import policies
from specjax.drafters.shapes.policies import Last, Policy
from specjax.errors import need
from specjax.loop import generate
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, with_interval
from specjax.stats import metrics
from specjax.stats.row import group, pick
from specjax.training.data import read_arrays, write_arrays
from specjax.types import Draft, Drafter, Verdict

WHOLE = policies.confidence(0.0)  # Never stops, and reads all.
CONSTANT, HINDSIGHT, ORACLE = 'constant', 'constant, in hindsight', 'oracle'
_CAPS = 1, 2, 3, 4, 6, 8, 12


@dataclasses.dataclass
class DraftLengths(Experiment):
  """An experiment on one drafter, which drafts gamma tokens at every place.

  Attributes:
    costs: of drafting a token, in plain steps: c.
    scoring: of scoring one more token, in plain steps: (v - 1) / gamma.
    folds: parts of the prompts; what is chosen for one part is chosen on the
      others.
  """

  costs: tuple[float, ...] = (0.05, 0.15, 0.35)
  scoring: float = 0.06
  folds: Count = 5

  def shrink(self) -> None:
    super().shrink()
    self.temperatures, self.costs = self.temperatures[:1], self.costs[:1]


def get_config() -> DraftLengths:
  return DraftLengths(
    name='draft_lengths',
    target=Checkpoint(pair.path('target')),
    candidates={'draft-128': Candidate('lm', 8, pair.path('draft-128'))},
    prompts=Prompts(count=24),
    max_new_tokens=72,
    temperatures=(0.0, 1.0),
    batch=24,
    timed=False,
  )


# What is drafted at every place.


class Places(NamedTuple):
  """Texts with the draft that was made at each of their T places.

  The first token of a draft is judged, the others follow it.
  """

  accepted: np.ndarray  # [n, T] whether the first token was
  confidence: np.ndarray  # [n, T, K] see `policies`
  entropy: np.ndarray  # [n, T, K]
  length: np.ndarray  # [n] places of each text; what lies beyond is 0

  @property
  def depth(self) -> int:
    return self.confidence.shape[-1]


class _Judged(NamedTuple):
  path: jax.Array
  num_accepted: jax.Array
  next_token: jax.Array
  accepted: jax.Array


def _judge(key, draft, scores, rule, depth) -> _Judged:
  """Keeps one token of a step: the drafted one, or its correction."""
  verdict = verify.judge(key, draft, scores, rule, depth)
  accepted = verdict.num_accepted > 0
  token = jnp.where(accepted, draft.tokens[0], verdict.next_token)
  nothing = jax.tree.map(jnp.zeros_like, verdict)
  return _Judged(nothing.path, nothing.num_accepted, token, accepted)


@functools.cache
def _looking(inner: Drafter) -> Drafter:
  """Returns a drafter of the first token of a chain.

  It remembers whether the last one was accepted, and what its chain has read.
  """

  def init(params, ctx, hidden):
    batch = len(ctx.length)
    read = jnp.zeros((batch, inner.depth))
    return inner.init(params, ctx, hidden), (jnp.zeros(batch, bool), read, read)

  def propose(params, state, ctx, key):
    draft, memory = inner.propose(params, state[0], ctx, key)
    first = Draft(
      draft.tokens[:, :1],
      trees.chain(len(ctx.length), 1),
      jnp.ones_like(draft.size),
      draft.probs[:, :1],
    )
    return first, (memory, state[1])

  def commit(params, state, ctx, verdict, hidden):
    memory, _ = state
    seen = verdict.accepted, *memory.policy.read  # Of the whole chain.
    path = jnp.zeros((len(ctx.length), inner.depth + 1), jnp.int32)
    nothing = Verdict(path, verdict.num_accepted, verdict.next_token)
    return inner.commit(params, memory, ctx, nothing, hidden), seen

  return Drafter(1, 1, init, propose, commit)


def look(way: Decoding, job: measure.Job) -> Places:
  """Drafts at every place of the texts of a job.

  Args:
    way: of a chain with the policy `WHOLE`, and the rule `token`.
    job: the prompts.

  Raises:
    measure.NotFinite: logits of the target or the draft are NaN or infinite.
  """
  spec = dataclasses.replace(way.spec, drafter=_looking(way.spec.drafter))
  way = Decoding(spec, way.params, generate.PARTS._replace(judge=_judge))
  seen = [
    (live, *jax.device_get(state.drafter[1]))
    for live, state in measure.one_by_one(way, measure.start(way, job))
  ]
  live, *columns = (np.stack(x, 1)[: job.live] for x in zip(*seen, strict=True))
  left = int(np.max(job.new_tokens)) - live.shape[1]

  def places(column):
    inside = live.reshape(*live.shape, *(1,) * (column.ndim - 2))
    ends = (0, 0), (0, left), *((0, 0),) * (column.ndim - 2)
    return np.pad(column * inside, ends)

  return Places(*map(places, columns), live.sum(1))


# Steps along these places.


class Taken(NamedTuple):
  """Sums over the whole steps of each text: those with K + 1 places ahead."""

  steps: np.ndarray  # [..., n]
  drafted: np.ndarray
  tokens: np.ndarray  # the corrected or bonus ones included
  scored: np.ndarray  # drafted tokens, or places for them


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, None, 0))
@functools.partial(jax.vmap, in_axes=(None, 0, None))
def take(policy: Policy, places: Places, cap) -> Taken:
  """Takes the steps of a policy that drafts at most `cap` tokens.

  Args:
    policy: asked as a chain asks it.
    places: the texts, [n, ...].
    cap: [m] tokens.

  Returns:
    The sums, [m, n].
  """
  depth = places.depth
  padded = jnp.pad(places.accepted, (0, depth))

  def step(carry):
    place, memory, sums = carry
    window = jax.lax.dynamic_slice_in_dim(padded, place, depth)
    ahead = jnp.cumprod(window.astype(jnp.int32)).sum()
    node = jnp.arange(depth)
    at = place + jnp.minimum(node, ahead), jnp.maximum(node - ahead, 0)

    def draw(carry, seen):
      size, reach, going = carry
      number, sure, entropy = seen
      reach = reach * policy.chance(number, sure, entropy)
      more = policy.goes_on(memory, Last(number, sure, entropy, reach))
      return (size + going, reach, going & more & (number < cap)), None

    seen = node + 1, places.confidence[at], places.entropy[at]
    begin = jnp.int32(0), jnp.ones(()), jnp.bool_(True)
    (size, _, _), _ = jax.lax.scan(draw, begin, seen)
    kept = jnp.minimum(size, ahead)
    step = Taken(1, size, kept + 1, size)
    new = Taken(*(a + b for a, b in zip(sums, step, strict=True)))
    return place + kept + 1, policy.learn(memory, size, kept), new

  none = jnp.int32(0)
  begin = none, policy.start(), Taken(none, none, none, none)
  return jax.lax.while_loop(
    lambda carry: carry[0] + depth + 1 <= places.length, step, begin
  )[2]


def oracle(places: Places, cost: float, scoring: float) -> Taken:
  """Takes the steps with the most tokens for their cost, of all texts together.

  It knows how many tokens will be accepted, and may draft none. Its shapes are
  ragged. For a rate, the best total of tokens - rate x cost comes from the last
  place backwards. The rate is then that of these steps, until it stays
  (Dinkelbach 1967).

  Args:
    places: the texts.
    cost: of drafting a token, in plain steps.
    scoring: of scoring one more.
  """
  count, total = places.accepted.shape
  depth, row = places.depth, np.arange(count)
  padded = np.pad(places.accepted, ((0, 0), (0, depth)))
  windows = np.lib.stride_tricks.sliding_window_view(padded, depth, 1)
  ahead = windows[:, :total].cumprod(-1).sum(-1)
  size, rate, before = np.arange(depth + 1), 0.0, -1.0
  while rate > before:
    worth = np.zeros((count, total + depth + 1))
    sums = np.zeros((count, total + depth + 1, 3), int)
    for place in reversed(range(total)):
      own = size + 1 - rate * (1 + (cost + scoring) * size)
      own = own + worth[:, place + 1 + size]
      own[size > ahead[:, [place]]] = -np.inf
      best = own.argmax(1)
      step = np.stack([np.ones_like(best), best, best + 1], 1)
      step += sums[row, place + 1 + best]
      begins = place + depth + 1 <= places.length
      worth[:, place] = np.where(begins, own[row, best], 0)
      sums[:, place] = np.where(begins[:, None], step, 0)
    taken = Taken(*sums[:, 0].T, sums[:, 0, 1])
    before, rate = rate, rate_of(taken, cost, scoring)
  return taken


def cost_of(taken: Taken, cost: float, scoring: float) -> np.ndarray:
  """Plain steps that each text costs."""
  return taken.steps + cost * taken.drafted + scoring * taken.scored


def rate_of(taken: Taken, *costs: float) -> float:
  """Tokens of all texts over their plain steps."""
  return taken.tokens.sum() / cost_of(taken, *costs).sum()


# What is chosen on other prompts.


def fit(some: list[Places]) -> tuple[float, ...]:
  """Fits the weights of `policies.learned` to steps that begin at each place.

  Logistic regression by Newton's method, with a ridge of 1 on all weights.
  """
  known, wanted = [], []
  for places in some:
    ahead = np.ones_like(places.accepted)
    begins = np.arange(ahead.shape[1]) < places.length[:, None] - places.depth
    for node in range(places.depth):
      end = ahead.shape[1] - node
      judged = (ahead & begins)[:, :end]
      sure, entropy = (
        x[:, node:, 0][judged] for x in (places.confidence, places.entropy)
      )
      log = np.log(np.maximum(sure, 1e-30))
      one = np.ones_like(log)
      known.append(np.stack([one, log, entropy, node * one], 1))
      accepted = places.accepted[:, node:]
      wanted.append(accepted[judged])
      ahead[:, :end] &= accepted
  x, y = np.concatenate(known), np.concatenate(wanted)
  weights = np.zeros(x.shape[1])
  for _ in range(30):
    chance = 1 / (1 + np.exp(-x @ weights))
    bend = (x * (chance * (1 - chance))[:, None]).T @ x + np.eye(len(weights))
    weights += np.linalg.solve(bend, x.T @ (y - chance) - weights)
  return tuple(map(float, weights))


class Choice(NamedTuple):
  """A setting of a policy: its name, the policy, and the most tokens."""

  name: str
  policy: Policy
  cap: int


def families(
  depth: int, cost: float, scoring: float, weights: tuple[float, ...]
) -> dict[str, list[Choice]]:
  """Returns the settings of every policy that is compared, by its name.

  What is not tuned has the setting that was published. All have several caps.

  Args:
    depth: K.
    cost: of drafting a token.
    scoring: of scoring one more.
    weights: of `policies.learned`, from other prompts.
  """
  learned = functools.partial(policies.learned, *weights)
  expected = policies.expected(cost, scoring)
  arms = tuple(n for n in (1, 2, 4, 8) if n <= depth)
  caps = [*(n for n in _CAPS if n < depth), depth]

  def capped(policy: Policy, name: str = '') -> list[Choice]:
    return [Choice(f'{name}at most {cap}', policy, cap) for cap in caps]

  def tuned(made: Callable[..., Policy], *settings: float) -> list[Choice]:
    return [one for x in settings for one in capped(made(x), f'{x:g}, ')]

  return {
    CONSTANT: [Choice(str(n), WHOLE, n) for n in range(1, depth + 1)],
    'confidence 0.4': capped(policies.confidence(0.4)),
    'entropy 0.3': capped(policies.entropy(0.3)),
    'adaedl': capped(policies.adaedl()),
    'learned 0.7': capped(learned(0.7)),
    'heuristic': capped(policies.heuristic()),
    'bandit': capped(policies.bandit(cost, scoring, *arms)),
    'expected': capped(expected),
    'expected, learned': capped(expected._replace(chance=learned().chance)),
    'confidence, tuned': tuned(
      policies.confidence, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9
    ),
    'entropy, tuned': tuned(
      policies.entropy, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0
    ),
    'adaedl, tuned': tuned(policies.adaedl, 0.0, 0.2, 0.4, 0.6, 0.8),
    'learned, tuned': tuned(learned, 0.1, 0.3, 0.5, 0.7, 0.9),
  }


class Cell(NamedTuple):
  """The places of a domain at a temperature, and steps taken along them."""

  places: Places
  known: dict[Policy, Taken]  # by cap, [K, n]

  def take(self, choice: Choice, fixed: bool) -> Taken:
    """Returns the steps of a choice; of fixed shapes all places are scored."""
    if choice.policy not in self.known:
      caps = jnp.arange(1, self.places.depth + 1)
      found = take(choice.policy, self.places, caps)
      self.known[choice.policy] = Taken(*map(np.asarray, found))
    taken = Taken(*(x[choice.cap - 1] for x in self.known[choice.policy]))
    if fixed:
      return taken._replace(scored=choice.cap * taken.steps)
    return taken


def choose(
  cell: Cell, choices: list[Choice], fixed: bool, on: np.ndarray, *costs: float
) -> Choice:
  """Returns the choice with the best rate on some prompts.

  Args:
    cell: the steps.
    choices: at least one.
    fixed: whether shapes are.
    on: [n] whether a prompt counts.
    *costs: of drafting and of scoring a token.
  """

  def rate(choice):
    taken = cell.take(choice, fixed)
    return rate_of(Taken(*(y[on] for y in taken)), *costs)

  return max(choices, key=rate)


# The run.


def gain_over(taken: Taken, base: Taken, cost, scoring) -> metrics.Estimate:
  """Speed-up of steps over others on the same texts; costs may be [n]."""
  return metrics.estimate(
    lambda t, c, u, d: t / c / (u / d),
    taken.tokens,
    cost_of(taken, cost, scoring),
    base.tokens,
    cost_of(base, cost, scoring),
    positive=True,
  )


def numbers(taken: Taken, base: Taken, best: Taken, *costs: float) -> dict:
  """Returns the fields of a policy, compared with the constant length.

  Args:
    taken: its steps.
    base: those of the constant length.
    best: those of the oracle.
    *costs: of drafting and of scoring a token.
  """
  rate, least, most = (rate_of(x, *costs) for x in (taken, base, best))
  gain = gain_over(taken, base, *costs)
  return {
    **metrics.fields(
      tau=metrics.ratio(taken.tokens, taken.steps),
      drafted=metrics.ratio(taken.drafted, taken.steps),
      speedup=metrics.ratio(taken.tokens, cost_of(taken, *costs)),
      gain=gain,
    ),
    'share': (rate - least) / (most - least) if most > least else None,
    'verdict': verdict(gain.interval),
    **{f'unit_{n}': x.tolist() for n, x in taken._asdict().items()},
  }


def verdict(interval) -> str:
  """Says whether a gain over the constant length is one."""
  low, high = interval or (0.0, np.inf)
  return 'holds' if low > 1 else 'fails' if high < 1 else 'undecided'


def compare(x: DraftLengths, cells: dict[tuple, Cell]) -> Iterator[dict]:
  """Yields the fields of a row for each cell, cost and policy.

  Args:
    x: the settings.
    cells: by domain and temperature.
  """

  def parts(cell: Cell) -> np.ndarray:
    return np.arange(len(cell.places.length)) % x.folds

  def without(cell: Cell, part: int) -> Places:
    return Places(*(y[parts(cell) != part] for y in cell.places))

  weights = [
    fit([without(cell, part) for cell in cells.values()])
    for part in range(x.folds)
  ]
  todo = [*itertools.product(cells.items(), x.costs, (False, True))]
  for (place, cell), c, fixed in progress.over('policies', todo):
    costs, depth = (c, x.scoring), cell.places.depth
    mine = parts(cell)
    made = [families(depth, *costs, w) for w in weights]
    found: dict[str, Taken] = {}
    chosen: dict[str, list[str]] = {}
    for name in made[0]:
      best = [
        choose(cell, m[name], fixed, mine != f, *costs)
        for f, m in enumerate(made)
      ]
      each = [cell.take(one, fixed) for one in best]
      found[name] = Taken(
        *(np.choose(mine, columns) for columns in zip(*each, strict=True))
      )
      chosen[name] = [one.name for one in best]
    every = np.ones_like(mine, bool)
    one = choose(cell, made[0][CONSTANT], fixed, every, *costs)
    found[HINDSIGHT], chosen[HINDSIGHT] = cell.take(one, fixed), [one.name]
    found[ORACLE], chosen[ORACLE] = oracle(cell.places, *costs), ['']
    for name, taken in found.items():
      yield {
        'domain': place[0],
        'temperature': place[1],
        'policy': name,
        'shapes': 'fixed' if fixed else 'ragged',
        'c': c,
        'chosen': '; '.join(dict.fromkeys(chosen[name])),
        **numbers(taken, found[CONSTANT], found[ORACLE], *costs),
      }


def check(x: DraftLengths) -> Plan:
  """Returns the plan, of one chain whose whole draft is read.

  Raises:
    UserError: names the field and the remedy.
  """
  need(
    x.costs and min(*x.costs, x.scoring) >= 0 < min(x.costs) + x.scoring,
    'costs and scoring must not be negative, nor both 0, and costs not empty, '
    f'got {x.costs} and {x.scoring}',
  )
  need(x.folds > 1, 'folds is 1, so nothing is left to choose on: give 2')
  x.candidates = {
    name: dataclasses.replace(
      one, options=one.options | {'policy': 'confidence:0'}
    )
    for name, one in x.known.items()
  }
  x.draft = dataclasses.replace(x.draft, path='', load='')
  planned = whole_steps(study.plan_one(x, 'verifiers'))
  need(
    planned.rules == ('specjax.verify.token',),
    f'verifiers must be token, got {", ".join(planned.rules)}',
  )
  need(
    len(planned.drafters) == 1 and len(x.gammas) <= 1,
    'drafters must be a single one with one gamma here, got '
    f'{", ".join(planned.drafters)} with gammas {x.gammas}',
  )
  return planned


def run(x: DraftLengths) -> None:
  """Looks at the places that are missing, and makes the rows."""
  runner = Runner(check(x), refuse_features)
  for domain, texts in runner.prompts.items():
    need(
      len(texts) > 1,
      f'prompts.count: {domain} has one prompt, so nothing is left to choose '
      'on: give 2',
    )
  built, folder = runner.built, runner.folder
  (method,), file = built.methods, folder.path / 'places.npz'
  kept = read_arrays('results', file) if file.exists() else {}
  cells = {}
  where = [*itertools.product(runner.prompts, runner.plan.temperatures)]
  for place in progress.over('drafting at every place', where):
    # Places of other prompts of the same name are not those of this run.
    asked = prompts.digest(built.prompts[place[0]].said)
    names = [
      f'{place[0]}, {place[1]:g}, {asked}, {name}' for name in Places._fields
    ]
    if names[0] not in kept:
      some = [look(method.way, job) for job in runner.units(*place)]
      joined = (np.concatenate(y) for y in zip(*some, strict=True))
      kept |= dict(zip(names, joined, strict=True))
      write_arrays('results', file, kept)
    cells[place] = Cell(Places(*(kept[name] for name in names)), {})
  common = {
    'program': 'draft_lengths',
    'config': x.name,
    **built.models(method),
    'drafter': method.drafter,
    'gamma': method.gamma,
    'batch': x.batch,
    'seed': x.seed,
    'scoring': x.scoring,
    'folds': x.folds,
    'new_tokens': runner.plan.max_new_tokens,
    **results.conditions(),
  }
  folder.clear()
  for made in compare(x, cells):
    said = built.prompts[made['domain']].said
    facts = {'prompts': len(said), 'prompts_hash': prompts.digest(said)}
    folder.add(results.plain(common | facts | made))
  study.publish(folder)


# The rows as tables.


fields = study.alike(
  text='drafter domain policy shapes chosen verdict',
  count='gamma prompts new_tokens folds',
  number='temperature c scoring tau drafted speedup gain',
  maybe='share',
  ends='tau_ci? drafted_ci? speedup_ci? gain_ci?',
)


def headline(rows: list[dict]) -> str:
  """Where and how, and how often a policy beats the constant length."""
  told = []
  for (shapes,), mine in group(rows, 'shapes').items():
    some = [r['verdict'] for r in mine if r['policy'] not in _BOUNDS]
    often = ', '.join(f'{n} {some.count(n)}' for n in _VERDICTS)
    told.append(f'{often} with {shapes} shapes')
  return study.headline(
    'A policy beats the best constant length in domains, temperatures and '
    f'costs: {"; ".join(told)}',
    rows,
    f'{values(rows, "drafter")} of {values(rows, "gamma")} tokens at most',
    f'{values(rows, "prompts")} prompts of each domain',
    f'{values(rows, "new_tokens")} new tokens',
    f'scoring one more costs {values(rows, "scoring")} plain steps',
  )


_BOUNDS = CONSTANT, HINDSIGHT, ORACLE
_VERDICTS = 'holds', 'fails', 'undecided'


def _pooled(rows: list[dict], base: list[dict]) -> str:
  """Shows the gain over a constant length, of the prompts of all rows."""

  def joined(some):
    return Taken(
      *(
        np.concatenate([np.asarray(r[f'unit_{n}']) for r in some])
        for n in Taken._fields
      )
    )

  costs = ([r[n] for r in base[:1]] for n in ('c', 'scoring'))
  gain = gain_over(joined(rows), joined(base), *map(np.array, costs))
  return with_interval(gain.value, gain.interval)


def together(rows: list[dict], domain: str = 'all domains') -> Table:
  """Shows every policy at each cost and temperature."""
  places = group(rows, 'c', 'temperature')
  head = ['policy', *(f'c {c:g}, T {t:g}' for c, t in places)]
  lines = []
  for name in dict.fromkeys(
    r['policy'] for r in rows if r['policy'] != CONSTANT
  ):
    line = [name]
    for mine in places.values():
      base = pick(mine, policy=CONSTANT)
      line.append(_pooled(pick(mine, policy=name), base) if base else '-')
    lines.append(line)
  title = f'Gain over the best constant length, {values(rows, "shapes")} shapes'
  return Table(f'{title}, {domain}', '', head, lines)


_COLUMNS = study.columns(
  ('policy', 'policy', ''),
  ('chosen', 'chosen', ''),
  ('tokens a step', 'tau'),
  ('drafted', 'drafted'),
  ('speed-up', 'speedup'),
  ('gain', 'gain', '.3f'),
  ("oracle's gain", 'share', '.0%'),
  ('beats the constant one', 'verdict', ''),
)


def summary(rows: list[dict]) -> str:
  """The headline, gains at every cost, and each place at the largest one."""
  tables = [together(mine) for mine in group(rows, 'shapes').values()]
  several = group(rows, 'domain', 'shapes')
  if len(group(rows, 'domain')) > 1:
    tables += [together(mine, domain) for (domain, _), mine in several.items()]
  most = pick(rows, c=max(row['c'] for row in rows))
  places = group(most, 'domain', 'temperature', 'c', 'shapes')
  for place, mine in places.items():
    title = '{}, temperature {:g}, c {:g}, {} shapes'.format(*place)
    tables.append(Table.of(title, '', _COLUMNS, mine))
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, get_config)
