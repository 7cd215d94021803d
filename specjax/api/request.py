"""What `decode` and `stream` are given, checked and made ready to run."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import arguments, sampling
from specjax.arguments import check_number, named
from specjax.constraints import targets
from specjax.drafters import plain
from specjax.drafters.cascade.speculation import rule_for
from specjax.loop import generate, token_records
from specjax.loop.buffers import fit
from specjax.loop.token_records import Telling
from specjax.models import layouts
from specjax.types import (
  Drafter,
  LoadedDrafter,
  Params,
  Rule,
  Spec,
  SpecState,
  Target,
)


class Prepared(NamedTuple):
  """Prompts and all that they are continued with."""

  params: Params
  spec: Spec
  ids: list[list[int]]
  lengths: np.ndarray  # [B] tokens to add to each
  key: jax.Array  # [B]
  values: sampling.Sampling
  slots: int
  telling: Telling

  def begin(self) -> SpecState:
    """The state before the first step."""
    return token_records.start(
      self.telling,
      self.params,
      self.ids,
      spec=self.spec,
      new_tokens=self.lengths,
      key=self.key,
      values=self.values,
      slots=self.slots,
    )

  def advance(self, state: SpecState, steps: int) -> SpecState:
    """At most so many steps further; the state is donated."""
    count = jnp.asarray(steps, jnp.int32)
    placement = self.spec.target.placement
    if placement is not None:
      count = placement.put_whole(count)
    return token_records.generate(
      self.telling, self.params, state, count, spec=self.spec
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


def _check_stages(caller: Callable, stages: dict[str, Any]) -> None:
  """Refuses what is no argument of the caller and no stage of the pipeline."""
  arguments = inspect.signature(caller).parameters
  known = [*arguments, *inspect.signature(sampling.make).parameters]
  stage = {*known} - {'batch', 'vocab_size', 'eos', 'stages'}
  for name in stages:
    if name not in stage:
      close = difflib.get_close_matches(name, stage, 1)
      guess = f' (did you mean {close[0]!r}?)' if close else ''
      raise ValueError(
        f'{caller.__name__} has no argument {name!r}{guess}; it takes '
        f'{", ".join(sorted(stage))}'
      )


def _predictions(
  target: Target, method: Drafter, prompts: list[list[int]], given: Any
) -> list[sampling.Predicted]:
  """What drafts are copied from, for each prompt."""
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
  caller: Callable,
  target: Target,
  drafter: LoadedDrafter | None,
  prompts: str | Sequence[str] | Sequence[Sequence[int]],
  *,
  gamma: int,
  new_tokens: int | Sequence[int],
  temperature: Any,
  seed: int,
  rule: Rule | None,
  regex: Any,
  json_schema: Any,
  prediction: Any,
  stages: dict[str, Any],
  telling: Telling,
  slots: int | None = None,
) -> Prepared:
  """Checks arguments, as `decode` describes them, and chooses a layout.

  Args:
    caller: that has these arguments; messages call it by its name.
    target: as for `decode`, and so all others.
    drafter: likewise.
    prompts: likewise.
    gamma: likewise.
    new_tokens: likewise.
    temperature: likewise.
    seed: likewise.
    rule: likewise.
    regex: likewise.
    json_schema: likewise.
    prediction: likewise.
    stages: what was given besides.
    telling: what is told of each token.
    slots: size of the buffer; by default what the longest prompt needs.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
  """
  _check(target, drafter, rule)
  check_number('gamma', gamma, 1, target.model.config.max_positions)
  check_number('seed', seed, 0, arguments.SEEDS)
  _check_stages(caller, stages)
  ids = arguments.token_ids(target, prompts)
  lengths = arguments.lengths(new_tokens, len(ids))
  method = plain.make() if drafter is None else drafter.make(gamma)
  spec = Spec(target.model, method, rule or rule_for(method), target.eos)
  automata = targets.for_prompts(
    target, len(ids), regex, json_schema, stages.get('constraint')
  )
  stages = stages | {'constraint': automata}
  if prediction is not None:
    stages['prediction'] = _predictions(target, method, ids, prediction)
  key = generate.row_keys(seed, range(len(ids)))
  values = sampling.make(
    len(ids),
    temperature,
    vocab_size=target.model.config.vocab_size,
    eos=target.eos,
    **stages,
  )
  longest = int(lengths.max())
  telling.check(spec)
  fitted = fit(spec, ids, lengths, key, values, slots)
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
    method = with_loaded_target(target, method)
    spec = dataclasses.replace(spec, target=arranged.model, drafter=method)
    params = Params(arranged.params, params)
  return Prepared(
    params, spec, ids, lengths, key, values, fitted.slots, telling
  )


def with_loaded_target(target: Target, drafter: Drafter) -> Drafter:
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


def check_finite(finite: np.ndarray) -> None:
  """Refuses texts that ended because logits were no numbers.

  Args:
    finite: [B] of a state, on the host.

  Raises:
    FloatingPointError: names the first row.
  """
  if not finite.all():
    (rows,) = np.nonzero(~finite)
    raise FloatingPointError(
      f'the target gave NaN or infinite logits in row {rows[0]}: its weights '
      'are damaged, or too large for their dtype'
    )
