"""The door: a checkpoint, a drafter and prompts in; texts and counts out.

  target = specjax.load('DIRECTORY')
  draft = specjax.drafters.lm.load(target, 'SMALLER')
  out = specjax.decode(target, draft, ['def fib(n):'], gamma=4)
  out.texts[0], out.tau

A thin layer over `generate`, for those who want texts. Whoever writes loops
of their own goes on with `generate.start` and `generate.generate`.
"""

import dataclasses
import difflib
import functools
import inspect
import numbers
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checkpoints, generate, sampling, sharding
from specjax.drafters import plain
from specjax.drafters.cascade.speculation import rule_for
from specjax.types import Counts, LoadedDrafter, Params, Rule, Spec, Target

_SEEDS = 2**32
_DTYPES = ('float32', 'bfloat16', 'float16', 'float64')


def load(
  path: str | os.PathLike,
  *,
  dtype: Any = jnp.float32,
  max_length: int | None = None,
) -> Target:
  """Loads a target with its tokenizer and the tokens that end its texts.

  Args:
    path: a Hugging Face directory, or the name of a model, such as
      'Qwen/Qwen3-4B'; `specjax.pair.path('target')` is the embedded one.
    dtype: of the weights and the cache, also as 'bfloat16'.
    max_length: longest text to come, by default the checkpoint's maximum.
      Only rotary scalings that depend on it look at it.

  Raises:
    ValueError: there is no such checkpoint, or one that is not exactly ours;
      names the file and the remedy.
  """
  if not isinstance(path, str | os.PathLike):
    raise ValueError(
      f'path must be a directory or the name of a model, got {_named(path)}'
    )
  if max_length is not None:
    _whole('max_length', max_length, 1)
  directory = str(checkpoints.locate(path))
  name = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
  if name not in _DTYPES:
    raise ValueError(f'dtype is {name!r}: choose one of {", ".join(_DTYPES)}')
  model, params = checkpoints.load(directory, jnp.dtype(name), max_length)
  tokenizer = None
  if checkpoints.has_tokenizer(directory):
    tokenizer = checkpoints.load_tokenizer(directory)
  return Target(
    model,
    params,
    directory,
    checkpoints.fingerprint(directory),
    max_length,
    tokenizer,
    checkpoints.eos_ids(directory),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
  """What became of some prompts.

  Attributes:
    texts: the new text of each prompt, without what was continued and without
      the token that ended it; None where the target has no tokenizer.
    tokens: the new tokens of each, with that token.
    ended: [B] whether a text ended by itself; otherwise it reached its length.
    counts: statistics of each row, see `types.Counts`, on the host.
  """

  texts: list[str] | None
  tokens: list[list[int]]
  ended: list[bool]
  counts: Counts

  @property
  def target_calls(self) -> int:
    """Passes of the target over all rows."""
    return int(self.counts.target_calls.sum())

  @property
  def tau(self) -> float:
    """Tokens per target call, the bonus or corrected one included."""
    return float(self.counts.tokens.sum() / max(self.target_calls, 1))

  @property
  def tau_by_row(self) -> list[float]:
    """The same of each row."""
    calls = np.maximum(self.counts.target_calls, 1)
    return (self.counts.tokens / calls).tolist()

  @property
  def acceptance_rate(self) -> float:
    """Accepted over drafted tokens; NaN where none were drafted."""
    return _over(self.counts.accepted.sum(), self.counts.drafted.sum())

  @property
  def acceptance_by_position(self) -> list[float]:
    """Share of the steps that accepted the first, second, ... drafted token."""
    steps = self.counts.histogram.sum()
    return [_over(x, steps) for x in self.counts.accepted.sum(0)]

  @property
  def accepted_lengths(self) -> list[int]:
    """How many steps accepted 0, 1, 2, ... drafted tokens."""
    return self.counts.histogram.sum(0).tolist()

  def __repr__(self) -> str:
    return (
      f'<{len(self.tokens)} texts, {int(self.counts.tokens.sum())} tokens, '
      f'{self.target_calls} target calls, tau {self.tau:.2f}>'
    )


def _over(count: Any, of: Any) -> float:
  return float(count / of) if of else float('nan')


def _named(value: Any) -> str:
  """A value as messages show it: what it is, and its beginning."""
  text = repr(value)
  shown = text if len(text) < 60 else f'{text[:57]}...'
  return f'{type(value).__name__} {shown}'


def _whole(name: str, value: Any, least: int, bound: int | None = None) -> None:
  """Refuses what is no whole number in [least, bound)."""
  fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not fits or value < least or (bound is not None and value >= bound):
    more = '' if bound is None else f' and below {bound}'
    raise ValueError(
      f'{name} must be a whole number of at least {least}{more}, got '
      f'{_named(value)}'
    )


def _check(target: Any, drafter: Any, rule: Any) -> None:
  """Refuses what is not the kind of thing that is wanted."""
  if not isinstance(target, Target) or target.params is None:
    raise ValueError(
      f'target must be what specjax.load returns, got {_named(target)}'
    )
  if drafter is not None:
    if not isinstance(drafter, LoadedDrafter):
      raise ValueError(
        'drafter must be what a loader returns, such as '
        'specjax.drafters.lm.load(target, path), or None for plain decoding, '
        f'got {_named(drafter)}'
      )
    if drafter.model != target.model:
      raise ValueError(
        'drafter was loaded for another target: load it with this one'
      )
  if rule is not None and not isinstance(rule, Rule):
    raise ValueError(
      'rule must be a rule of specjax.verify, such as specjax.verify.block, '
      f'got {_named(rule)}'
    )


def _check_stages(stages: dict[str, Any]) -> None:
  """Refuses what is no argument of `decode` and no stage of the pipeline."""
  arguments = inspect.signature(decode).parameters
  known = [*arguments, *inspect.signature(sampling.make).parameters]
  stage = {*known} - {'batch', 'vocab_size', 'eos', 'stages'}
  for name in stages:
    if name not in stage:
      close = difflib.get_close_matches(name, stage, 1)
      guess = f' (did you mean {close[0]!r}?)' if close else ''
      raise ValueError(
        f'decode has no argument {name!r}{guess}; stages are those of '
        'specjax.sampling.make'
      )


def _tokens(target: Target, prompts: Any) -> list[list[int]]:
  """Prompts as lists of token ids: one text, texts, or ids already."""
  if isinstance(prompts, str):
    prompts = [prompts]
  if not isinstance(prompts, Sequence) or not len(prompts):
    raise ValueError(
      'prompts must be a text, or a list of texts or of lists of token ids, '
      f'got {_named(prompts)}'
    )
  found = []
  for i, prompt in enumerate(prompts):
    if isinstance(prompt, str):
      if target.tokenizer is None:
        raise ValueError(
          f'prompt {i} is a text, but {target.path or "the target"} has no '
          'tokenizer: give token ids'
        )
      try:
        prompt.encode()
      except UnicodeEncodeError as error:
        raise ValueError(
          f'prompt {i} is no text: character {error.start} is half of a '
          'surrogate pair, remove it'
        ) from error
      ids = target.tokenizer.encode(prompt)
    else:
      ids = np.asarray(prompt)
      if ids.ndim != 1 or not (
        ids.size == 0 or np.issubdtype(ids.dtype, np.integer)
      ):
        raise ValueError(
          f'prompt {i} must be a text or a list of token ids, got '
          f'{_named(prompt)}'
        )
    found.append([int(token) for token in ids])
  return found


@functools.singledispatch
def _new_tokens(new_tokens: Any, count: int) -> np.ndarray:
  """Tokens to add to each prompt, [B]."""
  _whole('new_tokens', new_tokens, 1)
  return np.full(count, new_tokens)


@_new_tokens.register(list | tuple | np.ndarray)
def _(new_tokens: Any, count: int) -> np.ndarray:
  if len(new_tokens) != count:
    raise ValueError(
      f'new_tokens has {len(new_tokens)} entries for {count} prompts: give one '
      'number, or one for each'
    )
  for number in new_tokens:
    _whole('new_tokens', number, 1)
  return np.asarray(new_tokens)


def decode(
  target: Target,
  drafter: LoadedDrafter | None,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  *,
  gamma: int = 4,
  new_tokens: int | Sequence[int] = 64,
  temperature: Any = 0.0,
  seed: int = 0,
  rule: Rule | None = None,
  **stages: Any,
) -> Decoded:
  """Continues prompts, all at once, by speculative decoding.

  With an exact rule every text is distributed as if the target had written it
  alone; at temperature 0 it is the text of plain decoding. Each row draws with
  its own key, of the seed and the prompt's place, so a text does not depend on
  the prompts beside it. A second call with as many prompts, of about the same
  length, compiles nothing.

  Args:
    target: from `load`.
    drafter: from a loader, such as `specjax.drafters.lm.load(target, path)`;
      None: plain decoding.
    prompts: a text, or a list of texts or of lists of token ids.
    gamma: draft length K, tokens drafted in each step.
    new_tokens: tokens to add at most, a number or one a prompt.
    temperature: a number or one a prompt; 0 is greedy.
    seed: of all draws.
    rule: how drafts are verified; by default the exact one for the drafter:
      `specjax.verify.token` for chains, `specjax.verify.recursive` for trees.
    **stages: further stages of the sampling pipeline, such as `top_p=0.9` or
      `repetition_penalty=[1.1, 1.3]`; see `specjax.sampling.make`.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
    FloatingPointError: the target gave NaN or infinite logits.
  """
  _check(target, drafter, rule)
  _whole('gamma', gamma, 1, target.model.config.max_positions)
  _whole('seed', seed, 0, _SEEDS)
  _check_stages(stages)
  ids = _tokens(target, prompts)
  lengths = _new_tokens(new_tokens, len(ids))
  method = plain.make() if drafter is None else drafter.make(gamma)
  spec = Spec(target.model, method, rule or rule_for(method), target.eos)
  values = sampling.make(
    len(ids),
    temperature,
    vocab_size=target.model.config.vocab_size,
    eos=target.eos,
    **stages,
  )
  params = Params(target.params, drafter and drafter.params)
  state = generate.start(
    params,
    ids,
    spec=spec,
    new_tokens=lengths,
    key=generate.row_keys(seed, range(len(ids))),
    values=values,
  )
  steps = jnp.asarray(lengths.max(), jnp.int32)
  state = generate.generate(params, state, steps, spec=spec)
  return _decoded(target, state)


def _decoded(target: Target, state) -> Decoded:
  """What is told of a final state."""
  # The rest of it, caches above all, stays where it is.
  state = sharding.fetch(state._replace(cache=(), drafter=(), key=None))
  if not state.finite.all():
    (rows,) = np.nonzero(~state.finite)
    raise FloatingPointError(
      f'the target gave NaN or infinite logits in row {rows[0]}: its weights '
      'are damaged, or too large for their dtype'
    )
  tokens = [
    row[begin:end].tolist()
    for row, begin, end in zip(
      state.tokens, state.start, state.length, strict=True
    )
  ]
  ended = [bool(new) and new[-1] in target.eos for new in tokens]
  texts = None
  if target.tokenizer is not None:
    shown = [
      new[:-1] if end else new for new, end in zip(tokens, ended, strict=True)
    ]
    texts = [target.tokenizer.decode(new) for new in shown]
  return Decoded(texts, tokens, ended, jax.tree.map(np.asarray, state.counts))
