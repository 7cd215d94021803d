"""The door: a checkpoint, a drafter and prompts in; texts and counts out.

  target = specjax.load('DIRECTORY')
  draft = specjax.drafters.lm.load(target, 'SMALLER')
  out = specjax.decode(target, draft, ['def fib(n):'], gamma=4)
  out.texts[0], out.tau

A thin layer over `generate`, for those who want texts. Whoever writes loops
of their own goes on with `generate.start` and `generate.generate`.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax import checkpoints, native
from specjax.api import request
from specjax.api.decoded import Decoded as Decoded
from specjax.arguments import check_number, named
from specjax.loop.token_records import Telling, read
from specjax.models import layouts, sharding, transformer
from specjax.types import LoadedDrafter, Rule, Target

_NO_CORES = (
  "layout is 'cores', but the target cannot be split over the number of CPU "
  'devices, {}: make the cores devices first, with '
  "jax.config.update('jax_num_cpu_devices', 2), or choose layout='auto'"
)


def load(
  path: str | os.PathLike,
  *,
  dtype: Any = 'auto',
  max_length: int | None = None,
  layout: str = layouts.AUTO,
) -> Target:
  """Loads a target with its tokenizer and the tokens that end its texts.

  Args:
    path: a Hugging Face directory, or the name of a model on the Hub, such as
      'Qwen/Qwen3-4B', with a branch, tag or commit behind an @ where it is to
      be one; `specjax.pair.path('target')` is the embedded one.
    dtype: of weights and cache, and of drafts, unless they are told another,
      such as 'bfloat16'; 'auto': the file's own, float32 on a CPU.
    max_length: longest text to come, by default the checkpoint's maximum.
      Only rotary scalings that depend on it look at it.
    layout: of the weights on a CPU: 'whole'; 'native', in blocks of columns
      for a kernel of their own, where the model has them, which drafters loaded
      for it take too; 'blocked', such blocks without the kernel; 'cores',
      these blocks split over the CPU devices that there are, see `layouts`; or
      'auto', by which `decode` takes the faster of the first two (without a
      compiler, of whole and blocked weights) for its
      shapes, see `layouts.choose`. It changes logits by float rounding alone,
      so that texts may differ where two tokens are tied; fix it for the same
      bits on every machine and in every call.

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
  if layout == layouts.CORES and jax.local_device_count('cpu') == 1:
    raise ValueError(_NO_CORES.format(1))
  if layout == layouts.NATIVE and not native.available():
    raise ValueError(
      f"layout is 'native', but there is no kernel: {native.reason()}; choose "
      "layout='auto'"
    )
  dtype = checkpoints.precision.check(dtype)
  directory = str(checkpoints.locate(path))
  model, params = checkpoints.load(directory, dtype, max_length)
  if layout not in (layouts.AUTO, layouts.WHOLE):
    arranged = layouts.make(layout, model, params)
    if arranged is None and layout == layouts.CORES:
      raise ValueError(_NO_CORES.format(jax.local_device_count('cpu')))
    model, params = arranged or (model, params)
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
  )


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
  regex: Any = None,
  json_schema: Any = None,
  prediction: Any = None,
  logprobs: int | None = None,
  **stages: Any,
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
    gamma: draft length K, tokens drafted in each step.
    new_tokens: tokens to add at most, a number or one a prompt.
    temperature: a number or one a prompt; 0 is greedy.
    seed: of all draws.
    rule: how drafts are verified; by default the exact one for the drafter:
      `specjax.verify.token` for chains, `specjax.verify.recursive` for trees.
    regex: that every text must match as a whole, or a list of one a prompt, of
      which some may be None; see `specjax.constraints`.
    json_schema: likewise; a dict or JSON. A text that was cut at its length
      (`ended` is false) does not match.
    prediction: a text that the new one may repeat in part, such as a file that
      is to be edited, or a list of one a prompt: a text, token ids or None. A
      drafter that copies, `specjax.drafters.ngram`, drafts from it; it changes
      no distribution, so that a wrong one costs drafts alone.
    logprobs: whether each token's log-probability is told, and those of so many
      of the most probable tokens of its place, 0 to 20: those of the target
      before temperature, penalties, cuts and constraints (`told`).
    **stages: further stages of the sampling pipeline, such as `top_p=0.9` or
      `repetition_penalty=[1.1, 1.3]`; see `specjax.sampling.make`.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
    FloatingPointError: the target gave NaN or infinite logits.
  """
  made = request.prepare(
    decode,
    target,
    drafter,
    prompts,
    gamma=gamma,
    new_tokens=new_tokens,
    temperature=temperature,
    seed=seed,
    rule=rule,
    regex=regex,
    json_schema=json_schema,
    prediction=prediction,
    stages=stages,
    telling=Telling(logprobs=logprobs),
  )
  state = made.advance(made.begin(), int(made.lengths.max()))
  return _decoded(target, state, made.telling)


def _decoded(target: Target, state, telling: Telling) -> Decoded:
  """Texts and counts of a final state, on the host."""
  # The rest of it, caches above all, stays where it is.
  state = sharding.fetch(state._replace(cache=(), drafter=(), key=None))
  request.check_finite(state.finite)
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
  counts, logprobs = state.counts, None
  if telling.logprobs is not None:
    logprobs = [
      read(counts, row, 0, len(new)).logprobs for row, new in enumerate(tokens)
    ]
    counts = counts.counts
  counts = jax.tree.map(np.asarray, counts)
  return Decoded(texts, tokens, ended, counts, logprobs)
