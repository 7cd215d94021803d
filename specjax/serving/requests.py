"""Requests of the OpenAI API: read, or refused by the name of a field.

`null` is the same as leaving a field out. Ranges of the sampling stages are
those of `sampling.make`, which checks them later.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from specjax.arguments import is_whole
from specjax.bench.config import Prompts
from specjax.cli.fields import SEEDS
from specjax.errors import UserError
from specjax.prompts import conversations
from specjax.requests.request_sampling import NEUTRAL
from specjax.serving.config import STAGES

_STRINGS, _CHARACTERS = 16, 1000  # of `stop`, at most
OBJECT = 'object'  # stands for the schema of any object

_ERRORS = {
  401: 'authentication_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
}


class Refused(Exception):
  """A request that is not answered.

  Attributes:
    status: of HTTP.
    param: the field of the request that is wrong; None where none is.
    code: a word for programs; None where the API has none.
  """

  def __init__(
    self,
    message: str,
    param: str | None = None,
    status: int = 400,
    code: str | None = None,
  ):
    super().__init__(message)
    self.param, self.status, self.code = param, status, code

  @property
  def body(self) -> dict[str, Any]:
    kind = 'server_error' if self.status >= 500 else 'invalid_request_error'
    kind = _ERRORS.get(self.status, kind)
    error = {'message': str(self), 'type': kind}
    return {'error': error | {'param': self.param, 'code': self.code}}


def _wrong(name: str, message: str) -> Refused:
  """A refusal of a field, which its message begins with."""
  return Refused(f'{name} {message}', name)


class Limits(NamedTuple):
  """The limits of a service that requests are compared with."""

  model: str  # name of the target for clients
  vocab_size: int
  length: int  # tokens of a prompt and its answer
  apart: bool  # an encoder reads prompts, so that each has all the length
  rows: int  # texts that are decoded at a time
  texts: int  # of one request
  new_tokens: int  # of an answer, where a request does not say
  stages: tuple[str, ...]  # that requests may use
  logprobs: int | None = None  # most probable tokens; None: none are given
  predicted: int = 0  # tokens of a prediction; 0: none is taken
  plain: bool = False  # whether requests may go without drafts
  ignore_tools: bool = False  # whether tools are passed over


class Asked(NamedTuple):
  """A request that was read."""

  chat: bool
  prompts: Sequence[Any]  # texts, or token ids; of a chat its messages
  values: Mapping[str, Any]  # of stages, by their names in `sampling.make`
  n: int = 1
  new_tokens: int | None = None
  seed: int | None = None
  stop: tuple[str, ...] = ()
  stream: bool = False
  usage: bool = False  # whether the last part of a stream has it
  schema: str | None = None  # JSON of a schema, or OBJECT
  logprobs: int | None = None  # alternatives of each token
  prediction: str = ''  # what the answers may repeat
  plain: bool = False  # without drafts
  origins: bool = False  # whether the answers tell those of their tokens


_IGNORE = 'describe them in a message, or start the service with ignore_tools'
# Fields that are not served: values that ask for nothing, and a remedy.
_TOOLS: dict[str, tuple[tuple, str]] = {
  'tools': (([],), _IGNORE),
  'tool_choice': (('none', 'auto'), 'leave it out'),
  'parallel_tool_calls': ((True, False), 'leave it out'),
  'functions': (([],), _IGNORE),
  'function_call': (('none', 'auto'), 'leave it out'),
}
_WITHOUT = _TOOLS | {
  'suffix': (('',), 'write the tokens for filling in into the prompt'),
  'echo': ((False,), 'put the prompt before the answer'),
  'best_of': ((1,), 'ask for several with n'),
  'modalities': ((['text'],), 'answers are text'),
  'audio': ((), 'answers are text'),
  'store': ((False,), 'nothing is stored'),
  'reasoning_effort': ((), 'leave it out'),
  'verbosity': ((), 'leave it out'),
  'service_tier': (('auto', 'default'), 'leave it out'),
  'web_search_options': ((), 'nothing is searched'),
}
_IGNORED = ('user', 'metadata', 'safety_identifier', 'prompt_cache_key')
# Fields of stages, and the arguments of `sampling.make` that they are.
_STAGES = {name: name for name in STAGES if name != 'constraint'}
_STAGES['min_tokens'] = 'min_new_tokens'


def _whole(name: str, value: Any, low: int, high: int) -> int:
  if not is_whole(value) or not low <= value <= high:
    raise _wrong(name, f'must be a whole number from {low} to {high}')
  return value


def _number(name: str, value: Any) -> float:
  if not isinstance(value, int | float) or isinstance(value, bool):
    raise _wrong(name, 'must be a number')
  if not -1e37 <= value <= 1e37:
    raise _wrong(name, 'must be a number of ordinary size')
  return value


def _flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise _wrong(name, 'must be true or false')
  return value


def _text(name: str, value: Any) -> str:
  if not isinstance(value, str):
    raise _wrong(name, 'must be a text')
  try:
    value.encode()
  except UnicodeEncodeError:
    message = 'has half of a surrogate pair, which is no text'
    raise _wrong(name, message) from None
  return value


def _object(name: str, value: Any, known: Sequence[str], what: str) -> dict:
  """An object inside a request that has no other fields than the known."""
  if not isinstance(value, dict):
    raise _wrong(name, what)
  for key in value:
    if key not in known:
      there = f'is not known: there are {", ".join(known)}'
      raise _wrong(f'{name}.{key[:60]}', there)
  return value


def _content(name: str, value: Any) -> str:
  """The text of a message: one text, or parts of kind `text`."""
  if not isinstance(value, list):
    return _text(name, value)
  text, what = '', 'must be a text, or parts of type text'
  for part in value:
    if not isinstance(part, dict) or part.get('type') != 'text':
      raise _wrong(name, what)
    part = _object(name, part, ('type', 'text'), what)
    text += _text(name, part.get('text'))
  return text


def _messages(value: Any) -> list[dict[str, str]]:
  if not isinstance(value, list) or not value:
    raise _wrong('messages', 'must be a list of at least one message')
  found = []
  for place, one in enumerate(value):
    at = f'messages[{place}]'
    if isinstance(one, dict):
      one = {key: x for key, x in one.items() if x is not None}
    what = 'must be an object with role and content'
    one = _object(at, one, ('role', 'content'), what)
    role = 'system' if one.get('role') == 'developer' else one.get('role')
    if role not in ('system', 'user', 'assistant'):
      raise _wrong(f'{at}.role', 'must be system, user or assistant')
    content = _content(f'{at}.content', one.get('content'))
    found.append({'role': role, 'content': content})
  return found


def _ids(value: list, vocab_size: int) -> list[int]:
  if not all(is_whole(one) and 0 <= one < vocab_size for one in value):
    raise _wrong('prompt', f'must have token ids from 0 to {vocab_size - 1}')
  return value


def _prompts(value: Any, vocab_size: int) -> list[Any]:
  if isinstance(value, str):
    return [_text('prompt', value)]
  if not isinstance(value, list) or not value:
    raise _wrong('prompt', 'must be a text, token ids, or a list of these')
  if all(isinstance(one, str) for one in value):
    return [_text('prompt', one) for one in value]
  if all(isinstance(one, list) for one in value):
    return [_ids(one, vocab_size) for one in value]
  return [_ids(value, vocab_size)]


def _prediction(value: Any) -> str:
  name, what = 'prediction', 'must be an object of type content, with content'
  if not isinstance(value, dict) or value.get('type') != 'content':
    raise _wrong(name, what)
  value = _object(name, value, ('type', 'content'), what)
  return _content(f'{name}.content', value.get('content'))


def _stop(value: Any) -> tuple[str, ...]:
  strings = [value] if isinstance(value, str) else value
  if not isinstance(strings, list) or len(strings) > _STRINGS:
    raise _wrong('stop', f'must be a text, or a list of up to {_STRINGS}')
  for one in strings:
    if not 0 < len(_text('stop', one)) <= _CHARACTERS:
      raise _wrong('stop', f'must have 1 to {_CHARACTERS} characters')
  return tuple(strings)


def _bias(value: Any, vocab_size: int) -> dict[int, float]:
  name = 'logit_bias'
  if not isinstance(value, dict):
    raise _wrong(name, 'must be an object of token ids')
  for token, bias in value.items():
    if not re.fullmatch('[0-9]{1,9}', token) or int(token) >= vocab_size:
      what = f'has {token[:20]!r}, which is no token id below {vocab_size}'
      raise _wrong(name, what)
    if not abs(_number(name, bias)) <= 100:
      raise _wrong(name, 'must have numbers from -100 to 100')
  return {int(token): bias for token, bias in value.items()}


def _schema(value: Any) -> str | None:
  """The JSON of a schema that the answer has to fulfil."""
  name = 'response_format'
  kind = value.get('type') if isinstance(value, dict) else None
  if kind not in ('text', 'json_object', 'json_schema'):
    raise _wrong(f'{name}.type', 'must be text, json_object or json_schema')
  if kind != 'json_schema':
    _object(name, value, ('type',), '')
    return OBJECT if kind == 'json_object' else None
  _object(name, value, ('type', 'json_schema'), '')
  name, known = f'{name}.json_schema', ('name', 'description', 'schema')
  what = 'must be an object with a schema'
  inner = _object(name, value.get('json_schema'), (*known, 'strict'), what)
  if not isinstance(schema := inner.get('schema'), dict):
    raise _wrong(f'{name}.schema', 'must be an object')
  return json.dumps(schema)


def _usage(value: Any, stream: bool) -> bool:
  """Returns whether the options of a stream ask for its usage."""
  name, what = 'stream_options', 'must be an object'
  if isinstance(value, dict) and not stream:
    raise _wrong(name, 'is for stream alone')
  known = 'include_usage', 'include_obfuscation'
  given = _object(name, value, known, what)
  if given.get('include_obfuscation'):
    raise _wrong(f'{name}.include_obfuscation', 'is not served')
  return _flag(f'{name}.include_usage', given.get('include_usage', False))


def _values(take: Callable, limits: Limits) -> dict[str, Any]:
  """Values of the temperature and of stages, by their names there."""
  temperature = take('temperature')
  found: dict[str, Any] = {'temperature': 1.0}
  if temperature is not None:
    found['temperature'] = _number('temperature', temperature)
  for field, stage in _STAGES.items():
    if (value := take(field)) is None:
      continue
    if field == 'logit_bias':
      value = _bias(value, limits.vocab_size)
    else:
      value = _number(field, value)
    if field == 'top_k':  # More tokens than there are: all of them.
      value = 0 if value == -1 else min(value, limits.vocab_size)
    if field == 'min_tokens':
      value = _whole(field, value, 0, limits.length)
    if stage in limits.stages:
      found[stage] = value  # Another default of the service may change much.
    elif value != NEUTRAL[stage]:
      raise _wrong(field, f'is not served: stages has no {stage}')
  return found


def _logprobs(take: Callable, chat: bool, limits: Limits) -> int | None:
  """How many alternatives of each token are given; None: nothing."""
  asked, field = take('logprobs'), 'logprobs'
  wanted, count = asked is not None and asked is not False, asked
  if chat:
    count, field = take('top_logprobs'), 'top_logprobs'
    wanted = asked is not None and _flag('logprobs', asked)
    if not wanted and count is not None:
      raise _wrong(field, 'needs logprobs to be true')
    count = count or 0
  if not wanted:
    return None
  if limits.logprobs is None:
    raise _wrong('logprobs', 'are not told: the service has none')
  return _whole(field, count, 0, limits.logprobs)


def _no_constant(name: str) -> NoReturn:
  raise Refused(f'the body is no JSON: {name} is none of its numbers')


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)[:60]
    raise Refused(f'the body has {twice!r} twice in an object', twice)
  return found


def _load(body: bytes) -> dict[str, Any]:
  """The object that a body is."""
  try:
    given = json.loads(
      body.decode(), parse_constant=_no_constant, object_pairs_hook=_object_of
    )
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
    limits: of the service.

  Raises:
    Refused: a field is unknown, missing, wrong or not served; names it.
  """
  given = _load(body)

  def take(name: str, check: Callable = lambda x: x, default: Any = None):
    """A field, checked, which is then left out of what is left over."""
    value = given.pop(name, None)
    return default if value is None else check(value)

  def whole(name: str, low: int, high: int, default: int | None = None) -> Any:
    return take(name, lambda x: _whole(name, x, low, high), default)

  model = take('model', lambda x: _text('model', x), limits.model)
  if model != limits.model:
    message = f'model {model[:100]!r} is not served: {limits.model!r} is'
    raise Refused(message, 'model', 404, 'model_not_found')
  source = 'messages' if chat else 'prompt'
  if source not in given:
    raise _wrong(source, 'is missing')
  value = take(source)
  prompts = [_messages(value)] if chat else _prompts(value, limits.vocab_size)
  n = whole('n', 1, limits.rows, 1)
  if n * len(prompts) > limits.texts:
    raise _wrong(source, f'and n ask for more than {limits.texts} texts')
  names = ['max_tokens', *(['max_completion_tokens'] if chat else [])]
  sizes = {whole(name, 1, limits.length) for name in names} - {None}
  if len(sizes) > 1:
    raise _wrong('max_tokens', 'and max_completion_tokens differ')
  seed = whole('seed', 0, SEEDS - 1)
  stop = take('stop', _stop, ())
  stream = take('stream', lambda x: _flag('stream', x), False)
  usage = take('stream_options', lambda x: _usage(x, stream), False)
  schema = take('response_format', _schema)
  if schema is not None and 'constraint' not in limits.stages:
    raise _wrong('response_format', 'is not served: stages has no constraint')
  values = _values(take, limits)
  logprobs = _logprobs(take, chat, limits)
  prediction = take('prediction', _prediction, '')
  if prediction and not limits.predicted:
    raise _wrong(
      'prediction', 'is not served: start the service with predictions above 0'
    )
  plain = take('plain', lambda x: _flag('plain', x), False)
  if plain and not limits.plain:
    raise _wrong('plain', 'is not served: start the service with plain')
  if plain and prediction:
    raise _wrong('plain', 'means without drafts: leave out prediction')
  origins = take('origins', lambda x: _flag('origins', x), False)
  for name, value in given.items():
    if name in _IGNORED or (limits.ignore_tools and name in _TOOLS):
      continue
    if name not in _WITHOUT:
      raise _wrong(name[:60], 'is not known')
    nothing, remedy = _WITHOUT[name]
    if not any(type(x) is type(value) and x == value for x in nothing):
      raise _wrong(name, f'is not served: {remedy}')
  new_tokens = next(iter(sizes), None)
  said = n, new_tokens, seed, stop, stream, usage, schema, logprobs
  return Asked(chat, prompts, values, *said, prediction, plain, origins)


def _plainly(messages: Sequence[Mapping[str, str]]) -> str:
  """A conversation that goes on as text: an empty line before what is asked."""
  text = ''
  for one in messages:
    gap = '\n\n' if text and one['role'] != 'assistant' else ''
    text += gap + one['content']
  return text


def _write(tokenizer: Any, form: Prompts, one: Any) -> list[int]:
  """The token ids of a prompt, or of the messages of a conversation."""
  if isinstance(one, list) and one and isinstance(one[0], dict):
    if form.chat:
      try:
        return conversations.write(tokenizer, form, one)
      except UserError as error:
        raise Refused(f'messages: {error}', 'messages') from error
    one = _plainly(one)
  if isinstance(one, str):
    return conversations.encode(tokenizer, Prompts(), [one])
  return list(one)


def encode(
  tokenizer: Any, form: Prompts, asked: Asked, limits: Limits
) -> list[list[int]]:
  """The token ids of each prompt of a request.

  Raises:
    Refused: one is empty or too long, or the chat template refuses it.
  """
  name = 'messages' if asked.chat else 'prompt'
  new = asked.new_tokens or 1
  room = limits.length - (0 if limits.apart else new)
  found = []
  for one in asked.prompts:
    ids = _write(tokenizer, form, one)
    if not ids:
      raise Refused(f'{name} is empty', name)
    if len(ids) > room:
      raise Refused(
        f'{name} has {len(ids)} tokens, and the answer may have {new}: there '
        f'is room for {limits.length} together',
        name if len(ids) >= limits.length else 'max_tokens',
        code='context_length_exceeded',
      )
    if max(ids) >= limits.vocab_size:
      raise Refused(f'{name} has a token that the target does not know', name)
    found.append(ids)
  return found


def encode_prediction(
  tokenizer: Any, asked: Asked, limits: Limits
) -> list[int]:
  """The token ids of a prediction; none where there is none.

  Raises:
    Refused: it is too long.
  """
  text, most, name = asked.prediction, limits.predicted, 'prediction'
  ids = tokenizer.encode(text, add_special_tokens=False) if text else []
  if len(ids) > most:
    raise Refused(
      f'{name} has {len(ids)} tokens, of which {most} are taken: shorten it, '
      'or start the service with more prediction_tokens',
      name,
    )
  return ids
