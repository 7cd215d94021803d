"""The pools of a pair: their programs are still to be compiled."""

import dataclasses
from typing import Any, NamedTuple

from specjax import verify
from specjax.api import request
from specjax.bench.single_model import Pair
from specjax.drafters import ngram
from specjax.errors import blame
from specjax.loop import buffers
from specjax.loop.token_records import Recording
from specjax.models import cache as caches
from specjax.requests import pool, request_sampling
from specjax.requests.goodput import Goodput
from specjax.sampling import predictions
from specjax.serving.config import Serving
from specjax.serving.fields import Limits
from specjax.types import LoadedDrafter, Params, Spec


class Opened(NamedTuple):
  """A pair whose programs are still to be compiled, and what it may be asked.

  The attributes:
    pair: that answers.
    held: the pool.
    kinds: stages of its requests.
    defaults: values of stages that requests need not give.
    limits: what requests are compared with.
    copying: a pool for requests with a prediction, which drafts out of that;
      None where they are refused.
  """

  pair: Pair
  held: pool.Pool
  kinds: request_sampling.Stages
  defaults: dict[str, Any]
  limits: Limits
  copying: pool.Pool | None = None

  @property
  def pools(self) -> tuple[pool.Pool, ...]:
    return (self.held,) if self.copying is None else (self.held, self.copying)

  @property
  def predicting(self) -> request_sampling.Stages:
    """The stages of requests with a prediction: behind the prompt's end."""
    room = self.limits.predicted + predictions.BEFORE
    return dataclasses.replace(self.kinds, prediction=room)


def open_pools(x: Serving, pair: Pair, model: str) -> Opened:
  """The pools for a pair.

  Args:
    x: the settings, checked.
    pair: that answers.
    model: what clients call it.

  Raises:
    UserError: stages or the sizes of the tables do not fit.
  """
  plan, config = pair.plan, pair.target.model.config
  apart = config.encoder is not None
  whole = pair.room + (0 if apart else plan.max_new_tokens)
  length = min(x.length, whole, config.max_positions)
  gamma = max(x.draft_lengths, default=pair.planned.gammas[0])
  with blame('draft_lengths: '):
    longest = pair.drafter.make(gamma)
  slots = length + 1 + longest.depth + 1 + longest.beyond
  with blame():
    made = request.prepare(
      pair.target,
      pair.drafter,
      [[0]] * x.rows,
      request.Request(
        gamma=gamma,
        new_tokens=min(plan.max_new_tokens, length - 1),
        temperature=1.0,
        rule=pair.rule,
        slots=caches.round_slots(slots),
      ),
    )
    recording = Recording(logprobs=x.logprobs)
    recording.check(made.spec)
    policy = _by_load(x, pair, made.spec) if x.draft_lengths else None
  given = {k: v for k, v in plan.sampling.stages.items() if v is not None}
  names = tuple(dict.fromkeys((*x.stages, *given)))
  with blame():
    kinds = request_sampling.of(
      made.spec, *names, constraint=tuple(x.constraint)
    )
    values = kinds.values(1.0, **given)
  held = pool.Pool(
    made.params,
    spec=made.spec,
    values=values,
    rows=x.rows,
    slots=made.slots,
    source_slots=caches.round_slots(length) if apart else None,
    reads=() if apart else pool.read_sizes(made.slots),
    recording=recording,
    policy=policy,
  )
  limits = Limits(
    model,
    config.vocab_size,
    length,
    apart,
    x.rows,
    x.rows + x.queue,
    plan.max_new_tokens,
    names,
    x.logprobs,
    x.prediction_tokens if x.predictions else 0,
  )
  opened = Opened(pair, held, kinds, given, limits)
  if not x.predictions:
    return opened
  return opened._replace(copying=_copying(x, opened, recording))


def _by_load(x: Serving, pair: Pair, spec: Spec) -> Goodput:
  """The policy of draft lengths, for a target in its layout."""

  def make(length):
    drafter = pair.drafter.make(length)
    if spec.target == pair.target.model:
      return drafter
    return request.with_loaded_target(pair.target, drafter)

  loaded = LoadedDrafter(spec.target, make, pair.drafter.params)
  return Goodput(loaded, x.draft_lengths)


def _copying(x: Serving, opened: Opened, recording: Recording) -> pool.Pool:
  """A pool beside another one, with the same weights of the target."""
  held, drafter = opened.held, ngram.make(x.prediction_gamma)
  spec = dataclasses.replace(held.spec, drafter=drafter, rule=verify.token)
  values = opened.predicting.values(1.0, **opened.defaults)
  slots = buffers.slots_for(spec, opened.limits.length + 1)
  return pool.Pool(
    Params(held.params.target, None),
    spec=spec,
    values=values,
    rows=x.predictions,
    slots=slots,
    source_slots=held.source_slots,
    reads=() if opened.limits.apart else pool.read_sizes(slots),
    recording=recording,
  )
