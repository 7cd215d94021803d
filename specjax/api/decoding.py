"""The door: a checkpoint, a drafter and prompts in; texts and counts out.

  target = specjax.load('DIRECTORY')
  draft = specjax.drafters.lm.load(target, 'SMALLER')
  out = specjax.decode(target, draft, ['def fib(n):'], gamma=4)
  out.texts[0], out.tau

A thin layer over `generate`, for texts. To write a loop of your own, use
`generate.start` and `generate.generate`.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax import checkpoints, native
from specjax.api import request
from specjax.api.text import Shown, check_stop
from specjax.arguments import check_number, check_target, named
from specjax.checkpoints import parameters
from specjax.loop.token_records import Logprob, NewTokens, read
from specjax.models import layouts, sharding, transformer, uniform
from specjax.requests import pool
from specjax.types import Counts, LoadedDrafter, Target

_LOOK = 8  # steps between two looks for stop strings


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
  """The texts of some prompts, and how they were made.

  Attributes:
    texts: the new text of each prompt, without what was continued and without
      the token that ended it; None where the target has no tokenizer.
    tokens: the new tokens of each, with that token.
    ended: [B] whether a text ended by itself or at a string; otherwise it
      reached its length and was cut: then it is no whole text of what
      constrained it.
    counts: statistics of each row, see `types.Counts`, on the host.
    logprobs: of the tokens, see `token_records`; None where none were asked.
  """

  texts: list[str] | None
  tokens: list[list[int]]
  ended: list[bool]
  counts: Counts
  logprobs: list[list[Logprob]] | None = None

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
    """Tokens per target call of each row."""
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


def load(
  path: str | os.PathLike,
  *,
  dtype: Any = 'auto',
  max_length: int | None = None,
  layout: str = layouts.AUTO,
  weights: str = 'auto',
  rounds: bool = False,
  exact: str = 'auto',
) -> Target:
  """Loads a target with its tokenizer and the tokens that end its texts.

  Args:
    path: a Hugging Face directory, or the name of a model on the Hub, such as
      'Qwen/Qwen3-4B', with a branch, tag or commit behind an @ where it is to
      be one; `specjax.pair.path('target')` is the embedded one.
    dtype: of weights and cache, and of drafts whose loader is given none, such
      as 'bfloat16'; 'auto': the file's own, float32 on a CPU.
    max_length: longest text to come, by default the checkpoint's maximum.
      Only rotary scalings that depend on it look at it.
    layout: of the weights on a CPU: 'whole'; 'native', in blocks of columns
      for the kernel of `specjax.native`, which drafters loaded for the target
      take, too; or 'auto': `decode` takes the faster of the two for its shapes,
      see `layouts.choose`. Logits change by float rounding alone, so texts may
      differ where two tokens are tied.
    weights: how matrices are held: 'floats'; 'stored', in the bits that a GGUF
      file holds; 'int8' or 'int4', rounded when they are read; 'auto': 'stored'
      for a GGUF file where there is a kernel, which multiplies them as they
      lie, or else floats. Drafts that are language models are read so, too. See
      `models.low_bits`.
    rounds: round activations to eight bits in products of few bits: faster,
      and the target is then that model.
    exact: 'bits': greedy texts are plain decoding's, with no ties, whatever the
      draft length and the batch: the layout is 'native', or else 'uniform'.
      See `layouts.for_bits` for targets that have neither.

  Raises:
    ValueError: there is no such checkpoint or dtype here, or one that is not
      exactly ours; names the file and the remedy.
  """
  if not isinstance(path, str | os.PathLike) or not os.fspath(path):
    raise ValueError(
      f'path must be a directory or the name of a model, got {named(path)}'
    )
  if max_length is not None:
    check_number('max_length', max_length, 1)
  if layout not in layouts.LAYOUTS:
    raise ValueError(
      f'layout is {layout!r}: choose one of {", ".join(layouts.LAYOUTS)}'
    )
  if exact not in ('auto', 'bits'):
    raise ValueError(f"exact is {exact!r}: choose 'auto' or 'bits'")
  if exact == 'bits' and layout == layouts.WHOLE:
    raise ValueError(
      "exact is 'bits', which layout='whole' has not: leave it out"
    )
  if layout == layouts.NATIVE and not native.available():
    raise ValueError(
      f"layout is 'native', but there is no kernel: {native.reason()}; choose "
      "layout='auto'"
    )
  dtype = checkpoints.precision.check_dtype(dtype)
  found = checkpoints.locate(path)
  directory = str(found)
  kernel = layout != layouts.WHOLE and layouts.has_kernel()
  form = parameters.choose_form(weights, rounds, found, kernel)
  if form != parameters.FLOATS:
    layout = layouts.NATIVE if form.blocks else layouts.WHOLE
  if exact == 'bits':
    shown = checkpoints.describe(directory, max_length=max_length)
    held = checkpoints.precision.resolve(dtype, shown.dtype)
    given = shown.model, shown.shapes(held, form)
    chosen, reason = layouts.for_bits(*given)
    if layout == layouts.NATIVE and not form.blocks:  # Asked for.
      reason = layouts.parting(*given)
    if reason:
      raise ValueError(f"exact is 'bits', but {reason}: choose 'auto'")
    layout = chosen
  model, params = checkpoints.load(directory, dtype, max_length, form=form)
  if layout == layouts.NATIVE and not form.blocks:
    model, params = layouts.to_native(model, params) or (model, params)
  if layout == layouts.UNIFORM:
    model = uniform.uniform(model)
  tokenizer = None
  if checkpoints.has_tokenizer(directory):
    tokenizer = checkpoints.load_tokenizer(directory)
  return Target(
    model,
    params,
    directory,
    functools.partial(checkpoints.fingerprint, directory),
    max_length,
    tokenizer,
    checkpoints.eos_ids(directory),
    layout,
    transformer.dtype_of(params).name,
    form,
  )


def decode(
  target: Target,
  drafter: LoadedDrafter | None,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  *,
  stop: str | Sequence[str] = (),
  **options: Any,
) -> Decoded:
  """Continues prompts, all at once, by speculative decoding.

  With an exact rule every text is distributed as if the target had written it
  alone; at temperature 0 it is the text of plain decoding. Each row draws with
  its own key, of the seed and the prompt's place, so a text does not depend on
  the prompts beside it. A second call with as many prompts, of about the same
  length, compiles nothing.

  On a CPU the first call for a batch size and a draft length, if it adds 64
  tokens or more to a text, spends about a second on the faster layout of the
  target's weights, unless `load` fixed one; see `layouts.choose`.

  Args:
    target: from `load`.
    drafter: from a loader, such as `specjax.drafters.lm.load(target, path)`;
      None: plain decoding.
    prompts: a text, or a list of texts or of lists of token ids.
    stop: strings that end a text. The text ends before a string; its tokens end
      with the token that completes it; counts are of all decoded tokens.
    **options: fields of `specjax.Request`, such as `gamma=4`, `new_tokens=64`,
      `temperature=0.0`, `seed=0`, `rule` and `logprobs`, and stages of the
      sampling pipeline, such as `top_p=0.9`, see `specjax.sampling.make`.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
    FloatingPointError: the target gave NaN or infinite logits.
  """
  asked, stops = request.read_options(decode, options), check_stop(stop)
  check_target(target)
  if stops and target.tokenizer is None:
    raise ValueError(
      f'stop: {target.path or "the target"} has no tokenizer, which makes text '
      'of tokens: add one, or leave stop out'
    )
  made = request.prepare(target, drafter, prompts, asked)
  if stops:
    rows, texts, ended = _decode_to_stop(made, target, stops)
  else:
    state = made.advance(made.begin(), int(made.lengths.max()))
    rows = read(state)
    request.check_finite(rows)
    ended = [bool(x.tokens) and x.tokens[-1] in target.eos for x in rows]
    texts = None
    if target.tokenizer is not None:
      shown = [
        x.tokens[:-1] if end else x.tokens
        for x, end in zip(rows, ended, strict=True)
      ]
      texts = [target.tokenizer.decode(new) for new in shown]
  tokens = [row.tokens for row in rows]
  counts = jax.tree.map(lambda *x: np.stack(x), *(row.counts for row in rows))
  logprobs = None
  if asked.logprobs is not None:
    logprobs = [row.logprobs for row in rows]
  return Decoded(texts, tokens, ended, counts, logprobs)


def _decode_to_stop(
  made: request.Prepared, target: Target, stop: Sequence[str]
) -> tuple[list[NewTokens], list[str] | None, list[bool]]:
  """Decodes each row up to one of some strings, or to its end.

  Returns:
    The rows, without the tokens behind a string; their texts; whether each
    ended by itself.
  """
  shown = [Shown(target.tokenizer, target.eos, stop) for _ in made.ids]
  texts, sizes = [''] * len(shown), [0] * len(shown)
  state, begin = made.begin(), dict.fromkeys(range(len(shown)), 0)
  done = np.zeros(len(shown), bool)
  while not done.all():
    state = made.advance(state, _LOOK)
    rows = read(state, begin)
    request.check_finite(rows)
    for row, new in enumerate(rows):
      pieces = shown[row].push(new.tokens, new.done)
      texts[row] += ''.join(pieces)
      sizes[row] += len(pieces)
      begin[row], done[row] = new.end, new.done or shown[row].ended
    # A row that others wait for drafts no more.
    state = sharding.laid(made.spec.target, pool.stop(state, done))
  cut = [
    row._replace(tokens=row.tokens[:size], logprobs=row.logprobs[:size])
    for row, size in zip(read(state), sizes, strict=True)
  ]
  return cut, texts, [one.ended for one in shown]
