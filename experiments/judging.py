"""What sampling and verification cost, beside the step that they are part of.

The step is a greedy one; the judge phase is compiled alone: the pipeline for
gamma + 1 rows, the rule, the overlap of p and q, and counting the new token.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.stepping import Timed, milliseconds, take_turns
from experiments.sweeps import Bench, seconds
from specjax import sampling, trees, verify
from specjax.loop import generate
from specjax.types import Draft

# A constraint with so many states and classes of tokens.
_STATES, _CLASSES = 1000, 1000
_CONSTRAINT = 'constraint, 1,000 states'
# What may be in the pipeline, by name.
STAGES: dict[str, dict] = {
  'greedy': {'temperature': 0.0},
  'temperature': {'temperature': 1.0},
  'top-k 50': {'top_k': 50},
  'top-p 0.9': {'top_p': 0.9},
  'min-p 0.05': {'min_p': 0.05},
  'penalties': {
    'repetition_penalty': 1.1,
    'presence_penalty': 0.5,
    'frequency_penalty': 0.5,
  },
  _CONSTRAINT: {'eos': (0,)},
  'all': {
    'temperature': 0.8,
    'top_k': 50,
    'top_p': 0.9,
    'min_p': 0.05,
    'repetition_penalty': 1.1,
    'presence_penalty': 0.5,
    'frequency_penalty': 0.5,
  },
}


def _language(vocab: int, random: np.random.Generator) -> sampling.Automaton:
  """A random automaton, in which a quarter of all tokens may come."""
  classes = random.integers(0, min(vocab, _CLASSES), vocab, np.int16)
  size = _STATES, int(classes.max()) + 1
  moves = random.integers(0, _STATES, size, np.int16)
  moves = np.where(random.random(size) < 0.25, moves, np.int16(-1))
  moves[:, classes[0]] = np.arange(_STATES)
  return sampling.Automaton('a random one', classes, moves, (0,), '')


def _program(stages: dict, gamma: int, vocab: int, seed: int):
  """Judges a drawn chain; compiled."""
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
  def judge(key, logits, draft, values, history):
    tokens_above = functools.partial(trees.above, depth=gamma)
    above = jax.vmap(tokens_above)(draft.parents, draft.tokens)
    scores = sampling.distributions(logits, values, history, above)
    rule = functools.partial(verify.judge, rule=verify.token, depth=gamma)
    verdict = jax.vmap(rule)(key, draft, scores)
    count = verdict.num_accepted + 1
    emitted = jnp.broadcast_to(verdict.next_token[:, None], (1, gamma + 1))
    history = sampling.remember(history, values, emitted, count)
    return verdict, jax.vmap(verify.overlap)(draft, scores), history

  keys = generate.row_keys(seed, range(1))
  arguments = keys, logits, draft, values, history
  jax.block_until_ready(judge(*arguments))

  def run() -> Timed:
    begin = time.perf_counter()
    jax.block_until_ready(judge(*arguments))
    return Timed(time.perf_counter() - begin, 0)

  return run


def judge(bench: Bench) -> list[dict]:
  """Stages of the pipeline, at every vocabulary, plain and with a draft."""
  x = bench.x
  rows = []
  for vocab in x.vocabularies:
    gammas = (0, x.gamma)
    ways = {g: bench.loop(g, vocab=vocab).run for g in gammas}
    for name, stages in STAGES.items():
      for g in gammas:
        ways[name, g] = _program(stages, g, vocab, x.seed)
    bench.bar.set_description(f'judging {vocab} entries')
    turns = take_turns(ways, x.repeats, bench.bar)
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
