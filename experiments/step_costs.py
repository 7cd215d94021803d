"""What does a step cost, by draft length, batch, context and vocabulary?

  python -m experiments.step_costs
  python -m experiments.step_costs :limit

Models have random weights of any shape; nothing here looks at a text. Behind
the colon stands a part:

  all             a Llama of 4 layers x 1024, float32, with a draft of one layer
                  x 256: one size after another, simulated drafts, sampling and
                  verification, ways to attend. Seven minutes on two idle cores.
                  On a CPU expect exponents near 0.2 for context and vocabulary,
                  0.25 to 0.45 for gamma + 1, and a batch that costs little up
                  to 4 rows and then linearly
  limit           plain steps of the embedded target, and of a Llama of 12
                  layers x 768, against the limit of the memory. Two minutes
  layouts         passes of the embedded target's sizes over 1 to 12 tokens,
                  with whole weights and by the kernel. Two minutes; expect the
                  kernel to be fastest
  quantized       steps of the embedded pair in float32 and with weights in
                  eight and four bits, activations rounded or not. A minute
  own_vocabulary  draft steps in tokens of the draft's own beside those in the
                  target's (`experiments.other_vocabularies`)
  decoding        Llama 3 8B in bfloat16 with a draft of the sizes of Llama 3.2
  scoring         1B, for a GPU or TPU of 80 GB, in three runs: steps over the
  attention       limit and simulated acceptance; scoring by drafted tokens and
                  rows, sampling and verification; ways to attend, and steps by
                  context

A sweep is a function of a `Bench` that returns rows. Within a sweep everything
is measured in turns; its rows are kept when it is done, so that a run that was
cut off goes on with the next one. Nothing is compiled or transferred while time
is taken. The last line is one JSON document: the folder, the rows, the
exponents of the sweeps that have one, and the ratios to the limit.
"""

import copy
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from experiments.step_timing import (
  POSITIONS,
  Bench,
  Loop,
  RandomModels,
  Reader,
  Timed,
  for_kernel,
  milliseconds,
  random_weights,
  seconds,
  take_turns,
)
from specjax import checkpoints, pair, sampling, trees, verify
from specjax.bench import load, results, study
from specjax.bench.config import Size, TargetSize
from specjax.bench.memory import bytes_per_token
from specjax.cli import command
from specjax.cli.fields import Count
from specjax.cli.names import Names, resolve_function
from specjax.drafters import plain
from specjax.errors import need
from specjax.loop import generate
from specjax.loop.scoring import decide, emitted
from specjax.models import cache as caches
from specjax.models import cache_attention, layouts, linear, low_bits
from specjax.models.transformer import Model
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, counted, with_interval
from specjax.stats import theory
from specjax.stats.row import group, pick
from specjax.training.train_pair import model_of
from specjax.types import Context, Draft, Params, Spec

_SWEEPS = Names('experiments.step_costs.{}', 'batch')


@dataclasses.dataclass
class StepCosts(RandomModels):
  """Sizes of random models, and what is measured on them.

  Attributes:
    sweeps: functions of `experiments.step_costs`, or others by full names.
    path: a checkpoint; `limit` measures its plain step too.
    paths: checkpoints that `eight_bits` measures in floats and in eight bits.
    used: tokens in use, where they are not swept.
    gammas: draft lengths swept.
    vocabularies: entries of the logits swept.
    maxima: cache slots that are compared at the same tokens in use.
    accelerator: whether a CPU is refused.
  """

  sweeps: tuple[str, ...] = ()
  path: str = ''
  paths: tuple[str, ...] = ()
  used: Count = 300
  gammas: tuple[Count, ...] = (1, 2, 4, 8, 16)
  vocabularies: tuple[Count, ...] = (2048, 8192, 32768, 131072)
  maxima: tuple[Count, ...] = (512, 8192)
  accelerator: bool = False
  SWEPT = 'gammas', 'batches', 'contexts', 'vocabularies', 'maxima'

  @property
  def timed(self) -> bool:
    """True where the kernel gets all cores; layouts leave XLA its threads."""
    return not any(name.endswith('layout') for name in self.sweeps)

  def shrink(self) -> None:
    """Leaves the quick version: toy sizes."""
    super().shrink()
    self.path, self.paths, self.accelerator = '', self.paths[:1], False
    self.used, self.gammas, self.contexts = 20, (1, 2), (20, 40)
    self.vocabularies, self.maxima = (256, 512), (128, 256)
    self.rates = (0.5, 0.9)

  def check(self) -> dict[str, Callable[[Bench], list[dict]]]:
    """Checks the values and returns the sweeps by their full names.

    Raises:
      UserError: names the field, the value and the remedy.
    """
    need(
      jax.default_backend() != 'cpu' or not self.accelerator,
      'accelerator: jax sees no GPU or TPU, only a CPU; install the extra gpu '
      'or tpu, or see that it runs with --config.quick',
    )
    self.check_values()
    for name in self.SWEPT:
      sizes = getattr(self, name)
      need(len(sizes) > 1, f'{name} must have two different sizes, got {sizes}')
    need(
      min(self.maxima) > self.used,
      f'maxima must be above the {self.used} tokens in use, got {self.maxima}',
    )
    need(self.sweeps, f'sweeps is empty: name one, such as {_SWEEPS.example}')
    self.sweeps = tuple(map(_SWEEPS.full, self.sweeps))
    need(
      self.paths or _SWEEPS.full('eight_bits') not in self.sweeps,
      'paths is empty: name checkpoints to quantise',
    )
    if self.path:
      load.describe('path', self.path)
    for path in self.paths:
      load.describe('paths', path)
    return {
      name: resolve_function('sweeps', name, _SWEEPS) for name in self.sweeps
    }


_ALL = (
  'gamma', 'batch', 'context', 'vocabulary', 'simulated', 'judge', 'attention',
)  # fmt: skip
_LARGE = {
  'decoding': ('limit', 'gamma', 'simulated'),
  'scoring': ('scoring', 'judge'),
  'attention': ('attention', 'context'),
}
_ACCELERATOR = {
  'target': TargetSize(4096, 32, 32, 8, 128, 14_336, vocab_size=128_256),
  'draft': Size(2048, 16, 32, 8, 64, 8192),
  'dtype': 'bfloat16',
  'contexts': (512, 2048, 8192, 32_000),
  'maxima': (8192, 32_768),
  'vocabularies': (32_000, 128_256),
  'rates': (0.6, 0.8, 0.9),
  'megabytes': 2048,
  'steps': 32,
  'accelerator': True,
}
_EMBEDDED = {
  'target': TargetSize(512, 3, 8, 4, 64, 1536, vocab_size=2048),
  'draft': Size(128, 1, 4, 2, 32, 384),
}
_PAIR = ('draft-64', 'draft-128', 'draft-256', 'target')


def get_config(part: str = 'all') -> StepCosts:
  """Returns the config of a part; see the docstring of this file."""
  parts: dict[str, dict[str, Any]] = {
    'all': {'sweeps': _ALL, 'steps': 6, 'repeats': 5},
    'own_vocabulary': {
      'sweeps': ('experiments.other_vocabularies.draft_step',),
      'vocabularies': (2048, 32_000, 128_000),
      'batches': (1, 4),
      'used': 900,
      'maxima': (1024, 8192),
      'repeats': 31,
    },
    'limit': {
      'target': TargetSize(768, 12, 12, 12, 64, 2048),
      'draft': Size(256, 1, 4, 4, 64, 768),
      'sweeps': ('limit',),
      'path': pair.path('target'),
      'steps': 40,
    },
    'layouts': _EMBEDDED | {'sweeps': ('layout',)},
    'quantized': {
      **_EMBEDDED,
      'sweeps': ('eight_bits',),
      'paths': tuple(map(pair.path, _PAIR)),
      'steps': 100,
      'repeats': 15,
    },
    **{
      name: _ACCELERATOR | {'name': f'accelerator_{name}', 'sweeps': sweeps}
      for name, sweeps in _LARGE.items()
    },
  }
  need(part in parts, f'the parts are {", ".join(parts)}, got {part!r}')
  if part == 'scoring':
    parts[part]['gammas'] = 1, 4, 8, 16, 31
  random = {
    'name': 'step_costs' if part == 'all' else part,
    'target': TargetSize(1024, 4, 16, 8, 64, 2816, vocab_size=16_384),
    'draft': Size(256, 1, 4, 2, 64, 768),
  }
  return StepCosts(**copy.deepcopy(random | parts[part]))


def run(x: StepCosts) -> None:
  """Measures what is missing, sweep by sweep."""
  sweeps, folder = x.check(), results.folder_of(x)
  facts = x.facts('step_costs', 'used')
  bench = Bench(x)
  for name, sweep in sweeps.items():
    if not folder.has(by=name):
      for row in sweep(bench):
        folder.add(row | {'by': name} | facts)
      jax.clear_caches()
  study.publish(folder)


def fit(sizes: Sequence[float], costs: Sequence[float]) -> dict:
  """Returns the exponent b of cost = a size^b, by least squares on logarithms.

  Args:
    sizes: at least two different ones.
    costs: of each.

  Returns:
    `exponent` and its 95% interval, None where there are only two points.
  """
  line = scipy.stats.linregress(np.log(sizes), np.log(costs))
  interval = None
  if len(sizes) > 2:
    half = scipy.stats.t.ppf(0.975, len(sizes) - 2) * line.stderr
    interval = [float(line.slope - half), float(line.slope + half)]
  return {'exponent': float(line.slope), 'exponent_ci': interval}


def _room(x: StepCosts, longest: int) -> int:
  """Returns slots for drafts of this length and all shorter ones."""
  return caches.round_slots(x.used + (x.steps + 1) * (longest + 1))


def _steps(
  bench: Bench, points: Sequence[dict], drafts: bool = True
) -> list[dict]:
  """Times plain steps and steps of a draft; what these cost are v and c.

  Args:
    bench: the models.
    points: options of `Bench.loop`. The draft length, that of the settings by
      default, and the rule are not those of plain steps.
    drafts: whether the draft model drafts; else steps end with their scoring.

  Returns:
    A row for each point, without its options.
  """

  def options(point, *without) -> tuple:
    every = {'gamma': bench.x.gamma} | point
    return tuple((k, v) for k, v in every.items() if k not in without)

  loops: dict[Any, Loop] = {}
  for i, point in enumerate(points):
    for same in (options(point, 'gamma', 'rule'), options(point, 'rule')):
      if same not in loops:
        loops[same] = bench.loop(**dict(same))
    if drafts:
      loops[i] = bench.loop(drafts=True, **dict(options(point)))
  timings = bench.time(loops)
  rows = []
  for i, point in enumerate(points):
    plain = seconds(timings[options(point, 'gamma', 'rule')])
    scored = runs = timings[options(point, 'rule')]
    row = {
      'scoring_ms': 1e3 * seconds(scored),
      'plain_ms': 1e3 * plain,
      'v': seconds(scored) / plain,
    }
    if drafts:
      runs, gamma = timings[i], dict(options(point))['gamma']
      row['c'] = (seconds(runs) - seconds(scored)) / plain / gamma
      row['tau'] = float(np.mean([run.tokens for run in runs]))
    rows.append(milliseconds(runs) | row)
  return rows


def _sweep(bench: Bench, name: str, option: str, sizes) -> list[dict]:
  """Plain and full steps of every size of an option of `Bench.loop`."""
  slots = {'slots': _room(bench.x, max(sizes))} if option == 'gamma' else {}
  rows = _steps(bench, [{option: size} | slots for size in sizes])
  of = 'scoring_ms' if option == 'gamma' else 'plain_ms'
  grown = [size + (option == 'gamma') for size in sizes]
  fitted = fit(grown, [row[of] for row in rows]) | {'exponent_of': of}
  return [
    {'sweep': name, 'size': size} | row | fitted
    for size, row in zip(sizes, rows, strict=True)
  ]


def gamma(bench: Bench) -> list[dict]:
  """Drafted tokens."""
  return _sweep(bench, 'gamma', 'gamma', bench.x.gammas)


def batch(bench: Bench) -> list[dict]:
  """Rows of a batch."""
  return _sweep(bench, 'batch', 'batch', bench.x.batches)


def context(bench: Bench) -> list[dict]:
  """Tokens in use."""
  return _sweep(bench, 'context', 'used', bench.x.contexts)


def vocabulary(bench: Bench) -> list[dict]:
  """Entries of the logits; target and draft have a head of this size."""
  return _sweep(bench, 'vocabulary', 'vocab', bench.x.vocabularies)


def scoring(bench: Bench) -> list[dict]:
  """The target's part v of a step, by drafted tokens and rows of a batch."""
  x, slots = bench.x, _room(bench.x, max(bench.x.gammas))
  places = list(itertools.product(x.batches, x.gammas))
  points = [{'batch': b, 'gamma': g, 'slots': slots} for b, g in places]
  return [
    {'sweep': 'scoring', 'batch': rows, 'size': g} | row
    for (rows, g), row in zip(
      places, _steps(bench, points, drafts=False), strict=True
    )
  ]


def simulated(bench: Bench) -> list[dict]:
  """Speed-up at an acceptance that no draft here has, against predicted.

  Every drafted token is accepted at a given rate, whatever it is. Predicted
  is tau / (v + gamma c) with tau = (1 - rate^(gamma + 1)) / (1 - rate)
  (Leviathan et al., arXiv:2211.17192, Theorem 3.8, there with v = 1).
  """
  x = bench.x
  gammas = [g for g in x.gammas if 1 < g <= 8]
  places = list(itertools.product(x.rates, gammas))
  points = [
    {'gamma': g, 'slots': _room(x, max(gammas)), 'rule': verify.simulated(rate)}
    for rate, g in places
  ]
  return [
    {'sweep': 'simulated', 'size': rate, 'gamma': g}
    | row
    | {
      'tau_expected': float(theory.tokens_per_call(rate, g)),
      'speedup': row['tau'] * row['plain_ms'] / row['step_ms'],
      'predicted_speedup': float(theory.speedup(rate, g, row['c'], row['v'])),
    }
    for (rate, g), row in zip(places, _steps(bench, points), strict=True)
  ]


def attention(bench: Bench) -> list[dict]:
  """Ways to attend over the cache, plain and with a draft.

  On a GPU in half precision `fused` runs by cuDNN as well.
  """
  x = bench.x
  ways = {
    'of the layout': None,
    'blocked': cache_attention.blocked,
    'blocked, one size': cache_attention.walk(512, 512),
    'padded': cache_attention.padded,
    'fused': cache_attention.fused(),
  }
  if jax.default_backend() == 'gpu' and x.dtype in ('bfloat16', 'float16'):
    ways['fused, cudnn'] = cache_attention.fused('cudnn')
  loops = {
    (name, slots, g): bench.loop(g, slots=slots, over_cache=way)
    for slots in x.maxima
    for name, way in ways.items()
    for g in (0, x.gamma)
  }
  timings = bench.time(loops)
  return [
    {
      'sweep': 'attention',
      'way': name,
      'size': slots,
      'gamma': g,
      **milliseconds(timings[name, slots, g]),
    }
    for name, slots, g in loops
  ]


def _plain_steps(x: StepCosts, model: Model, params: Any, slots: int) -> Loop:
  """Plain decoding with weights that are no part of a bench."""
  spec = Spec(model, plain.make(), verify.token)
  weights = Params(params, None)
  return Loop(spec, weights, used=x.used, slots=slots, steps=x.steps)


def limit(bench: Bench) -> list[dict]:
  """A plain step at each maximum over the time to read its bytes.

  The bytes are those of the weights and of the cache in use, and the bandwidth
  is that of the fastest of some readers in the same minutes (medians of turns,
  see `Reader`). A small model's weights may stay in a processor's caches, and
  its limit is then below that of the memory.
  """
  x = bench.x
  model, params, _ = bench.models(x.target.vocab_size)
  targets = {'random': (model, params.target)}
  if x.path:
    made = checkpoints.load(x.path, x.dtype)
    targets['checkpoint'] = for_kernel(*made) if model.config.native else made
  loops = {
    (name, slots): _plain_steps(x, *made, slots)
    for name, made in targets.items()
    for slots in map(caches.round_slots, x.maxima)
  }
  reader = Reader(x.megabytes << 20, jnp.dtype(x.dtype))
  ways: dict[Any, Any] = {key: loop.run for key, loop in loops.items()}
  turns = take_turns(ways | {'read': reader.read}, x.repeats)
  bandwidth = np.median(turns['read'], 0).max()
  rows = []
  for name, slots in loops:
    model, params = targets[name]
    weights, kv = bytes_per_token(model, params, x.used)
    step = seconds(turns[name, slots])
    rows.append(
      {
        'sweep': 'limit',
        'model': name,
        'parameters': sum(p.size for p in jax.tree.leaves(params)),
        'size': slots,
        **milliseconds(turns[name, slots]),
        'weight_bytes': weights,
        'cache_bytes_in_use': kv,
        'bandwidth_gb_per_second': bandwidth / 1e9,
        'limit_ratio': step * bandwidth / (weights + kv),
      }
    )
  return rows


def layout(bench: Bench) -> list[dict]:
  """Passes over 1 to 12 tokens; v is over the fastest one of a single token.

  It decides whether speculation can pay on a CPU: how much more a pass over
  gamma + 1 tokens takes than the fastest pass over one.
  """
  x = bench.x
  model = model_of(x.target, x.target.vocab_size, POSITIONS)
  forms = layouts.arrange(model, random_weights(model, x.seed, x.dtype))
  buffer = layouts.Buffer(1, caches.round_slots(x.used + 12), x.used)
  runs: dict[tuple, list[Timed]] = {}
  for count in (1, 2, 4, 5, 8, 9, 12):
    clocks = {
      name: layouts.clock(form, buffer, count) for name, form in forms.items()
    }
    # A turn takes a tenth of a second or more.
    passes = max(1, int(0.1 / min(clock(1) for clock in clocks.values())))
    ways = {n: functools.partial(clock, passes) for n, clock in clocks.items()}
    for name, times in take_turns(ways, x.repeats).items():
      runs[name, count] = [Timed(each, count) for each in times]
  fastest = min(seconds(one) for (_, count), one in runs.items() if count == 1)
  return [
    {
      'sweep': 'layouts',
      'way': name,
      'size': count,
      **milliseconds(one),
      'v': seconds(one) / fastest,
    }
    for (name, count), one in runs.items()
  ]


def eight_bits(bench: Bench) -> list[dict]:
  """Every checkpoint in floats and with weights in eight bits, batch 1.

  A step is one of plain decoding: the token is fed, the head read, the next one
  judged. With a draft's weights it is what drafting a token costs. `held_mb` is
  what the compiled loop holds beside its state: weights, and floats made of
  them if there are any.
  """
  x = bench.x
  loops: dict[tuple[str, str], Loop] = {}
  for path in x.paths:
    name = os.path.basename(path.rstrip('/'))
    made = for_kernel(*checkpoints.load(path, jnp.dtype(x.dtype)))
    model, params = made
    tied = model.config.tied_embeddings
    ways = {x.dtype: made}
    for bits, rounds in itertools.product(low_bits.BITS, (False, True)):
      way = f'int{bits}, rounded activations' if rounds else f'int{bits}'
      ways[way] = model, linear.quantize(params, tied, bits, rounds)
    slots = caches.round_slots(x.used + x.steps + 2)
    for way, held in ways.items():
      loops[name, way] = _plain_steps(x, *held, slots)
  timings = bench.time(loops)
  rows = []
  for (name, way), loop in loops.items():
    leaves = jax.tree.leaves(loop.params.target)
    weights = sum(leaf.nbytes for leaf in leaves)
    program = generate.loop.lower(
      loop.params, loop.state, loop.count, spec=loop.spec
    ).compile()
    beside = program.memory_analysis().temp_size_in_bytes
    ratio = seconds(timings[name, way]) / seconds(timings[name, x.dtype])
    rows.append(
      {
        'sweep': 'eight bits',
        'model': name,
        'way': way,
        'weights_mb': weights / 1e6,
        'held_mb': (weights + beside) / 1e6,
        **milliseconds(timings[name, way]),
        'ratio': ratio,
      }
    )
  return rows


# A constraint with so many states and classes of tokens.
_STATES, _CLASSES = 1000, 1000
_PENALTIES = {
  'repetition_penalty': 1.1,
  'presence_penalty': 0.5,
  'frequency_penalty': 0.5,
}
# What may be in the pipeline, by name.
STAGES: dict[str, dict] = {
  'greedy': {'temperature': 0.0},
  'temperature': {'temperature': 1.0},
  'top-k 50': {'top_k': 50},
  'top-p 0.9': {'top_p': 0.9},
  'min-p 0.05': {'min_p': 0.05},
  'penalties': _PENALTIES,
  'constraint, 1,000 states': {'eos': (0,)},
  'all': {'temperature': 0.8, 'top_k': 50, 'top_p': 0.9, 'min_p': 0.05}
  | _PENALTIES,
}


def _language(vocab: int, random: np.random.Generator) -> sampling.Automaton:
  """A random automaton, in which a quarter of all tokens may come."""
  classes = random.integers(0, min(vocab, _CLASSES), vocab, np.int16)
  size = _STATES, int(classes.max()) + 1
  moves = random.integers(0, _STATES, size, np.int16)
  moves = np.where(random.random(size) < 0.25, moves, np.int16(-1))
  moves[:, classes[0]] = np.arange(_STATES)
  return sampling.Automaton('a random one', classes, moves, (0,), '')


def _judging(stages: dict, gamma: int, vocab: int, seed: int):
  """Returns a clock of judging a drawn chain; it is compiled."""
  random = np.random.default_rng(seed)
  if 'eos' in stages:
    stages = stages | {'constraint': _language(vocab, random)}
  values = sampling.make(1, vocab_size=vocab, **stages)
  text = jnp.asarray(random.integers(0, vocab, (1, 128)), jnp.int32)
  history = sampling.history(values, text, jnp.full(1, 128), vocab)
  logits = 2 * jax.random.normal(jax.random.key(seed), (1, gamma + 1, vocab))
  tokens = jnp.asarray(random.integers(0, vocab, (1, gamma)), jnp.int32)
  draft = Draft(
    tokens,
    trees.chain(1, gamma),
    jnp.full(1, gamma, jnp.int32),
    jax.nn.softmax(logits[:, 1:]) if gamma else None,
  )

  @jax.jit
  def judge(key, logits, ctx, draft):
    scores, verdict = decide(
      key, logits, ctx, draft, rule=verify.token, depth=gamma
    )
    new, count = emitted(draft, verdict), verdict.num_accepted + 1
    history = sampling.remember(ctx.history, ctx.sampling, new, count)
    return verdict, jax.vmap(verify.overlap)(draft, scores), history

  ctx = Context(text, jnp.full(1, 128), (), values, history)
  arguments = generate.row_keys(seed, range(1)), logits, ctx, draft
  jax.block_until_ready(judge(*arguments))

  def run() -> Timed:
    begin = time.perf_counter()
    jax.block_until_ready(judge(*arguments))
    return Timed(time.perf_counter() - begin, 0)

  return run


def judge(bench: Bench) -> list[dict]:
  """Stages of the pipeline, at every vocabulary, plain and with a draft.

  The step is a greedy one; its judge phase is compiled alone: the pipeline for
  gamma + 1 rows, the rule, the overlap of p and q, and counting the new token.
  """
  x = bench.x
  rows = []
  for vocab in x.vocabularies:
    gammas = (0, x.gamma)
    ways = {g: bench.loop(g, vocab=vocab).run for g in gammas}
    for name, stages in STAGES.items():
      for g in gammas:
        ways[name, g] = _judging(stages, g, vocab, x.seed)
    turns = take_turns(ways, x.repeats)
    rows += [
      {
        'sweep': 'judge',
        'size': vocab,
        'stages': name,
        'gamma': g,
        **milliseconds(turns[g]),
        'judge_ms': 1e3 * seconds(turns[name, g]),
        'share': seconds(turns[name, g]) / seconds(turns[g]),
      }
      for name in STAGES
      for g in gammas
    ]
  return rows


# Fields that a table of a sweep leaves out: where and how rows were measured,
# and what the note says.
_HIDDEN = {
  *('schema', 'program', 'by', 'config', 'target', 'draft', 'dtype', 'used'),
  *('repeats', 'steps', 'load_before', 'versions', 'device', 'xla_threads'),
  *('commit', 'sweep', 'exponent_of', 'weight_bytes', 'cache_bytes_in_use'),
  *('step_ms_quartiles', 'exponent', 'exponent_ci'),
}


def _growth(row: dict) -> str:
  """Says with which power of a size a step grows; '' where none was fitted."""
  if row.get('exponent') is None:
    return ''
  power = with_interval(row['exponent'], row['exponent_ci'])
  size = 'size + 1' if row['sweep'] == 'gamma' else 'size'
  return f'{row["exponent_of"]} grows with the power {power} of {size}.'


def _fastest(rows: list[dict], machines: dict[str, list[dict]]) -> Table:
  """Shows in which layout a pass over some tokens is the fastest."""
  sizes = sorted({row['size'] for row in rows})
  lines = []
  for device, here in machines.items():
    best = [min(pick(here, size=n), key=lambda r: r['v']) for n in sizes]
    lines.append([device, *(f'{r["v"]:.2f} ({r["way"]})' for r in best)])
  return Table(
    'Fastest layout by tokens',
    'A pass in the fastest layout over the fastest one of a single token.',
    ['on', *(f'{n:g}' for n in sizes)],
    lines,
  )


def fields(row: dict) -> dict[str, Any]:
  numbers = {
    'limit': 'limit_ratio bandwidth_gb_per_second parameters',
    'layouts': 'v size',
  }
  read = numbers.get(str(row.get('sweep')), '')
  types = study.fields(
    text='sweep model? way? stages? exponent_of?',
    number=f'step_ms {read}',
    maybe='size? gamma? exponent?',
    ends='exponent_ci?',
  )
  if 'exponent' in row:
    types |= study.fields(text='exponent_of', number='size', ends='exponent_ci')
  return types


def _shape(rows: list[dict]) -> str:
  """Returns the size of the random model, where one is measured."""
  own = all(row['sweep'] == 'own vocabulary' for row in rows)
  size = rows[0].get('draft' if own else 'target')
  random = any(row.get('model', 'random') == 'random' for row in rows)
  if not (random and isinstance(size, dict)):
    return ''
  layers = counted(size['num_layers'], 'layer')
  shape = f'random weights, {layers} x {size["width"]}'
  return shape if own else f'{shape} for {size["vocab_size"]:,} tokens'


def headline(rows: list[dict]) -> str:
  """Says where steps were measured."""
  used = values(rows, 'used')
  facts = [values(rows, 'dtype'), _shape(rows)]
  facts.append(f'{used} tokens in use' if used else '')
  return study.headline('Medians of steps', rows, *facts)


def _show(value: Any) -> str:
  if isinstance(value, float):
    return f'{value:.3g}' if value < 100 else f'{value:.0f}'
  return str(value)


def summary(rows: list[dict]) -> str:
  """The headline, and a table for each sweep on each machine."""
  known = group([{'device': ''} | row for row in rows], 'device')
  machines = {device: here for (device,), here in known.items()}
  tables = []
  if passes := pick(rows, sweep='layouts'):
    tables.append(_fastest(passes, machines))
  for device, here in machines.items():
    for (name,), mine in group(here, 'sweep').items():
      head = [key for key in mine[0] if key not in _HIDDEN]
      lines = [[_show(row.get(key, '-')) for key in head] for row in mine]
      title = f'{name}, {device}' if len(machines) > 1 else name
      tables.append(Table(title, _growth(mine[0]), head, lines))
  return blocks(headline(rows), *(one.markdown() for one in tables))


if __name__ == '__main__':
  command.study(run, get_config)
