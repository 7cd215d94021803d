"""Seeded rollouts for reinforcement learning, with their log-probabilities.

  rollouts = specjax.Rollouts(target, draft, longest_prompt=64, samples=8)
  batch = rollouts(prompts, seed=(0, update), target_params=weights)
  batch.tokens, batch.logprobs, batch.tau

The rule is exact, so texts have the distribution of the policy, which is the
target, whatever the draft has learned. Prompts go through the rows of a pool
(`specjax.requests.pool`): each is read once for all of its samples, and a row
whose text has ended gets the next one. Weights are arguments of its programs,
so that new ones compile nothing.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import arguments
from specjax.arguments import BOUND, check_number, named
from specjax.drafters import plain
from specjax.drafters.cascade.speculation import rule_for
from specjax.loop import generate
from specjax.loop.token_records import Recording
from specjax.models.prefill import read_sizes
from specjax.requests import request_sampling
from specjax.requests.pool import Pool, Request
from specjax.types import Counts, LoadedDrafter, Params, Rule, Spec, Target


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutBatch:
  """The texts of P prompts, n of each, on the host.

  Attributes:
    prompts: P lists of token ids.
    tokens: [P, n, T] new tokens, the one that ended a text included; zeros
      behind them.
    length: [P, n] how many new tokens there are.
    ended: [P, n] whether a text ended by itself; others were cut at T tokens.
    logprobs: [P, n, T] of each token in the distribution that it was drawn
      from, behind temperature, penalties and cuts: what importance ratios
      need. Zeros behind the text.
    raw_logprobs: [P, n, T] of each token in the softmax of the raw logits.
    counts: statistics of each text, [P, n, ...]; see `types.Counts`.
    width: tokens that the longest prompt and its text may have together.
  """

  prompts: list[list[int]]
  tokens: np.ndarray
  length: np.ndarray
  ended: np.ndarray
  logprobs: np.ndarray
  raw_logprobs: np.ndarray
  counts: Counts
  width: int

  @property
  def tau(self) -> float:
    """Tokens per target call, the bonus or corrected one included."""
    return float(self.counts.tokens.sum() / self.counts.target_calls.sum())

  @property
  def acceptance_rate(self) -> float:
    """Accepted over drafted tokens; NaN where none were drafted."""
    drafted = int(self.counts.drafted.sum())
    accepted = int(self.counts.accepted.sum())
    return accepted / drafted if drafted else float('nan')

  def __repr__(self) -> str:
    prompts, samples = self.length.shape
    return f'<{prompts} prompts, {samples} texts of each, tau {self.tau:.2f}>'

  def windows(self) -> dict[str, np.ndarray]:
    """Whole texts as training takes them: rows [P n] of one width L.

    Returns:
      tokens: [P n, L] each prompt and its text, zeros behind them.
      counts: [P n, L] 1 at places whose next token is a new one, else 0.
      logprobs: [P n, L] of that next token, as `logprobs`; 0 elsewhere.
    """
    size = self.length.size, self.width
    tokens, counts = np.zeros(size, np.int32), np.zeros(size, np.float32)
    logprobs = np.zeros(size, np.float32)
    texts = np.ndindex(self.length.shape)
    for row, (prompt, sample) in enumerate(texts):
      begin, new = len(self.prompts[prompt]), self.length[prompt, sample]
      tokens[row, :begin] = self.prompts[prompt]
      tokens[row, begin : begin + new] = self.tokens[prompt, sample, :new]
      places = slice(begin - 1, begin - 1 + new)
      counts[row, places] = 1
      logprobs[row, places] = self.logprobs[prompt, sample, :new]
    return {'tokens': tokens, 'counts': counts, 'logprobs': logprobs}


class Rollouts:
  """Continues prompts several times each, by speculative or plain decoding.

  Calls may follow one another with other prompts and other weights. The first
  one compiles; later ones compile nothing.
  """

  def __init__(
    self,
    target: Target,
    drafter: LoadedDrafter | None,
    *,
    longest_prompt: int,
    samples: int = 8,
    new_tokens: int = 64,
    rows: int = 16,
    gamma: int = 4,
    temperature: Any = 1.0,
    rule: Rule | None = None,
    **stages: Any,
  ):
    """Checks sizes; nothing is computed before the first call.

    Args:
      target: the policy, from `specjax.load`, in the layout that it was loaded
        in; `layout='native'` is the faster one for few rows on a CPU.
      drafter: from a loader, for this target; None: plain decoding.
      longest_prompt: most tokens of a prompt.
      samples: n, texts of each prompt.
      new_tokens: T, most new tokens of a text.
      rows: texts that are decoded at a time.
      gamma: draft length.
      temperature: a number above 0. All samples of a prompt are equal at 0.
      rule: an exact rule; by default the one for the drafter.
      **stages: of the sampling pipeline, such as `top_p=0.9`; see
        `specjax.sampling.make`.

    Raises:
      ValueError: one of these is wrong or does not fit the others; names it.
    """
    arguments.check_pair(target, drafter)
    config = target.model.config
    if target.model.encode is not None:
      raise ValueError('target has an encoder: give a decoder')
    for name, number in (
      ('longest_prompt', longest_prompt),
      ('samples', samples),
      ('new_tokens', new_tokens),
      ('rows', rows),
      ('gamma', gamma),
    ):
      check_number(name, number, 1, BOUND)
    if (
      not isinstance(temperature, int | float | np.number)
      or not temperature > 0
    ):
      raise ValueError(
        'temperature must be a number above 0, got '
        f'{named(temperature)}: at 0 all samples of a prompt are one text, '
        'which specjax.decode gives'
      )
    if not target.eos:
      raise ValueError(
        'target.eos is empty, so that no rollout could end: give its tokens '
        'with dataclasses.replace(target, eos=(ID,))'
      )
    arguments.check_eos(config.vocab_size, target.eos)
    method = plain.make() if drafter is None else drafter.make(gamma)
    rule = rule or rule_for(method)
    arguments.check_rule(rule)
    if not rule.lossless:
      raise ValueError(
        'rule is lossy: tokens would not be drawn from the distribution whose '
        'log-probabilities are recorded; give an exact one, such as '
        'specjax.verify.token'
      )
    self.width = longest_prompt + new_tokens
    positions = min(config.max_positions, method.positions or self.width)
    if self.width > positions:
      raise ValueError(
        f'longest_prompt and new_tokens make {self.width} tokens, but there '
        f'are {positions} positions: lower one of them'
      )
    self.target, self.longest_prompt = target, longest_prompt
    self.samples, self.new_tokens = samples, new_tokens
    self._drafter_params = drafter and drafter.params
    spec = Spec(target.model, method, rule, target.eos)
    kinds = request_sampling.of(spec, *stages)
    self._values = kinds.values(float(temperature), **stages)
    slots = generate.slots_for(spec, self.width)
    sizes = read_sizes(slots)
    self._pool = functools.partial(
      Pool,
      spec=spec,
      values=self._values,
      rows=rows,
      slots=slots,
      # Of one size: prompts of any length are read by one program.
      reads=[next(size for size in sizes if size >= longest_prompt)],
      recording=Recording(logprobs=0, sampled=True),
    )

  def __call__(
    self,
    prompts: str | Sequence[str] | Sequence[Sequence[int]],
    seed: int | Sequence[int] = 0,
    *,
    target_params: Any = None,
    draft_params: Any = None,
    indices: Sequence[int] | None = None,
  ) -> RolloutBatch:
    """Continues each prompt n times.

    A text depends on the weights, its prompt and its key, and on nothing else.
    The key is that of the seed, the prompt's index and the sample's.

    Args:
      prompts: P texts or lists of token ids.
      seed: of all draws; several numbers, such as (seed, update), are folded
        into one key.
      target_params: weights in place of `target.params`, of the same shapes.
      draft_params: weights in place of those of the drafter.
      indices: [P] index of each prompt, where they are a part of a larger
        set; by default 0, 1, 2, ...

    Raises:
      ValueError: one of these is wrong or does not fit the others; names it.
      FloatingPointError: the target gave NaN or infinite logits.
    """
    ids = arguments.token_ids(self.target, prompts)
    for i, prompt in enumerate(ids):
      if len(prompt) > self.longest_prompt:
        raise ValueError(
          f'prompt {i} has {len(prompt)} tokens, but longest_prompt is '
          f'{self.longest_prompt}: shorten it, or raise longest_prompt'
        )
    chosen = range(len(ids)) if indices is None else indices
    places = arguments.rows_of(0, chosen)
    if len({*places.tolist()}) != len(ids):
      raise ValueError(
        f'indices must be {len(ids)} different numbers, one a prompt, got '
        f'{named(indices)}'
      )
    own = _weights('draft_params', draft_params, self._drafter_params)
    placement = self.target.model.placement
    params = Params(
      _weights('target_params', target_params, self.target.params),
      own if placement is None else placement.put_whole(own),
    )
    pool, root = self._pool(params), _root(seed)
    for prompt, place in zip(ids, places, strict=True):
      for bits in np.asarray(_bits(root, place, self.samples)):
        key = jax.random.wrap_key_data(jnp.asarray(bits), impl='threefry2x32')
        pool.submit(Request(prompt, self.new_tokens, key, self._values))
    done = {}
    while pool.live or pool.waiting:
      # A turn ends where a row is free for a text that waits.
      for one in pool.turn(self.new_tokens, partial=False):
        if not one.finite:
          raise FloatingPointError(
            'the target gave NaN or infinite logits for prompt '
            f'{one.id // self.samples}: its weights are damaged, or too large '
            'for their dtype'
          )
        done[one.id] = one
    return self._batch(ids, [done[number] for number in sorted(done)])

  def _batch(self, ids: list[list[int]], done: list) -> RolloutBatch:
    """The batch of finished texts, in the order of their prompts."""
    shape = len(ids), self.samples

    def column(values, dtype):
      padded = np.zeros((len(done), self.new_tokens), dtype)
      for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value
      return padded.reshape(*shape, self.new_tokens)

    counts = jax.tree.map(
      lambda *x: np.stack(x).reshape(*shape, *x[0].shape),
      *(one.counts for one in done),
    )
    length = np.array([len(one.tokens) for one in done])
    ended = np.array([one.tokens[-1] in self.target.eos for one in done])
    raw = [[x.value for x in one.logprobs] for one in done]
    return RolloutBatch(
      ids,
      column([one.tokens for one in done], np.int32),
      length.reshape(shape),
      ended.reshape(shape),
      column([one.sampled for one in done], np.float32),
      column(raw, np.float32),
      counts,
      self.width,
    )


def _root(seed: Any) -> jax.Array:
  """The key of a seed, or of several numbers."""
  parts = [seed] if arguments.is_whole(seed) else seed
  if not isinstance(parts, list | tuple) or not parts:
    raise ValueError(
      f'seed must be a number or several, such as (0, 7), got {named(seed)}'
    )
  for part in parts:
    check_number('seed', part, 0, arguments.SEEDS)
  first, *rest = parts
  fold, key = jax.random.fold_in, jax.random.key(first, impl='threefry2x32')
  return functools.reduce(fold, map(np.uint32, rest), key)


@functools.partial(jax.jit, static_argnames='samples')
def _bits(root: jax.Array, prompt: jax.Array, samples: int) -> jax.Array:
  """Bits [n, 1, 2] of the keys of a prompt's samples."""
  fold = functools.partial(jax.random.fold_in, jax.random.fold_in(root, prompt))
  keys = jax.vmap(fold)(jnp.arange(samples, dtype=jnp.uint32))
  return jax.random.key_data(keys)[:, None]


def _weights(name: str, given: Any, like: Any) -> Any:
  """Weights in place of others of the same shapes; by default these.

  Raises:
    ValueError: the shapes, types or names differ; names the first that does.
  """

  def kind(x):
    return f'{np.shape(x)} of {jnp.result_type(x)}'

  given = like if given is None else given
  if wrong := arguments.misfit(given, like, kind):
    raise ValueError(
      f'{name}{wrong}: give weights of the same model, layout and dtype as '
      'those that were loaded'
    )
  return jax.tree.map(jnp.asarray, given)
