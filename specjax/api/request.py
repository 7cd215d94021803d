"""The arguments of `decode` and `stream`, checked and made ready to run."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import arguments, sampling
from specjax.arguments import BOUND, check_number
from specjax.constraints import targets
from specjax.drafters import plain
from specjax.drafters.cascade.speculation import rule_for
from specjax.loop import generate
from specjax.loop.buffers import plan_buffers
from specjax.loop.token_records import NewTokens, Recording
from specjax.models import layouts, prefill, sharding
from specjax.types import (
  Drafter,
  LoadedDrafter,
  Params,
  Rule,
  Spec,
  SpecState,
  Target,
)

_STAGES = {*inspect.signature(sampling.make).parameters} - {
  'batch',
  'vocab_size',
  'eos',
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
  """How prompts are continued: the options of `decode` and `stream`.

  Attributes:
    gamma: draft length K, tokens drafted in each step.
    new_tokens: tokens to add at most, a number or one a prompt.
    temperature: a number or one a prompt; 0 is greedy.
    seed: of all draws.
    rule: how drafts are verified; by default the exact one for the drafter:
      `specjax.verify.token` for chains, `specjax.verify.recursive` for trees.
    regex: that every text must match as a whole, or a list of one a prompt, of
      which some may be None; see `specjax.constraints`.
    json_schema: a schema that every text must fulfil, a dict or JSON, or a
      list of one a prompt. A text that was cut at its length does not.
    prediction: a text that the new one may repeat in part, such as a file that
      is to be edited, or a list of one a prompt: a text, token ids or None. A
      drafter that copies, `specjax.drafters.ngram`, drafts from it; it changes
      no distribution, so that a wrong one costs drafts alone.
    logprobs: record the log-probability of each token, and of so many of the
      most probable tokens of its place, 0 to 20: those of the target before
      temperature, penalties, cuts and constraints, see `token_records`.
    slots: size of the buffer; by default what the longest prompt needs.
      Prompts of any length share the programs of one size, and are read in
      whole blocks then.
    stages: further stages of the sampling pipeline, such as `top_p=0.9` or
      `repetition_penalty=[1.1, 1.3]`; see `specjax.sampling.make`.
  """

  gamma: int = 4
  new_tokens: int | Sequence[int] = 64
  temperature: Any = 0.0
  seed: int = 0
  rule: Rule | None = None
  regex: Any = None
  json_schema: Any = None
  prediction: Any = None
  logprobs: int | None = None
  slots: int | None = None
  stages: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_options(caller: Callable, options: Mapping[str, Any]) -> Request:
  """The request that keyword arguments ask for.

  Args:
    caller: the function that was given them; messages call it by its name.
    options: fields of `Request`, and stages of the sampling pipeline.

  Raises:
    ValueError: one is neither.
  """
  fields = {field.name for field in dataclasses.fields(Request)} - {'stages'}
  own = {*inspect.signature(caller).parameters} - {'options'}
  known = fields | own | _STAGES
  for name in options:
    if name not in known:
      close = difflib.get_close_matches(name, known, 1)
      guess = f' (did you mean {close[0]!r}?)' if close else ''
      raise ValueError(
        f'{caller.__name__} has no argument {name!r}{guess}; it takes '
        f'{", ".join(sorted(known))}'
      )
  stages = {name: x for name, x in options.items() if name not in fields}
  given = {name: x for name, x in options.items() if name in fields}
  return Request(**given, stages=stages)


class Prepared(NamedTuple):
  """Prompts and all that they are continued with."""

  params: Params
  spec: Spec
  ids: list[list[int]]
  lengths: np.ndarray  # [B] tokens to add to each
  recording: Recording
  begin: Callable[[], SpecState]  # makes the state before the first step

  def advance(self, state: SpecState, steps: int) -> SpecState:
    """At most so many steps further; the state is donated."""
    count = sharding.numbers(self.spec.target.placement, steps)
    return generate.generate(self.params, state, count, spec=self.spec)


def _predictions(
  target: Target, method: Drafter, prompts: list[list[int]], given: Any
) -> list[sampling.Predicted]:
  """The text that drafts are copied from, for each prompt."""
  if not method.predicts:
    raise ValueError(
      'prediction: the drafter copies from none: give '
      'specjax.drafters.ngram.load(target), or leave prediction out'
    )
  rows = arguments.predictions(target, given, len(prompts))
  if target.model.encode is not None:
    prompts = [[]] * len(rows)  # The new text does not begin with them.
  return [*map(sampling.behind, prompts, rows)]


def prepare(
  target: Target,
  drafter: LoadedDrafter | None,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  request: Request,
  origins: bool = False,
) -> Prepared:
  """Checks what `decode` and `stream` are given, and chooses a layout.

  Args:
    target: from `specjax.load`.
    drafter: from a loader; None: plain decoding.
    prompts: a text, or a list of texts or of lists of token ids.
    request: how they are continued.
    origins: record the origin of each token.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
  """
  x = request
  arguments.check_pair(target, drafter)
  if x.rule is not None:
    arguments.check_rule(x.rule)
  check_number('gamma', x.gamma, 1, target.model.config.max_positions)
  check_number('seed', x.seed, 0, arguments.SEEDS)
  if x.slots is not None:
    check_number('slots', x.slots, 1, BOUND)
  recording = Recording(origins, x.logprobs)
  ids = arguments.token_ids(target, prompts)
  lengths = arguments.lengths(x.new_tokens, len(ids))
  method = plain.make() if drafter is None else drafter.make(x.gamma)
  spec = Spec(target.model, method, x.rule or rule_for(method), target.eos)
  recording.check(spec)
  automata = targets.for_prompts(
    target, len(ids), x.regex, x.json_schema, x.stages.get('constraint')
  )
  stages = {**x.stages, 'constraint': automata}
  if x.prediction is not None:
    stages['prediction'] = _predictions(target, method, ids, x.prediction)
  key = generate.row_keys(x.seed, range(len(ids)))
  values = sampling.make(
    len(ids),
    x.temperature,
    vocab_size=target.model.config.vocab_size,
    eos=target.eos,
    **stages,
  )
  longest = int(lengths.max())
  planned = plan_buffers(spec, ids, lengths, key, values, x.slots)
  arranged = layouts.choose(
    target,
    layouts.Buffer(
      len(ids),
      planned.slots,
      int(planned.limit.max()) - longest // 2,
      planned.source_slots,
    ),
    method.nodes + 1,
    longest,
  )
  params = Params(target.params, drafter and drafter.params)
  placement = target.model.placement
  if placement is not None:
    params = Params(params.target, placement.put_whole(params.drafter))
  if arranged.model != target.model:
    method = with_loaded_target(target, method)
    spec = dataclasses.replace(spec, target=arranged.model, drafter=method)
    params = Params(arranged.params, params)
  # Programs for a given size of buffer serve prompts of any length.
  longest = max(map(len, planned.texts))
  sizes = prefill.read_sizes(planned.slots)
  read = next(size for size in sizes if size >= longest)
  begin = functools.partial(
    generate.start,
    params,
    ids,
    spec=spec,
    new_tokens=lengths,
    key=key,
    values=values,
    slots=planned.slots,
    read_slots=read if x.slots is None else None,
    recording=recording,
  )
  return Prepared(params, spec, ids, lengths, recording, begin)


def with_loaded_target(target: Target, drafter: Drafter) -> Drafter:
  """The drafter beside a target in another layout than it was loaded for.

  It goes on computing with the target's weights as they were loaded: its own
  parameters are `Params` of these and its own.
  """

  def beside(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(params, *given):
      return function(params.drafter, *given)

    return call

  # The same one in every call, since it is a static argument.
  if drafter not in target.remembered:
    target.remembered[drafter] = drafter._replace(
      init=beside(drafter.init),
      propose=beside(drafter.propose),
      commit=beside(drafter.commit),
    )
  return target.remembered[drafter]


def check_finite(rows: Sequence[NewTokens]) -> None:
  """Raises a FloatingPointError if a text ended as logits were no numbers."""
  for row, new in enumerate(rows):
    if not new.finite:
      raise FloatingPointError(
        f'the target gave NaN or infinite logits in row {row}: its weights '
        'are damaged, or too large for their dtype'
      )
