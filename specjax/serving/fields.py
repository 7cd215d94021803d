"""What a request may say: every field is taken, or refused by its name.

`null` is the same as leaving a field out. Ranges of the stages are those of
`sampling.make`, which is asked later.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from specjax.serving import contents, kinds
from specjax.serving.refusals import Refused, of_field

_SEEDS = 2**63
_STRINGS, _CHARACTERS = 16, 1000  # of `stop`, at most
OBJECT = 'object'  # stands for the schema of any object


class Limits(NamedTuple):
  """What requests are compared with.

  The attributes:
    model: what clients call the target.
    vocab_size: V.
    length: tokens of a prompt and its answer, at most.
    apart: whether an encoder reads prompts, so that each has all the length.
    rows: texts that are decoded at a time.
    texts: of one request, at most.
    new_tokens: of an answer, where a request does not say.
    stages: that requests may use.
    logprobs: of the most probable tokens, at most; None: none are told.
    predicted: tokens of a prediction, at most; 0: none is taken.
  """

  model: str
  vocab_size: int
  length: int
  apart: bool
  rows: int
  texts: int
  new_tokens: int
  stages: tuple[str, ...]
  logprobs: int | None = None
  predicted: int = 0


class Asked(NamedTuple):
  """A request that was read."""

  chat: bool
  prompts: Sequence[Any]  # texts, or token ids; of a chat its messages
  values: Mapping[str, Any]  # of stages, by their names in `stages`
  n: int = 1
  new_tokens: int | None = None
  seed: int | None = None
  stop: tuple[str, ...] = ()
  stream: bool = False
  usage: bool = False  # whether the last part of a stream has it
  schema: str | None = None  # JSON of a schema, or OBJECT
  logprobs: int | None = None  # alternatives of each token
  prediction: str = ''  # what the answers may repeat


# Not served, with values that ask for nothing and what to do instead.
_WITHOUT: dict[str, tuple[tuple, str]] = {
  'suffix': (('',), 'write the tokens for filling in into the prompt'),
  'echo': ((False,), 'put the prompt before the answer'),
  'best_of': ((1,), 'ask for several with n'),
  'tools': (([],), 'describe them in a message'),
  'tool_choice': (('none', 'auto'), 'leave it out'),
  'parallel_tool_calls': ((True, False), 'leave it out'),
  'functions': (([],), 'describe them in a message'),
  'function_call': (('none', 'auto'), 'leave it out'),
  'modalities': ((['text'],), 'answers are text'),
  'audio': ((), 'answers are text'),
  'store': ((False,), 'nothing is stored'),
  'reasoning_effort': ((), 'leave it out'),
  'verbosity': ((), 'leave it out'),
  'service_tier': (('auto', 'default'), 'leave it out'),
  'web_search_options': ((), 'nothing is searched'),
}
# Field: the stage of `sampling.make` that it is.
_STAGES = {
  'top_p': 'top_p',
  'top_k': 'top_k',
  'min_p': 'min_p',
  'frequency_penalty': 'frequency_penalty',
  'presence_penalty': 'presence_penalty',
  'repetition_penalty': 'repetition_penalty',
  'logit_bias': 'logit_bias',
  'min_tokens': 'min_new_tokens',
}
# Values of them that change nothing: they need no stage.
_NEUTRAL = {'top_p': 1, 'repetition_penalty': 1}
_IGNORED = ('user', 'metadata', 'safety_identifier', 'prompt_cache_key')


def _stop(name: str, value: Any) -> tuple[str, ...]:
  strings = [value] if isinstance(value, str) else value
  if not isinstance(strings, list) or len(strings) > _STRINGS:
    raise of_field(name, f'must be a text, or a list of up to {_STRINGS}')
  for one in strings:
    if not 0 < len(kinds.text(name, one)) <= _CHARACTERS:
      raise of_field(name, f'must have 1 to {_CHARACTERS} characters')
  return tuple(strings)


def _bias(value: Any, vocab_size: int) -> dict[int, float]:
  if not isinstance(value, dict):
    raise of_field('logit_bias', 'must be an object of token ids')
  found = {}
  for token, bias in value.items():
    # Of other digits `int` takes some too.
    if not (token.isascii() and token.isdigit() and len(token) < 10):
      raise of_field('logit_bias', f'has {token[:20]!r}, which is no token id')
    if int(token) >= vocab_size:
      raise of_field(
        'logit_bias', f'has token {token}: there are {vocab_size} tokens'
      )
    if not abs(kinds.number('logit_bias', bias)) <= 100:
      raise of_field('logit_bias', 'must have numbers from -100 to 100')
    found[int(token)] = bias
  return found


def _schema(value: Any) -> str | None:
  """The JSON of a schema that the answer has to fulfil."""
  name = 'response_format'
  kind = value.get('type') if isinstance(value, dict) else None
  if kind == 'text':
    kinds.know(name, value, ('type',))
    return None
  if kind == 'json_object':
    kinds.know(name, value, ('type',))
    return OBJECT
  if kind != 'json_schema':
    raise of_field(f'{name}.type', 'must be text, json_object or json_schema')
  kinds.know(name, value, ('type', 'json_schema'))
  inner, name = value.get('json_schema'), f'{name}.json_schema'
  if not isinstance(inner, dict):
    raise of_field(name, 'must be an object with a schema')
  kinds.know(name, inner, ('name', 'description', 'schema', 'strict'))
  schema = inner.get('schema')
  if not isinstance(schema, dict):
    raise of_field(f'{name}.schema', 'must be an object')
  return json.dumps(schema)


def _options(given: Any, stream: bool) -> bool:
  name = 'stream_options'
  if not isinstance(given, dict):
    raise of_field(name, 'must be an object')
  if not stream:
    raise of_field(name, 'is for stream alone')
  kinds.know(name, given, ('include_usage', 'include_obfuscation'))
  if given.get('include_obfuscation'):
    raise of_field(f'{name}.include_obfuscation', 'is not served')
  return kinds.flag(f'{name}.include_usage', given.get('include_usage', False))


def _values(take: Callable, limits: Limits) -> dict[str, Any]:
  """Values of the temperature and of stages, by their names there."""
  temperature = take('temperature')
  found: dict[str, Any] = {'temperature': 1.0}
  if temperature is not None:
    found['temperature'] = kinds.number('temperature', temperature)
  for field, stage in _STAGES.items():
    value = take(field)
    if field == 'logit_bias' and value is not None:
      value = _bias(value, limits.vocab_size) or None
    elif value is not None:
      value = kinds.number(field, value)
      if field == 'top_k':  # More tokens than there are: all of them.
        value = 0 if value == -1 else min(value, limits.vocab_size)
      if field == 'min_tokens':
        value = kinds.whole(field, value, 0, limits.length)
      if value == _NEUTRAL.get(field, 0):
        value = None
    if value is None:
      continue
    if stage not in limits.stages:
      raise of_field(field, f'is not served: stages has no {stage}')
    found[stage] = value
  return found


def _logprobs(take: Callable, chat: bool, limits: Limits) -> int | None:
  """How many alternatives of each token are told; None: nothing."""
  asked, count = take('logprobs'), take('top_logprobs') if chat else None
  field = 'top_logprobs' if chat else 'logprobs'
  if chat:
    wanted = asked is not None and kinds.flag('logprobs', asked)
    if not wanted and count is not None:
      raise of_field('top_logprobs', 'needs logprobs to be true')
    count = count or 0
  else:
    wanted, count = asked is not None and asked is not False, asked
  if not wanted:
    return None
  if limits.logprobs is None:
    raise of_field('logprobs', 'are not told: the service has none')
  return kinds.whole(field, count, 0, limits.logprobs)


def _no_constant(name: str) -> NoReturn:
  raise Refused(f'the body is no JSON: {name} is none of its numbers')


def load(body: bytes) -> dict[str, Any]:
  """The object that a body is.

  Raises:
    Refused: it is none.
  """
  try:
    given = json.loads(body.decode(), parse_constant=_no_constant)
  except UnicodeDecodeError:
    raise Refused('the body is not UTF-8') from None
  except RecursionError:
    raise Refused('the body is nested too deeply') from None
  except ValueError as error:
    raise Refused(f'the body is no JSON: {error}') from None
  if not isinstance(given, dict):
    raise Refused('the body must be a JSON object')
  return {name: x for name, x in given.items() if x is not None}


def read(body: bytes, chat: bool, limits: Limits) -> Asked:
  """Reads a request.

  Args:
    body: JSON.
    chat: whether it has messages; otherwise a prompt.
    limits: what it is compared with.

  Raises:
    Refused: a field is unknown, missing, wrong or not served; names it.
  """
  given = load(body)

  def take(name):
    return given.pop(name, None)

  model = take('model')
  if model is not None and kinds.text('model', model) != limits.model:
    raise Refused(
      f'model {model[:100]!r} is not served: {limits.model!r} is',
      'model',
      404,
      'model_not_found',
    )
  source = 'messages' if chat else 'prompt'
  if source not in given:
    raise of_field(source, 'is missing')
  value = take(source)
  vocab_size = limits.vocab_size
  prompts = (
    [contents.messages(value)] if chat else contents.prompts(value, vocab_size)
  )
  n = 1 if (n := take('n')) is None else kinds.whole('n', n, 1, limits.rows)
  if n * len(prompts) > limits.texts:
    raise of_field(source, f'and n ask for more than {limits.texts} texts')
  sizes = {}
  for name in ('max_tokens', *(['max_completion_tokens'] if chat else [])):
    if (size := take(name)) is not None:
      sizes[name] = kinds.whole(name, size, 1, limits.length)
  if len({*sizes.values()}) > 1:
    raise of_field('max_tokens', 'and max_completion_tokens differ')
  if (seed := take('seed')) is not None:
    kinds.whole('seed', seed, -_SEEDS, _SEEDS - 1)
  stop = () if (stop := take('stop')) is None else _stop('stop', stop)
  stream = (value := take('stream')) is not None and kinds.flag('stream', value)
  options = take('stream_options')
  usage = options is not None and _options(options, stream)
  wanted = take('response_format')
  schema = None if wanted is None else _schema(wanted)
  if schema is not None and 'constraint' not in limits.stages:
    raise of_field('response_format', 'is not served: stages has no constraint')
  values = _values(take, limits)
  logprobs = _logprobs(take, chat, limits)
  predicted = take('prediction')
  prediction = '' if predicted is None else contents.prediction(predicted)
  if prediction and not limits.predicted:
    raise of_field(
      'prediction', 'is not served: start the service with predictions above 0'
    )
  for name in _IGNORED:
    take(name)
  _refuse_others(given)
  new_tokens = next(iter(sizes.values()), None)
  said = n, new_tokens, seed, stop, stream, usage, schema, logprobs, prediction
  return Asked(chat, prompts, values, *said)


def _refuse_others(given: Mapping[str, Any]) -> None:
  for name, value in given.items():
    if name not in _WITHOUT:
      raise of_field(name[:60], 'is not known')
    nothing, remedy = _WITHOUT[name]
    if not any(type(x) is type(value) and x == value for x in nothing):
      raise of_field(name, f'is not served: {remedy}')
