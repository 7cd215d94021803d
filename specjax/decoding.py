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
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import (
  arguments,
  checkpoints,
  generate,
  layouts,
  sampling,
  sharding,
)
from specjax.arguments import check_number, named
from specjax.constraints import targets
from specjax.decoded import Decoded as Decoded
from specjax.drafters import plain
from specjax.drafters.cascade.speculation import rule_for
from specjax.inputs import fit
from specjax.models import transformer
from specjax.types import (
  Drafter,
  LoadedDrafter,
  Params,
  Rule,
  Spec,
  Target,
)

_SEEDS = 2**32


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
    layout: of the weights on a CPU: 'whole'; 'blocked', in blocks of columns,
      where the model has them, which drafters loaded for it take too; 'cores',
      these blocks split over the CPU devices that there are, see `layouts`; or
      'auto', by which `decode` takes the faster of the first two for its
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
  directory = str(checkpoints.locate(path))
  if layout not in layouts.LAYOUTS:
    raise ValueError(
      f'layout is {layout!r}: choose one of {", ".join(layouts.LAYOUTS)}'
    )
  dtype = checkpoints.precision.check(dtype)
  model, params = checkpoints.load(directory, dtype, max_length)
  if layout in (layouts.BLOCKED, layouts.CORES):
    arranged = layouts.make(layout, model, params)
    if arranged is None and layout == layouts.CORES:
      raise ValueError(
        "layout is 'cores', but the target cannot be split over the "
        f'{jax.local_device_count("cpu")} CPU devices: make the cores devices '
        "first, with jax.config.update('jax_num_cpu_devices', 2), or choose "
        "layout='auto'"
      )
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


def _check(target: Any, drafter: Any, rule: Any) -> None:
  """Refuses what is not the kind of thing that is wanted."""
  arguments.check_target(target)
  if target.params is None:
    raise ValueError('target has no weights: load it with specjax.load')
  if drafter is not None:
    if not isinstance(drafter, LoadedDrafter):
      raise ValueError(
        'drafter must be what a loader returns, such as '
        'specjax.drafters.lm.load(target, path), or None for plain decoding, '
        f'got {named(drafter)}'
      )
    if drafter.model != target.model:
      raise ValueError(
        'drafter was loaded for another target: load it with this one'
      )
  if rule is not None:
    arguments.check_rule(rule)


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
        f'decode has no argument {name!r}{guess}; it takes '
        f'{", ".join(sorted(stage))}'
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
    **stages: further stages of the sampling pipeline, such as `top_p=0.9` or
      `repetition_penalty=[1.1, 1.3]`; see `specjax.sampling.make`.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
    FloatingPointError: the target gave NaN or infinite logits.
  """
  _check(target, drafter, rule)
  check_number('gamma', gamma, 1, target.model.config.max_positions)
  check_number('seed', seed, 0, _SEEDS)
  _check_stages(stages)
  ids = arguments.token_ids(target, prompts)
  lengths = arguments.lengths(new_tokens, len(ids))
  method = plain.make() if drafter is None else drafter.make(gamma)
  spec = Spec(target.model, method, rule or rule_for(method), target.eos)
  automata = targets.for_prompts(target, len(ids), regex, json_schema)
  if automata is not None:
    stages['constraint'] = automata
  key = generate.row_keys(seed, range(len(ids)))
  values = sampling.make(
    len(ids),
    temperature,
    vocab_size=target.model.config.vocab_size,
    eos=target.eos,
    **stages,
  )
  longest = int(lengths.max())
  fitted = fit(spec, ids, lengths, key, values)
  arranged = layouts.choose(
    target,
    layouts.Buffer(
      len(ids),
      fitted.slots,
      int(fitted.limit.max()) - longest // 2,
      fitted.source_slots,
    ),
    method.nodes + 1,
    longest,
  )
  params = Params(target.params, drafter and drafter.params)
  placement = target.model.placement
  if placement is not None:
    params = Params(params.target, placement.put_whole(params.drafter))
  if arranged.model != target.model:
    method = _with_loaded_target(target, method)
    spec = dataclasses.replace(spec, target=arranged.model, drafter=method)
    params = Params(arranged.params, params)
  state = generate.start(
    params, ids, spec=spec, new_tokens=lengths, key=key, values=values
  )
  steps = jnp.asarray(longest, jnp.int32)
  if placement is not None:
    steps = placement.put_whole(steps)
  state = generate.generate(params, state, steps, spec=spec)
  return _decoded(target, state)


def _with_loaded_target(target: Target, drafter: Drafter) -> Drafter:
  """The drafter beside a target in another layout than it was loaded for.

  It goes on computing with the target's weights as they were loaded: its own
  parameters are `Params` of these and its own.
  """

  def make() -> Drafter:
    def init(params, ctx, hidden):
      return drafter.init(params.drafter, ctx, hidden)

    def propose(params, state, ctx, key):
      return drafter.propose(params.drafter, state, ctx, key)

    def commit(params, state, ctx, verdict, hidden):
      return drafter.commit(params.drafter, state, ctx, verdict, hidden)

    return drafter._replace(init=init, propose=propose, commit=commit)

  # The same one in every call, since it is a static argument.
  if drafter not in target.remembered:
    target.remembered[drafter] = make()
  return target.remembered[drafter]


def _decoded(target: Target, state) -> Decoded:
  """Texts and counts of a final state, on the host."""
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
