"""Requests as they are read: every field is taken, or refused by its name."""

import asyncio
import contextlib
import gc
import json
import re
import threading
import types

import pytest

from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.loop.token_records import Logprob
from specjax.prompts import conversations
from specjax.serving import replies, requests, schemas
from specjax.serving.requests import Refused

STAGES = 'top_p', 'top_k', 'constraint'
LIMITS = requests.Limits('tiny', 2048, 128, False, 3, 9, 16, STAGES, 5)
SCHEMA = {'type': 'boolean'}
FORMAT = {'type': 'json_schema', 'json_schema': {'name': 'a', 'schema': SCHEMA}}


def body(**given):
  return json.dumps({'prompt': 'a'} | given).encode()


def completion(limits=LIMITS, **given):
  return requests.read(body(**given), False, limits)


def chat(*said, limits=LIMITS, **given):
  roles = ('user', 'assistant')
  messages = [
    {'role': roles[i % 2], 'content': text} for i, text in enumerate(said)
  ]
  sent = json.dumps({'messages': messages} | given).encode()
  return requests.read(sent, True, limits)


@contextlib.contextmanager
def refused(param, says=None):
  """Expects that what is read inside is refused by the name of a field."""
  with pytest.raises(Refused, match=says or f'^{re.escape(param)}') as error:
    yield error
  assert error.value.param == param


def test_a_completion_with_all_that_it_may_have():
  sampled = {'temperature': 0.5, 'top_p': 0.9, 'top_k': 40}
  given = {'n': 2, 'max_tokens': 5, 'seed': 3, 'stop': ['a', 'b']}
  given |= {'stream': True, 'stream_options': {'include_usage': True}}
  passed_over = {'model': 'tiny', 'user': 'me', 'metadata': {'a': 'b'}}
  asked = completion(**sampled, **given, **passed_over, response_format=FORMAT)
  assert asked == requests.Asked(
    *(False, ['a'], sampled), n=2, new_tokens=5, seed=3, stop=('a', 'b'),
    stream=True, usage=True, schema=json.dumps(SCHEMA),
  )  # fmt: skip


def test_what_is_left_out_is_as_clients_expect_it():
  asked = completion()
  assert asked == requests.Asked(False, ['a'], {'temperature': 1.0})
  names = *requests._WITHOUT, *requests._STAGES, 'n'
  assert completion(**dict.fromkeys(names)) == asked
  # Values that ask for nothing are taken.
  neutral = {
    'top_p': 1, 'min_p': 0, 'top_k': -1, 'presence_penalty': 0.0,
    'frequency_penalty': 0, 'repetition_penalty': 1.0, 'logit_bias': {},
    'tools': [], 'logprobs': False, 'echo': False, 'best_of': 1, 'suffix': '',
    'store': False, 'n': 1, 'min_tokens': 0,
    'response_format': {'type': 'text'},
  }  # fmt: skip
  # Where a stage is served they are kept: its default may be another one.
  values = {'temperature': 1.0, 'top_p': 1, 'top_k': 0}
  assert completion(**neutral) == requests.Asked(False, ['a'], values)
  assert completion(LIMITS._replace(stages=()), **neutral) == asked
  # A prompt is a text or token ids, or a list of these.
  for prompt in ('a', ['a', 'b'], [1, 2], [[1], [2, 3]]):
    wanted = [prompt] if prompt in ('a', [1, 2]) else prompt
    assert completion(prompt=prompt).prompts == wanted


WRONG = {
  'prompt': [
    *(3, [], [1, 'a'], [[1], 2], [2048], [-1], [True], '\ud800', ['a'] * 10)
  ],
  'model': ['gpt', 3],
  'n': [4, 0, True, 1.5],
  'max_tokens': [0, '5'],
  'max_completion_tokens': [5],
  'temperature': ['hot', True, 10**40, 1.5e37, -1.5e37],
  'top_p': [[1]],
  'min_p': [0.1],
  'min_tokens': [3],
  'logit_bias': [
    *({token: 1} for token in ('3', '', 'x', '-1', '\u0663', '2048')),
    *({'9' * count: 1} for count in (10, 5000)),
    {'3': 101},
    [3],
  ],
  'seed': [1.0, -1, 2**32],
  'stop': ['', [3], ['a'] * 17, 'a' * 1001],
  'stream': [1],
  'stream_options': [{}, 3],
  'logprobs': [6, True],
  'top_logprobs': [3],
  'prediction': [{}, {'type': 'content', 'content': 'a'}],
  'plain': [1, 'yes', True],
  'origins': [1, 'yes'],
  'suffix': ['b'],
  'echo': [True, 0],
  'best_of': [2],
  'store': [True],
  'tools': [[{}]],
  'messages': [[]],
  'foo': [1],
}
JSON = {'type': 'json_schema'}
INSIDE = (
  ({'user': 'me', 'foo': 1}, 'foo'),
  ({'stream': True, 'stream_options': {'a': 1}}, 'stream_options.a'),
  (
    {'stream': True, 'stream_options': {'include_obfuscation': True}},
    'stream_options.include_obfuscation',
  ),
  ({'response_format': {'type': 'text', 'a': 1}}, 'response_format.a'),
  ({'response_format': FORMAT | {'strict': True}}, 'response_format.strict'),
  ({'response_format': 'json'}, 'response_format.type'),
  ({'response_format': JSON}, 'response_format.json_schema'),
  (
    {'response_format': JSON | {'json_schema': {}}},
    'response_format.json_schema.schema',
  ),
  ({'prediction': {'type': 'content', 'content': 3}}, 'prediction.content'),
  ({'prompt': ['a'] * 4, 'n': 3}, 'prompt'),
)
USER = {'role': 'user', 'content': 'a'}
MESSAGES = (
  ([], 'messages'),
  ('hi', 'messages'),
  (['hi'], 'messages[0]'),
  ([{'role': 'tool', 'content': 'a'}], 'messages[0].role'),
  ([{'role': 'user'}], 'messages[0].content'),
  ([USER | {'content': ['a']}], 'messages[0].content'),
  (
    [USER | {'content': [{'type': 'image_url', 'text': 'a'}]}],
    'messages[0].content',
  ),
  ([USER | {'tool_calls': [1]}], 'messages[0].tool_calls'),
)
REFUSED = [
  *((body(**{name: x}), name) for name in WRONG for x in WRONG[name]),
  *((body(**given), name) for given, name in INSIDE),
  *((json.dumps({'messages': x}).encode(), name) for x, name in MESSAGES),
]


@pytest.mark.parametrize(('sent', 'param'), REFUSED)
def test_fields_are_refused_by_their_name(sent, param):
  with refused(param) as error:
    requests.read(sent, b'prompt' not in sent, LIMITS)
  assert error.value.status == (404 if b'gpt' in sent else 400)
  assert error.value.body['error']['param'] == param


@pytest.mark.parametrize(
  ('raw', 'says'),
  [
    (b'\xff', 'is not UTF-8'),
    (b'', 'is no JSON'),
    (b'{"prompt": NaN}', 'NaN is none of its numbers'),
    (b'{"prompt": ' + b'9' * 5000 + b'}', 'is no JSON'),
    (b'[' * 100_000, 'nested too deeply'),
    (b'[]', 'must be a JSON object'),
    (b'{"n": 1, "prompt": "a", "prompt": "b"}', "has 'prompt' twice"),
    (b'{"%s": 1, "%s": 2}' % ((b'x' * 99,) * 2), f"has '{'x' * 60}' twice"),
    (b'{}', 'prompt is missing'),
  ],
)
def test_bodies_that_are_no_request(raw, says):
  with pytest.raises(Refused, match=says):
    requests.read(raw, False, LIMITS)


@pytest.mark.parametrize(
  ('given', 'field', 'value'),
  [
    ({'prompt': [0, 2047]}, 'prompts', [[0, 2047]]),
    ({'prompt': ['a'] * 3, 'n': 3}, 'n', 3),
    *(({'max_tokens': n}, 'new_tokens', n) for n in (1, 128)),
    *(({'seed': n}, 'seed', n) for n in (0, 2**32 - 1)),
    *(({'temperature': x}, 'values', {'temperature': x}) for x in (0, -1e37)),
    ({'stop': ['a'] * 16}, 'stop', ('a',) * 16),
    ({'stop': 'a' * 1000}, 'stop', ('a' * 1000,)),
    ({'stream': True, 'stream_options': {}}, 'usage', False),
    ({'response_format': {'type': 'json_object'}}, 'schema', requests.OBJECT),
  ],
)
def test_the_least_and_the_most_are_taken(given, field, value):
  assert getattr(completion(**given), field) == value


def test_refusals_have_the_kind_of_their_status():
  kinds = {
    400: 'invalid_request_error', 401: 'authentication_error',
    404: 'not_found_error', 413: 'invalid_request_error',
    429: 'rate_limit_error', 499: 'invalid_request_error',
    500: 'server_error', 503: 'server_error',
  }  # fmt: skip
  bodies = {status: Refused('a', status=status).body for status in kinds}
  assert {k: x['error']['type'] for k, x in bodies.items()} == kinds
  with refused('response_format'):
    completion(LIMITS._replace(stages=()), response_format=FORMAT)


def test_a_conversation_is_read():
  parts = [{'type': 'text', 'text': 'b'}, {'type': 'text', 'text': 'c'}]
  messages = [
    {'role': 'developer', 'content': 'Be brief.'},
    {'role': 'user', 'content': parts, 'name': None},
  ]
  given = {'messages': messages, 'max_completion_tokens': 7}
  asked = requests.read(json.dumps(given).encode(), True, LIMITS)
  assert asked.chat
  assert asked.new_tokens == 7
  assert asked.prompts == [
    [
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': 'bc'},
    ]
  ]
  # Two limits of an answer must agree.
  assert chat('a', max_tokens=3, max_completion_tokens=3).new_tokens == 3
  with refused('max_tokens', 'max_tokens and max_completion_tokens differ'):
    chat('a', max_tokens=4, max_completion_tokens=3)


def test_log_probabilities_are_asked_for_in_two_ways():
  for count in (0, 5):
    assert completion(logprobs=count).logprobs == count
  for more, count in (({}, 0), ({'top_logprobs': 2}, 2)):
    assert chat('a', logprobs=True, **more).logprobs == count
  assert chat('a', logprobs=False).logprobs is None
  for wrong, says in (
    ({'top_logprobs': 2}, 'needs logprobs to be true'),
    ({'logprobs': 2}, 'must be true or false'),
    ({'logprobs': True, 'top_logprobs': 6}, 'from 0 to 5'),
  ):
    with pytest.raises(Refused, match=says):
      chat('a', **wrong)
  with refused('logprobs', 'logprobs are not told'):
    completion(LIMITS._replace(logprobs=None), logprobs=0)


# Prompts as token ids


def test_a_conversation_goes_on_plainly_without_a_template(tokenizer):
  asked = chat('one', ' two', 'three')
  (ids,) = requests.encode(tokenizer, Prompts(), asked, LIMITS)
  assert tokenizer.decode(ids) == 'one two\n\nthree'


def test_a_chat_template_is_used_where_there_is_one(tokenizer):
  template = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}>"
  )
  form = Prompts(
    chat=True, system='Be.', template_kwargs={'chat_template': template}
  )
  (ids,) = requests.encode(tokenizer, form, chat('one'), LIMITS)
  assert tokenizer.decode(ids) == '<system>Be.<user>one>'
  with refused('messages', 'messages: the chat template refuses'):
    requests.encode(tokenizer, form, chat('one', 'two', 'three'), LIMITS)
  with pytest.raises(UserError, match='too many'):
    conversations.write(tokenizer, form, [{'role': 'user', 'content': ''}] * 3)


@pytest.mark.parametrize(
  ('given', 'param', 'says'),
  [
    ({'prompt': ''}, 'prompt', 'prompt is empty'),
    ({'prompt': [1] * 128}, 'prompt', 'room for 128 together'),
    ({'prompt': [1] * 120, 'max_tokens': 9}, 'max_tokens', '120 tokens, and'),
  ],
)
def test_prompts_must_leave_room(tokenizer, given, param, says):
  with refused(param, says):
    requests.encode(tokenizer, Prompts(), completion(**given), LIMITS)


def test_prompts_of_all_the_room_are_taken(tokenizer):
  for size, new, apart in ((127, None, False), (119, 9, False), (128, 9, True)):
    asked = requests.Asked(False, [[7] * size], {}, new_tokens=new)
    limits = LIMITS._replace(apart=apart, vocab_size=8)
    assert requests.encode(tokenizer, Prompts(), asked, limits) == asked.prompts
    with refused('prompt', 'does not know'):  # A template may have written it.
      requests.encode(
        tokenizer, Prompts(), asked._replace(prompts=[[3, 8]]), limits
      )


def test_any_object_nests_so_deep():
  """The regex is Python's, too."""
  made = re.compile(schemas.any_object(2))
  for value in ({}, {'a': 1}, {'a': [1, 'x', None], 'b': {'c': True}}):
    assert made.fullmatch(json.dumps(value))
  for text in ('[]', '3', '{"a": 1', '{"a": [[1]]}', '{a: 1}', '{"a": 1,}'):
    assert not made.fullmatch(text)


def test_what_is_compiled_is_a_schema_or_any_object(monkeypatch):
  for name in ('regex', 'json_schema'):
    monkeypatch.setattr(schemas.constraints, name, lambda *given: given)
  made = schemas.Compiled('it', 4, (3,))
  whole = schemas.any_object(3), 'it', 4, (3,)
  assert made._compile(requests.OBJECT) == whole
  assert made._compile('{}') == ('{}', 'it', 4, (3,))
  assert (made._thread.name, made._thread.daemon) == ('schemas', True)


# What is compiled, and what is spelled


@pytest.fixture
def spelled(tokenizer):
  """Four tokens: two letters, and the halves of a third."""
  made = replies.Spelled(tokenizer, 0)
  made._texts = dict(enumerate([b'a', b'\xc3', b'\xa9', b'b']))
  return made


def test_tokens_begin_where_their_characters_do(spelled, tokenizer):
  offsets = replies.Offsets(spelled)
  assert [offsets.push(token) for token in (0, 1, 2, 3, 0)] == [0, 1, 1, 2, 3]
  top, half = [(1, -0.5), (2, -0.75)], {'token': r'bytes:\xc3', 'bytes': [0xC3]}
  said = [(0, Logprob(-1.0, top)), (1, Logprob(-float('inf'), top))]
  made = replies.of_completion(said, 1, spelled, replies.Offsets(spelled))
  assert made == {
    'tokens': ['a', half['token']],
    'token_logprobs': [-1.0, -9999.0],
    'top_logprobs': [{half['token']: -0.5}] * 2,
    'text_offset': [0, 1],
  }
  last = replies.of_chat(said, 1, spelled)['content'][1]
  top = [half | {'logprob': -0.5}]
  assert last == half | {'logprob': -9999.0, 'top_logprobs': top}
  assert replies.Spelled(tokenizer, 0).text_of(7) == tokenizer.decode([7])


def test_schemas_that_nobody_waits_for_are_not_compiled(monkeypatch):
  begun, go_on = [], threading.Event()

  def compile_slowly(self, schema):
    begun.append(schema)
    go_on.wait(60)
    return schema.upper()

  monkeypatch.setattr(schemas.Compiled, '_compile', compile_slowly)

  async def clients():
    made = schemas.Compiled(None, 4, ())
    first = asyncio.create_task(made.of('first'))
    gone = [asyncio.create_task(made.of(f'gone {i}')) for i in range(7)]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match='8 schemas are to be compiled') as error:
      await made.of('one more')
    assert error.value.status == 429
    for one in gone:
      one.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    second = asyncio.create_task(made.of('second'))
    same = asyncio.create_task(made.of('second'))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(first, second, same) == [
      'FIRST',
      'SECOND',
      'SECOND',
    ]
    assert await made.of('first') == 'FIRST'  # It was kept.
    assert await made.of('gone 0') == 'GONE 0'
    monkeypatch.setattr(schemas, '_KEPT', 2)  # Those that were asked for last.
    for schema in ('gone 0', 'first', 'third', 'first', 'second'):
      await made.of(schema)

  asyncio.run(clients())
  assert begun == ['first', 'second', 'gone 0', 'third', 'second']


def test_a_schema_that_is_refused_after_its_client_left_is_no_error(
  monkeypatch,
):
  begun, go_on, told = threading.Event(), threading.Event(), []

  def compile_one(self, schema):
    begun.set()
    go_on.wait(60)
    if schema == 'wrong':
      raise Refused(schema)

  monkeypatch.setattr(schemas.Compiled, '_compile', compile_one)
  monkeypatch.setattr(schemas, '_KEPT', 1)  # The other one takes its place.

  async def clients():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context))
    made = schemas.Compiled(None, 4, ())
    gone = asyncio.create_task(made.of('wrong'))
    assert await asyncio.to_thread(begun.wait, 60)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    go_on.set()
    await made.of('other')

  asyncio.run(clients())
  gc.collect()
  assert told == []


def test_more_tokens_than_there_are_is_all_of_them():
  for given in (2**31, 10**30, 2048):
    assert completion(top_k=given).values['top_k'] == 2048
  limits = LIMITS._replace(stages=('min_new_tokens',))
  with refused('min_tokens', 'must be a whole number from 0'):
    completion(limits, min_tokens=2**31)


def test_a_bias_is_from_minus_100_to_100():
  limits = LIMITS._replace(stages=('logit_bias',))
  asked = completion(limits, logit_bias={'3': -100, '4': 100})
  assert asked.values['logit_bias'] == {3: -100, 4: 100}
  for bias in (-100.5, 100.5):
    with refused('logit_bias'):
      completion(limits, logit_bias={'3': bias})


def test_tools_are_passed_over_where_the_service_was_told_to():
  tools = [{'type': 'function', 'function': {'name': 'a', 'parameters': {}}}]
  given = {'tools': tools, 'tool_choice': 'required', 'functions': tools}
  for name, value in given.items():
    with refused(name):
      chat('a', **{name: value})
  limits = LIMITS._replace(ignore_tools=True)
  assert chat('a', **given, limits=limits) == chat('a')
  with refused('echo'):
    chat('a', echo=True, limits=limits)
  # Calls beside one another ask for nothing without tools.
  for value in (True, False):
    assert chat('a', parallel_tool_calls=value) == chat('a')


def test_a_prediction_is_a_text_or_parts_of_one():
  limits = LIMITS._replace(predicted=64)
  parts = [{'type': 'text', 'text': x} for x in ('def ', 'f')]
  for content in ('def f', parts):
    given = {'prediction': {'type': 'content', 'content': content}}
    assert chat('a', **given, limits=limits).prediction == 'def f'
    assert completion(limits, **given).prediction == 'def f'
  limits = limits._replace(plain=True)
  assert completion(limits, plain=True).plain
  with refused('plain', 'leave out prediction'):
    completion(limits, plain=True, **given)


def test_a_prediction_has_as_many_tokens_as_are_taken():
  def encode(text, add_special_tokens=True):
    return [0] * add_special_tokens + [*text.encode()]

  tokenizer = types.SimpleNamespace(encode=encode)
  asked = requests.Asked(False, ['a'], {}, prediction='abc')
  most = LIMITS._replace(predicted=3)
  assert requests.encode_prediction(tokenizer, asked, most) == [97, 98, 99]
  less = most._replace(predicted=2)
  with refused('prediction'):
    requests.encode_prediction(tokenizer, asked, less)
