"""The configuration of a service: an experiment's pair behind an address."""

import dataclasses
from typing import Annotated

from specjax.bench.config import Experiment
from specjax.cli.fields import Between, Count

LENGTH = 2048  # of a service that names no number
Natural = Annotated[int, Between(0)]

STAGES = (
  'top_p',
  'top_k',
  'min_p',
  'frequency_penalty',
  'presence_penalty',
  'repetition_penalty',
  'logit_bias',
  'constraint',
)


@dataclasses.dataclass
class Serving(Experiment):
  """One pair behind an address, for clients of the OpenAI API.

  Attributes:
    host: address to listen at; 0.0.0.0: all that this machine has.
    port: to listen at; 0: any that is free.
    key: name of the environment variable that holds the key of the clients.
    allowed_origins: web pages of others that may ask, such as
      ('http://localhost:3000',); *: all.
    ignore_tools: answer requests with tools as if they had none; otherwise
      they are refused.
    model: what clients call the target; by default its path or directory.
    rows: texts decoded at a time.
    length: tokens of a prompt and its answer; by default 2048, or fewer where a
      model has no positions for so many.
    queue: texts that may wait for a row.
    draft_lengths: to choose from by load, such as (0, 1, 2, 4), see
      `specjax.requests.goodput`; empty: the drafter's own.
    stages: of the pipeline that requests may use besides the temperature;
      constraint is what JSON needs. Each makes a step a little dearer.
    logprobs: of the most probable tokens that requests may ask for, 0 to 20;
      None: without any.
    constraint: states and classes of the largest table of a JSON schema.
    predictions: texts decoded at a time that have a `prediction`, in rows of
      their own; 0: it is refused.
    prediction_tokens: of a prediction, at most.
    prediction_gamma: tokens copied out of a prediction at a time.
    plain: take requests without drafts, too, in as many rows of their own: to
      compare. It costs the memory of these.
    patience: seconds that a request may take to come, and that an answer may
      lie unread.
    body: bytes that a request may have.
    steps: of a turn, where nobody waits or reads along.
    grace: seconds that answers may go on after SIGTERM.
    max_new_tokens: tokens of an answer, where a request does not say.
  """

  host: str = '127.0.0.1'
  port: Annotated[int, Between(0, 65535)] = 8000
  key: str = ''
  allowed_origins: tuple[str, ...] = ()
  ignore_tools: bool = False
  model: str = ''
  rows: Count = 4
  length: Annotated[int, Between(2)] | None = None
  queue: Natural = 64
  draft_lengths: tuple[Natural, ...] = ()
  stages: tuple[str, ...] = STAGES
  logprobs: Annotated[int, Between(0, 20)] | None = 5
  constraint: tuple[int, int] = (1024, 256)
  predictions: Natural = 1
  prediction_tokens: Count = 1024
  prediction_gamma: Count = 8
  plain: bool = True
  patience: Annotated[float, Between(1, 3600)] = 60.0
  body: Count = 2**20
  steps: Count = 4
  grace: Annotated[float, Between(0, 3600)] = 3.0
