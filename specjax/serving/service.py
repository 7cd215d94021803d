"""A service: the pools of a pair, and requests on their way through them."""

import asyncio
import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax import sampling, verify
from specjax.api import request as api
from specjax.bench.single_model import Pair
from specjax.cli.fields import SEEDS
from specjax.drafters import ngram, plain
from specjax.errors import blame, need
from specjax.loop import buffers, generate
from specjax.models import cache as caches
from specjax.requests import pool, request_sampling
from specjax.requests.goodput import Goodput
from specjax.sampling import Automaton, predictions
from specjax.serving import requests
from specjax.serving.config import LENGTH, Serving
from specjax.serving.replies import Spelled
from specjax.serving.requests import Asked, Limits, Refused
from specjax.serving.schemas import Compiled
from specjax.serving.worker import Counters, Piece, Text, Worker
from specjax.types import Drafter, LoadedDrafter, Params, Sampling, Spec

# First word of a message of the library: the field of the request.
_FIELDS = {
  'min_new_tokens': 'min_tokens',
  'forbidden': 'response_format',
  'constraint': 'response_format',
  'new_tokens': 'max_tokens',
}


class Opened(NamedTuple):
  """The pools of a pair, whose programs are still to be compiled.

  The attributes:
    pair: that answers.
    held: the pool.
    kinds: stages of its requests.
    defaults: values of stages that requests need not give.
    limits: of requests.
    copying: a pool for requests with a prediction, which drafts out of that;
      None where they are refused.
    plain: a pool for requests without drafts; None where they are refused.
  """

  pair: Pair
  held: pool.Pool
  kinds: request_sampling.Stages
  defaults: dict[str, Any]
  limits: Limits
  copying: pool.Pool | None = None
  plain: pool.Pool | None = None

  @property
  def pools(self) -> tuple[pool.Pool, ...]:
    all_pools = self.held, self.copying, self.plain
    return tuple(one for one in all_pools if one is not None)

  @property
  def predicting(self) -> request_sampling.Stages:
    """The stages of requests with a prediction: behind the prompt's end."""
    room = self.limits.predicted + predictions.BEFORE
    return dataclasses.replace(self.kinds, prediction=room)


def open_pools(x: Serving, pair: Pair, model: str) -> Opened:
  """The pools of a pair.

  Args:
    x: the settings, checked.
    pair: that answers.
    model: what clients call it.

  Raises:
    UserError: stages, the length or the sizes of the tables do not fit.
  """
  plan, config = pair.plan, pair.target.model.config
  apart = config.encoder is not None
  whole = pair.room + (0 if apart else plan.max_new_tokens)
  most = min(whole, config.max_positions)
  length = x.length or min(LENGTH, most)
  need(
    length <= most,
    f'length is {length}, but target and draft have room for {most} tokens of '
    f'prompt and answer: choose at most {most}, or leave it out',
  )
  gamma = max(x.draft_lengths, default=pair.planned.gammas[0])
  with blame('draft_lengths: '):
    longest = pair.drafter.make(gamma)
  given = {k: v for k, v in plan.sampling.stages.items() if v is not None}
  names = tuple(dict.fromkeys((*x.stages, *given)))
  # Behind an encoder an answer begins with a token of its own.
  limit = length + apart
  slots = buffers.slots_for(Spec(pair.target.model, longest, pair.rule), limit)
  with blame():
    made = api.prepare(
      pair.target,
      pair.drafter,
      [[0]] * x.rows,
      api.Request(
        gamma=gamma,
        new_tokens=min(plan.max_new_tokens, length - 1),
        rule=pair.rule,
        logprobs=x.logprobs,
        slots=slots,
      ),
      origins=True,
    )
    policy = _by_load(x, pair, made.spec) if x.draft_lengths else None
    kinds = request_sampling.of(
      made.spec, *names, constraint=tuple(x.constraint)
    )
    values = kinds.values(**given)
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
    x.plain,
    x.ignore_tools,
  )

  def open_one(params: Params, spec: Spec, rows: int, **options):
    slots = buffers.slots_for(spec, limit)
    return pool.Pool(
      params,
      spec=spec,
      rows=rows,
      slots=slots,
      source_slots=caches.round_slots(length) if apart else None,
      reads=() if apart else pool.read_sizes(slots),
      recording=made.recording,
      **options,
    )

  held = open_one(made.params, made.spec, x.rows, values=values, policy=policy)
  opened = Opened(pair, held, kinds, given, limits)

  def open_without_draft(drafter: Drafter, rows: int, values: Sampling):
    spec = dataclasses.replace(made.spec, drafter=drafter, rule=verify.token)
    params = Params(made.params.target, None)
    return open_one(params, spec, rows, values=values)

  if x.predictions:
    values_of_copies = opened.predicting.values(**given)
    drafter = ngram.make(x.prediction_gamma)
    copying = open_without_draft(drafter, x.predictions, values_of_copies)
    opened = opened._replace(copying=copying)
  if x.plain:  # As many rows: a step costs the same, and speeds compare.
    alone = open_without_draft(plain.make(), x.rows, values)
    opened = opened._replace(plain=alone)
  return opened


def _by_load(x: Serving, pair: Pair, spec: Spec) -> Goodput:
  """The policy of draft lengths, for a target in its layout."""

  def make(length):
    drafter = pair.drafter.make(length)
    if spec.target == pair.target.model:
      return drafter
    return api.with_loaded_target(pair.target, drafter)

  loaded = LoadedDrafter(spec.target, make, pair.drafter.params)
  return Goodput(loaded, x.draft_lengths)


def _refusal(error: ValueError) -> Refused:
  """An error of the library, by the name of the field of the request."""
  message = str(error)
  name = re.split(r'\W', message)[0]
  field = _FIELDS.get(name, name)
  if field != name:
    message = f'{field}: {message}'
  return Refused(message, field)


def _any_text(vocab_size: int, eos: Sequence[int]) -> Automaton:
  """The automaton that allows all texts."""
  classes = np.zeros(vocab_size, np.int16)
  classes[[*eos]] = 1
  after = np.array([[0, 1], [-1, 1]], np.int16)
  return Automaton('any text', classes, after, tuple(eos), '')


class Run:
  """A request that is answered, and the pieces of its texts.

  Attributes:
    asked: what was asked.
    texts: one for each answer, those to one prompt beside each other.
    prompt_tokens: of all prompts.
    seed: that makes the same answers again.
    created: seconds since 1970.
  """

  def __init__(self, service: 'Service', asked: Asked, count: int):
    self._service, self._count = service, count
    self._came: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
    self._loop = asyncio.get_running_loop()
    self._open = True
    self.asked, self.created = asked, int(time.time())
    self.began = time.monotonic()
    self.texts: list[Text] = []
    self.prompt_tokens = self.seed = 0

  def tell(self, place: int, piece: Piece) -> None:
    """Passes on what came; in the thread of the worker."""
    # The only such error is that of a closed loop, which has no readers.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(self._came.put_nowait, (place, piece))

  async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
    """The pieces of each text, with its place, until all have ended.

    Raises:
      Refused: one cannot go on.
    """
    left = len(self.texts)
    while left:
      place, piece = await self._came.get()
      if piece.error is not None:
        raise piece.error
      left -= bool(piece.finish)
      yield place, piece

  def close(self) -> None:
    """Frees the rows, if any are still in use; may be called twice."""
    if self._open:
      self._open = False
      self._service.taken -= self._count
      if self.texts:
        self._service.worker.cancel(self.texts)

  @property
  def depth(self) -> int:
    """Most tokens of a draft."""
    return self._service.pool_for(self.asked).spec.drafter.depth


class Service:
  """Answers requests; it belongs to one event loop."""

  def __init__(self, opened: Opened, steps: int):
    """Takes pools, and the steps of a turn."""
    self._opened, self.limits = opened, opened.limits
    pools, target = opened.pools, opened.pair.target
    # Each thread has a tokenizer of its own, the worker's the target's.
    self._tokenizer, shown, compiling = (
      copy.deepcopy(target.tokenizer) for _ in range(3)
    )
    depth = max(held.spec.drafter.depth for held in pools)
    self.counters = Counters(self.limits.model, depth)
    self.worker = Worker(pools, self.counters, steps)
    self.spelled = Spelled(shown, self.limits.vocab_size)
    self._schemas = Compiled(compiling, self.limits.vocab_size, target.eos)
    self._compiling: set[asyncio.Task] = set()
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'prepare')
    self.taken = 0
    self.draining = False

  def start(self) -> None:
    """Compiles all that requests will run, and begins to take them."""
    for held in self._opened.pools:
      held.warm_up()
    # What the host makes of values compiles, too.
    names = self.limits.stages
    values = {'logit_bias': {0: 1.0}} if 'logit_bias' in names else {}
    eos, free = self._opened.held.spec.eos, None
    if 'constraint' in names and eos:
      free = _any_text(self.limits.vocab_size, eos)
    asked = Asked(False, [[0]], values | {'temperature': 1.0}, new_tokens=1)
    self._prepare(asked, free, 0)
    self.worker.start()

  def pool_for(self, asked: Asked) -> pool.Pool:
    """The pool whose rows a request gets."""
    x = self._opened
    chosen = x.copying if asked.prediction else x.plain if asked.plain else None
    return chosen or x.held

  @property
  def described(self) -> dict[str, Any]:
    """The requests that are taken, and the rows of a step, for clients."""
    return {
      'chat': self._opened.pair.form.chat,
      'plain': self.limits.plain,
      'json_schema': 'constraint' in self.limits.stages,
      'rows': self.limits.rows,
    }

  def close(self) -> None:
    """Ends whatever goes on with an error, and the threads."""
    self.draining = True
    self.worker.close()
    self._thread.shutdown(wait=False, cancel_futures=True)

  def abort(self) -> None:
    """Ends whatever goes on with an error."""
    self.worker.abort()
    for task in self._compiling:
      task.cancel()

  def check(self) -> None:
    """Refuses where no request is taken any more.

    Raises:
      Refused: says why.
    """
    if self.worker.failure is not None:
      raise Refused('the service has failed: start it again', status=503)
    if self.draining:
      raise Refused('the service is stopping', status=503)

  async def open(self, asked: Asked) -> Run:
    """Takes a request; the caller closes it.

    Raises:
      Refused: too many wait, or a field of it is wrong.
    """
    self.check()
    count = asked.n * len(asked.prompts)
    if self.taken + count > self.limits.texts:
      raise Refused(
        f'{self.taken} texts are prepared, decoded or wait, and {count} more '
        f'are too many: there is room for {self.limits.texts}',
        status=429,
        code='queue_full',
      )
    self.taken += count
    run = Run(self, asked, count)
    try:
      await self._fill(run)
    except BaseException:
      run.close()
      raise
    return run

  async def _fill(self, run: Run) -> None:
    asked, constraint = run.asked, None
    if asked.schema is not None:
      constraint = await self._compile(asked.schema)
    seed = secrets.randbelow(SEEDS) if asked.seed is None else asked.seed
    made = await run._loop.run_in_executor(
      self._thread, self._prepare, asked, constraint, seed
    )
    self.check()
    run.seed = seed
    run.prompt_tokens = sum(len(one.prompt) for one in made[:: asked.n])
    run.texts = [
      Text(
        request,
        functools.partial(run.tell, place),
        self._opened.pair.target,
        asked,
        run.began,
      )
      for place, request in enumerate(made)
    ]
    self.worker.submit(run.texts, self.pool_for(asked))

  async def _compile(self, schema: str) -> Automaton:
    task = asyncio.create_task(self._schemas.of(schema))
    self._compiling.add(task)
    try:
      return await task
    except asyncio.CancelledError:
      self.check()  # Where the service ends no client has left.
      raise
    finally:
      self._compiling.discard(task)

  def _prepare(
    self, asked: Asked, constraint: Automaton | None, seed: int
  ) -> Sequence[pool.Request]:
    """The requests of the pool: n for each prompt.

    Raises:
      Refused: names the field that is wrong.
    """
    x, limits, tokenizer = self._opened, self.limits, self._tokenizer
    prompts = requests.encode(tokenizer, x.pair.form, asked, limits)
    given = {**x.defaults, **asked.values}
    predicts = bool(asked.prediction)
    kinds = x.predicting if predicts else x.kinds
    source = requests.encode_prediction(tokenizer, asked, limits)
    if constraint is not None:
      given['constraint'] = constraint
    held = self.pool_for(asked)
    found: list[pool.Request] = []
    try:
      values = kinds.values(**given)
      for ids in prompts:
        if predicts:
          begun = [] if limits.apart else ids
          row = kinds.predicted(sampling.behind(begun, source))
          values = values._replace(prediction=row)
        most = limits.length - (0 if limits.apart else len(ids))
        new = asked.new_tokens or min(limits.new_tokens, most)
        for _ in range(asked.n):
          key = generate.row_keys(seed, [len(found)])
          found.append(pool.Request(ids, new, key, values))
        buffers.plan_buffers(
          held.spec, [ids], new, key, values, held.slots, held.source_slots
        )
    except ValueError as error:
      raise _refusal(error) from error
    return found
