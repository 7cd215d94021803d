"""Do speculative rollouts train a policy as plain ones do, and faster?

  python -m experiments.rollouts
  python -m experiments.rollouts --parts="('gradients', 'learning')"

gradients  policy gradients of as many speculative as plain texts of a toy
           policy: tests of their equality, the smallest change that one sees
           with 90% power, and the same tests of a lossy rule, which must fail
learning   GRPO (Shao et al., 2024, arXiv:2402.03300) on the share of even
           tokens, with plain rollouts, with a draft that stays as it is and
           with one that learns from the rollouts after every update
speed      rollouts of the embedded pair at temperature 1 by rows, each way in
           its fastest layout of weights; the ways take turns

The first two take no time: the machine may do other things, five minutes on two
idle cores. The third takes ten minutes on a quiet machine. Parts that have rows
are kept. Expect the tests to agree, and the frozen draft to lose acceptance as
the policy moves.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize as solvers
from scipy import stats

import specjax
from specjax import RolloutBatch, Rollouts, pair, prompts, verify
from specjax.bench import results, study
from specjax.cli import command
from specjax.cli.fields import Count, Seed, check_fields
from specjax.drafters import lm
from specjax.drafters.heads.trainable import Trainable
from specjax.models import layouts, transformer
from specjax.prompts.config import Prompts
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, estimated
from specjax.stats import metrics
from specjax.stats.row import group, pick
from specjax.training.optimize import make_step
from specjax.training.train_heads import loss_of
from specjax.types import LoadedDrafter, Target

PLAIN, FROZEN, ONLINE = 'plain', 'frozen draft', 'online draft'
EXACT, LOSSY = 'token', 'lenience:0.5'
POWER, LEVEL = 0.9, 0.05
VOCAB, END = 12, 11
TOY_PROMPTS = [[1], [2, 3], [4, 5, 6], [7, 8, 9, 10]]
CLIP, STEPS = 0.2, 2  # of GRPO: steps with each batch of texts
RATE = 2e-3  # of Adam
LENGTH = 64  # of the prompts of `speed`


@dataclasses.dataclass
class RolloutStudy:
  """Rollouts of a toy policy, and of the embedded pair.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    parts: what is run.
    texts: plain and speculative ones of a test of `gradients`, of each.
    tests: of `gradients`, each with texts of its own.
    updates: of a policy, in `learning`.
    seeds: policies that are trained in each way.
    rows: numbers of rows, in `speed`.
    samples: of each prompt.
    new_tokens: of a text of the embedded pair, at most.
    gamma: draft length.
    repeats: passes over all texts, in `speed`.
    seed: of all draws.
    results: folder for rows and summary.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: toy sizes, to see that it runs.
  """

  name: str = 'rollouts'
  parts: tuple[Literal['gradients', 'learning', 'speed'], ...] = (
    'gradients',
    'learning',
    'speed',
  )
  texts: Count = 10_000
  tests: Count = 12
  updates: Count = 30
  seeds: Count = 8
  rows: tuple[Count, ...] = (1, 2, 4, 8, 16, 32)
  samples: Count = 8
  new_tokens: Count = 64
  gamma: Count = 3
  repeats: Count = 7
  seed: Seed = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False

  def shrink(self) -> None:
    """Leaves the quick version."""
    self.texts, self.tests, self.updates, self.seeds = 800, 2, 3, 2
    self.rows, self.samples, self.new_tokens, self.repeats = (1, 2), 2, 8, 2


@functools.cache
def toy() -> tuple[Target, LoadedDrafter, Trainable]:
  """A tiny policy, a draft of its sizes that is near it, and its training."""
  sizes = {'width': 16, 'num_layers': 1, 'num_heads': 2, 'num_kv_heads': 1}
  sizes |= {'head_dim': 8, 'mlp_width': 32, 'max_positions': 64}
  config = transformer.TransformerConfig(vocab_size=VOCAB, **sizes)
  model = transformer.build(config)
  head = lm.trainable(model, **sizes)
  params, other = (jax.jit(model.init)(jax.random.key(i)) for i in (0, 1))
  params['unembedding'] *= 2  # A policy that prefers some tokens.
  own = jax.tree.map(lambda a, b: a + 0.3 * (b - a), params, other)
  target = Target(model, params, eos=(END,))
  return target, LoadedDrafter(model, head.drafter, own), head


def toy_rollouts(
  x: RolloutStudy, draft: bool, samples: int, **more
) -> Rollouts:
  """Rollouts of the toy policy; `more` are arguments of `Rollouts`."""
  target, drafter, _ = toy()
  sizes = {'longest_prompt': 4, 'new_tokens': 12, 'rows': 64}
  options = {'gamma': x.gamma, 'samples': samples} | sizes | more
  return Rollouts(target, drafter if draft else None, **options)


def rewards(batch: RolloutBatch) -> np.ndarray:
  """The share of even tokens of each text, [P, n]."""
  new = np.arange(batch.tokens.shape[-1]) < batch.length[..., None]
  return ((batch.tokens % 2 == 0) & new).sum(-1) / batch.length


# Gradients.


@jax.jit
def _scores(params, tokens):
  return jax.nn.log_softmax(transformer.score(toy()[0].model, params, tokens))


def gradients(batch: RolloutBatch) -> np.ndarray:
  """The policy gradient [V] of each text, for a bias on every logit: [P n, V].

  It is (reward - 1/2) times the sum over new tokens of one-hot minus p.
  """
  seen = batch.windows()
  p = np.exp(_scores(toy()[0].params, seen['tokens']))
  drawn = np.eye(VOCAB)[np.roll(seen['tokens'], -1, 1)]
  score = ((drawn - p) * seen['counts'][..., None]).sum(1)
  return score * (rewards(batch).reshape(-1, 1) - 0.5)


def compare(plain: np.ndarray, other: np.ndarray) -> dict[str, Any]:
  """Tests whether two samples of gradients [n, V] have one mean (Hotelling).

  Returns:
    p_value; detectable: the change of the gradient's length, as a share of it,
    that the test sees with 90% power; length: of the other gradient along the
    plain one, over the length of that.
  """
  a, b = plain[:, :-1], other[:, :-1]  # Entries of each sum to 0.
  precision = np.linalg.inv(np.cov(a.T) / len(a) + np.cov(b.T) / len(b))
  whole, mean, apart = plain.mean(0), a.mean(0), b.mean(0) - a.mean(0)
  bound = stats.chi2.isf(LEVEL, len(apart))
  needed = solvers.brentq(
    lambda x: stats.ncx2.sf(bound, len(apart), x) - POWER, 0.1, 1e3
  )
  return {
    'p_value': float(stats.chi2.sf(apart @ precision @ apart, len(apart))),
    'detectable': float(np.sqrt(needed / (mean @ precision @ mean))),
    'length': float(other.mean(0) @ whole / (whole @ whole)),
  }


def compare_rules(x: RolloutStudy) -> Iterator[dict]:
  """Gradients of the exact rule, and of a lossy one, beside plain ones."""
  samples = -(-x.texts // len(TOY_PROMPTS))
  # It says that it is exact, or it would be refused.
  lossy = verify.lenience(0.5)._replace(lossless=True)
  plain, *others = (
    toy_rollouts(x, drafts, samples, rule=rule)
    for drafts, rule in ((False, None), (True, None), (True, lossy))
  )
  for test in range(x.tests):
    base = gradients(plain(TOY_PROMPTS, (x.seed, 3 * test)))
    for number, way in enumerate((EXACT, LOSSY)):
      batch = others[number](TOY_PROMPTS, (x.seed, 3 * test + number + 1))
      facts = {'way': way, 'test': test, 'texts': len(base), 'tau': batch.tau}
      yield facts | compare(base, gradients(batch))


# Learning.


def policy_loss(params, frozen, batch):
  """The clipped objective of GRPO, without a KL term."""
  del frozen  # Unused.
  chances = _scores(params, batch['tokens'])
  drawn = jnp.roll(batch['tokens'], -1, 1)[..., None]
  own = jnp.take_along_axis(chances, drawn, -1)[..., 0]
  ratio, gain = jnp.exp(own - batch['logprobs']), batch['advantages'][:, None]
  clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
  objective = jnp.minimum(ratio * gain, clipped * gain)
  return (-objective * batch['counts']).sum() / batch['counts'].sum()


@functools.cache
def _steps():
  """Compiled steps of a policy and of a draft, and their optimizer."""
  rule, follow = optax.adam(RATE), loss_of(toy()[2], toy()[0].model, 0)
  return make_step(policy_loss, rule), make_step(follow, rule), rule


def learn(x: RolloutStudy, way: str, rolled: Rollouts, seed: int) -> dict:
  """Trains a policy, and its draft where that learns: curves over updates."""
  step, follow, rule = _steps()
  # Copied, since a step donates what it changes.
  policy, draft = (
    (jax.tree.map(jnp.copy, one.params), rule.init(one.params))
    for one in toy()[:2]
  )
  curve: dict[str, list] = {'rewards': [], 'alphas': []}
  for update in range(x.updates):
    own = None if way == PLAIN else draft[0]
    batch = rolled(
      TOY_PROMPTS, (seed, update), target_params=policy[0], draft_params=own
    )
    reward, counts = rewards(batch), batch.counts
    curve['rewards'].append(float(reward.mean()))
    if own is not None:
      alpha = counts.overlap.sum() / counts.histogram.sum()
      curve['alphas'].append(float(alpha))
    gain = reward - reward.mean(1, keepdims=True)
    gain /= reward.std(1, keepdims=True) + 1e-6
    seen = batch.windows() | {'advantages': gain.ravel().astype(np.float32)}
    for _ in range(STEPS):
      policy, _ = step(policy, None, seen)
    if way == ONLINE:
      draft, _ = follow(draft, policy[0], seen | {'step': np.int32(update)})
  return curve


def train_policies(x: RolloutStudy) -> Iterator[dict]:
  """Curves of every way and seed; a way's programs serve all of its seeds."""
  for number, way in enumerate((PLAIN, FROZEN, ONLINE)):
    rolled = toy_rollouts(x, way != PLAIN, 16)
    for seed in range(x.seeds):
      own = x.seed + 1000 * number + seed
      yield {'way': way, 'policy': seed, **learn(x, way, rolled, own)}


# Speed.


def time_rows(x: RolloutStudy) -> Iterator[dict]:
  """Rollouts a second by rows; the ways and layouts take turns."""
  targets = {
    name: specjax.load(pair.path('target'), layout=name)
    for name in (layouts.WHOLE, layouts.NATIVE)[: 1 + layouts.has_kernel()]
  }
  drafts = {
    (name, way): lm.load(target, pair.path('draft-128')) if way else None
    for name, target in targets.items()
    for way in (False, True)
  }
  tokenizer = targets[layouts.WHOLE].tokenizer
  for rows in x.rows:
    # As many texts as keep all rows busy for most of the time.
    count = -(-4 * max(rows, 8) // x.samples)
    asked = Prompts(domains=('code',), count=count, length=LENGTH)
    found = prompts.collect(asked, tokenizer, LENGTH, x.seed)
    chosen = found['code'].texts
    sizes = {'rows': rows, 'samples': x.samples, 'gamma': x.gamma}
    sizes |= {'longest_prompt': LENGTH, 'new_tokens': x.new_tokens}
    made = {
      key: Rollouts(targets[key[0]], draft, **sizes)
      for key, draft in drafts.items()
    }
    took: dict = {key: [] for key in made}
    random = np.random.default_rng(x.seed)
    for number in range(x.repeats + 1):  # The first one compiles.
      for i in random.permutation(len(made)):
        key = [*made][i]
        begin = time.perf_counter()
        batch = made[key](chosen, (x.seed, number))
        seconds = time.perf_counter() - begin
        took[key].append((seconds, batch.length.sum(), batch.tau))
    times = {key: np.array(one[1:]).T for key, one in took.items()}
    best = [
      min((k for k in times if k[1] == way), key=lambda k: times[k][0].sum())
      for way in (False, True)
    ]
    (a, n, _), (b, m, tau) = (times[key] for key in best)
    size = len(chosen) * x.samples
    yield {
      'rows': rows,
      'texts': size,
      'layouts': [name for name, _ in best],
      'seconds': [a.tolist(), b.tolist()],
      'tokens': [n.tolist(), m.tolist()],
      'per_second': [size * x.repeats / one.sum() for one in (a, b)],
      'tau': tau.mean(),
      **metrics.fields(speedup=metrics.speedup(a, n, b, m)),
    }


PARTS = {
  'gradients': compare_rules,
  'learning': train_policies,
  'speed': time_rows,
}


def run(x: RolloutStudy) -> None:
  """Makes the rows of the parts that have none."""
  check_fields(x)
  settings = results.settings_of(x)
  del settings['parts']
  folder = results.Folder(x.results or results.default_folder(x), settings)
  common = {'program': 'rollouts', 'config': x.name, 'gamma': x.gamma}
  for part in x.parts:
    if not folder.has(part=part):
      made = [*PARTS[part](x)]
      for row in made:
        row = common | {'part': part} | row | results.conditions()
        folder.add(results.plain(row))
  study.publish(folder)


# The rows as tables.


_FIELDS: dict[str, dict[str, str]] = {
  'gradients': {
    'text': 'way',
    'count': 'texts',
    'number': 'p_value detectable length tau',
  },
  'learning': {'text': 'way', 'count': 'policy', 'numbers': 'rewards alphas'},
  'speed': {'count': 'rows texts', 'numbers': 'per_second', 'number': 'tau'},
}


def fields(row: dict) -> dict[str, Any]:
  own = study.fields(**_FIELDS.get(row.get('part', ''), {'text': 'part'}))
  return own | study.fields(text='part')


def _gradients(rows: list[dict]) -> Table:
  """All tests of each rule together."""
  lines = []
  for (way,), mine in group(rows, 'way').items():
    chances = np.array([row['p_value'] for row in mine])
    together = stats.combine_pvalues(np.maximum(chances, 1e-300)).pvalue
    length, seen, tau = (
      np.array([row[name] for row in mine])
      for name in ('length', 'detectable', 'tau')
    )
    line = [way, str(len(mine)), values(mine, 'texts')]
    p = f'{together:.2g}' if together else '< 1e-300'
    line += [str(sum(chances < LEVEL)), p, f'{seen.mean():.1%}']
    lines.append([*line, estimated(_mean(length), '.3f'), f'{tau.mean():.2f}'])
  return Table(
    'Gradients',
    'Tests of the equality of policy gradients with those of as many plain '
    'texts: how many have p below 0.05, p of all together (Fisher), the change '
    'of length that one test sees with 90% power, and the length over that of '
    'plain gradients.',
    ['rule', 'tests', 'texts', 'p < 0.05', 'p of all', 'change seen',
     'length over plain', 'tau'],
    lines,
  )  # fmt: skip


def _curve(rows: list[dict], way: str, name: str) -> np.ndarray:
  """A curve of every policy that was trained in a way, [policies, updates]."""
  return np.array([row[name] for row in pick(rows, way=way)])


def _mean(each: np.ndarray, most: float = np.inf) -> metrics.Estimate:
  return metrics.ratio(each, np.ones(len(each)), most)


def _gained(plain: np.ndarray, own: np.ndarray) -> metrics.Estimate:
  sums = (metrics.Sums(x, np.ones(len(x))) for x in (plain, own))
  return metrics.combine(lambda a, n, b, m: b / m - a / n, *sums)


def _learning(rows: list[dict]) -> Table:
  """Rewards and acceptance over updates, and how far rewards are apart."""
  plain, said, lines = _curve(rows, PLAIN, 'rewards'), [], []
  drafted = [way for way in (FROZEN, ONLINE) if pick(rows, way=way)]
  for way in drafted:
    own = _curve(rows, way, 'rewards')
    each = [_gained(*both) for both in zip(plain.T, own.T, strict=True)]
    known = [x for x in each if x.interval]
    inside = sum(x.low <= 0 <= x.high for x in known)
    apart = estimated(_gained(plain.mean(1), own.mean(1)), '+.4f')
    said.append(
      f'{way}: {apart} over all updates, and 0 is inside the interval of '
      f'{inside} of {len(known)} updates'
    )
  for update in sorted({*range(0, plain.shape[1], 10), plain.shape[1] - 1}):
    line = [str(update), estimated(_mean(plain[:, update], 1.0), '.3f')]
    for name in ('rewards', 'alphas'):
      curves = (_curve(rows, way, name)[:, update] for way in drafted)
      line += [estimated(_mean(curve, 1.0), '.3f') for curve in curves]
    lines.append(line)
  return Table(
    'Learning',
    f'Means of {len(plain)} policies. Reward beyond that of plain rollouts: '
    f'{"; ".join(said)}.',
    ['update', *(f'reward, {way}' for way in (PLAIN, *drafted)),
     *(f'alpha, {way}' for way in drafted)],
    lines,
  )  # fmt: skip


_SPEED = study.columns(
  ('rows', 'rows', ''),
  ('plain rollouts/s', lambda r: f'{r["per_second"][0]:.1f}'),
  ('speculative', lambda r: f'{r["per_second"][1]:.1f}'),
  ('x plain', 'speedup'),
  ('tau', 'tau'),
  ('layouts', lambda r: ' and '.join(r.get('layouts', ()))),
)


def headline(rows: list[dict]) -> str:
  """Where, and for how many rows speculative rollouts are faster."""
  said = 'Rollouts for reinforcement learning, speculative beside plain'
  timed = sorted(pick(rows, part='speed'), key=lambda r: r['rows'])
  known = [r for r in timed if r.get('speedup_ci')]
  if known:
    pays = [str(r['rows']) for r in known if r['speedup_ci'][0] > 1]
    tried = ', '.join(str(r['rows']) for r in known)
    said += f'. Of {tried} rows it pays with {", ".join(pays) or "none"}'
  return study.headline(said, rows, f'gamma {values(rows, "gamma")}')


def summary(rows: list[dict]) -> str:
  """The headline, and a table of each part."""
  tables = []
  if mine := pick(rows, part='gradients'):
    tables.append(_gradients(mine))
  if (mine := pick(rows, part='learning')) and pick(mine, way=PLAIN):
    tables.append(_learning(mine))
  if mine := pick(rows, part='speed'):
    note = (
      f'{values(mine, "texts")} texts. Speed-ups are of the time per token, '
      'over passes that took turns.'
    )
    tables.append(Table.of('Speed', note, _SPEED, mine))
  return blocks(headline(rows), *(table.markdown() for table in tables))


if __name__ == '__main__':
  command.study(run, RolloutStudy)
