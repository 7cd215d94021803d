"""A service, as clients and its page see it: each text is that of it alone."""

import concurrent.futures
import contextlib
import functools
import json
import re
import threading
import time

import httpx
import openai
import pytest

from specjax.bench.config import SamplingValues
from specjax.errors import UserError
from specjax.serving import app
from tests.support import browser, processes, serving

PROMPT, NEW = 'def fib(n):', 12
BOOLEAN = {'type': 'boolean'}
LONG = {'type': 'string', 'minLength': 20}
USAGE = {'stream': True, 'stream_options': {'include_usage': True}}


@pytest.fixture(scope='module')
def served(folder):
  with serving.serve(folder) as one:
    yield one


@pytest.fixture(scope='module')
def client(served):
  with served.client() as one:
    yield one


@pytest.fixture(autouse=True)
def _nothing_is_left(served):
  yield
  assert served.rest()


def complete(client, prompt=PROMPT, **options):
  given = {'max_tokens': NEW, 'temperature': 0.9, 'seed': 3} | options
  return client.completions.create(model='tiny', prompt=prompt, **given)


def chat(client, said=PROMPT, **options):
  given = {'max_tokens': NEW, 'temperature': 0.9, 'seed': 3} | options
  messages = [{'role': 'user', 'content': said}]
  return client.chat.completions.create(
    model='tiny', messages=messages, **given
  )


@contextlib.contextmanager
def refused(param, match=None, kind=openai.BadRequestError):
  """Expects that the request inside is refused by the name of a field."""
  with pytest.raises(kind, match=match) as error:
    yield error
  assert error.value.param == param


def events(sent):
  lines = [x[6:] for x in sent.text.splitlines() if x.startswith('data: ')]
  assert lines.pop() == '[DONE]'
  return [json.loads(line) for line in lines]


def numbers(served, name):
  """The sum of those that begin with a name on the page of numbers."""
  page = served.plain.get(served.url.replace('v1', 'metrics')).text
  lines = [x for x in page.splitlines() if x.startswith(name)]
  return sum(float(line.split()[-1]) for line in lines)


def schema(of):
  return {
    'type': 'json_schema',
    'json_schema': {'name': 'answer', 'schema': of, 'strict': True},
  }


# Texts


@pytest.mark.parametrize(
  ('given', 'stages'),
  [
    ({'temperature': 0}, {}),
    ({'top_p': 0.8, 'frequency_penalty': 1.5}, {}),
    ({'presence_penalty': 1.5, 'extra_body': {'min_p': 0.02}}, {}),
    ({'logit_bias': {'7': 40, '11': 39.5}}, {'logit_bias': {7: 40, 11: 39.5}}),
  ],
)
def test_an_answer_is_the_text_that_it_is_alone(served, client, given, stages):
  out = complete(client, **given)
  plain = given | given.get('extra_body', {}) | stages
  plain.pop('extra_body', None)
  (text,) = served.alone([PROMPT], NEW, **plain)
  assert out.choices[0].text == text
  assert out.choices[0].finish_reason == 'length'
  assert out.usage.completion_tokens == NEW
  assert out.usage.prompt_tokens == len(
    served.pair.target.tokenizer.encode(PROMPT)
  )
  assert complete(client, **given).choices[0].text == text


@pytest.mark.slow
def test_a_neutral_value_stands_above_a_default_of_the_service(folder):
  neutral = {'top_p': 1, 'frequency_penalty': 0, 'presence_penalty': 0}
  more = {'top_k': -1, 'min_p': 0, 'repetition_penalty': 1, 'min_tokens': 0}
  neutral |= {'logit_bias': {}, 'extra_body': more}
  sampling = SamplingValues(top_p=0.05, repetition_penalty=1.5)
  with serving.serve(folder, sampling=sampling) as one, one.client() as its:
    ours = [complete(its, **given).choices[0].text for given in ({}, neutral)]
    stages = {'top_p': 0.05, 'repetition_penalty': 1.5}
    (usual,), (free,) = (one.alone([PROMPT], NEW, **x) for x in (stages, {}))
  assert ours == [usual, free]
  assert usual != free


def test_several_answers_to_several_prompts_are_rows_of_a_batch(served, client):
  ids = served.pair.target.tokenizer.encode(PROMPT)
  out = complete(client, [PROMPT, 'import'], n=3)
  prompts = [PROMPT] * 3 + ['import'] * 3
  texts = served.alone(prompts, NEW)
  assert [one.index for one in out.choices] == [*range(6)]
  assert [one.text for one in out.choices] == texts
  assert len({*texts}) == 6
  assert complete(client, ids).choices[0].text == texts[0]
  assert complete(client, [ids]).choices[0].text == texts[0]


def test_a_stream_is_the_answer_in_parts(client):
  whole = chat(client, n=2)
  *rest, last = parts = [*chat(client, n=2, **USAGE)]
  for place, choice in enumerate(whole.choices):
    mine = [
      x.choices[0] for x in rest if x.choices and x.choices[0].index == place
    ]
    assert mine[0].delta.role == 'assistant'
    text = ''.join(one.delta.content or '' for one in mine)
    assert text == choice.message.content
    ends = [one.finish_reason for one in mine]
    assert ends == [None] * (len(ends) - 1) + [choice.finish_reason]
    assert len(mine) > 4
  assert last.usage == whole.usage
  assert last.metrics == whole.metrics
  assert all(one.usage is None for one in rest)
  assert {one.id for one in parts} == {last.id}
  # A seed that was drawn makes the answer again.
  one, other = (complete(client, seed=None) for _ in range(2))
  assert one.choices[0].text != other.choices[0].text
  again = complete(client, seed=one.seed)
  assert again.choices[0].text == one.choices[0].text
  parts = [*complete(client, stream=True)]
  assert ''.join(x.choices[0].text for x in parts) == (
    complete(client).choices[0].text
  )


def test_an_answer_ends_before_a_stop_string(client):
  whole = complete(client).choices[0].text
  stop = whole[8:10]
  shown = whole[: whole.index(stop)]
  for options in ({}, {'stream': True}):
    out = complete(client, stop=['\0', stop], **options)
    parts = [*out] if options else [out]
    assert ''.join(x.choices[0].text for x in parts) == shown
    assert parts[-1].choices[0].finish_reason == 'stop'
  one = complete(client, stop=stop)
  assert one.usage.completion_tokens < NEW
  parts = [*complete(client, stop=stop, **USAGE)]
  assert parts[-1].metrics == one.metrics
  assert parts[0].seed == one.seed == 3
  # All but the tokens of the last step were told.
  found = one.metrics['speculative_decoding']
  assert 0 < found['num_spec_steps'] <= one.usage.completion_tokens
  assert found['num_accepted_draft_tokens'] <= (
    one.usage.completion_tokens + found['num_spec_tokens']
  )


def test_an_answer_fulfils_its_schema(served, client):
  for _ in range(2):  # The second time it was compiled.
    out = chat(client, response_format=schema(BOOLEAN), n=3)
    for one in out.choices:
      assert json.loads(one.message.content) in (True, False)
      assert one.finish_reason == 'stop'
  assert len(served.service._schemas._kept) == 1
  with refused('max_tokens', 'max_tokens: new_tok'):
    chat(client, response_format=schema(BOOLEAN), max_tokens=1)
  for wrong, says in (
    (LONG, 'needs tables of 256 states and'),
    ({'type': 'number', 'minimum': 3}, r'\$.minimum'),
    ({'type': 'nothing'}, 'JSON schema'),
  ):
    with refused('response_format', says):
      chat(client, response_format=schema(wrong))


def test_log_probabilities_are_those_of_the_tokens(served, client):
  expected = served.logprobs(PROMPT, NEW, 2)
  named = served.service.spelled.text_of
  out = complete(client, logprobs=2).choices[0].logprobs
  assert ''.join(out.tokens) == complete(client).choices[0].text
  for mine, one in zip(out.token_logprobs, expected, strict=True):
    assert mine == pytest.approx(one.value, abs=1e-6)
  for mine, one in zip(out.top_logprobs, expected, strict=True):
    assert [*mine] == [named(it) for it, _ in one.top]
  assert out.text_offset[3] == len(''.join(out.tokens[:3]))
  whole = chat(client, logprobs=True, top_logprobs=1).choices[0].logprobs
  assert [x.token for x in whole.content] == out.tokens
  assert [len(x.top_logprobs) for x in whole.content] == [1] * NEW
  assert bytes(whole.content[0].bytes).decode() == out.tokens[0]
  parts = [*chat(client, logprobs=True, top_logprobs=1, stream=True)]
  parts = [x.choices[0].logprobs for x in parts]
  assert [y for x in parts if x for y in x.content] == whole.content
  parts = [*complete(client, logprobs=0, stream=True)]
  parts = [x.choices[0].logprobs for x in parts]
  assert [y for x in parts if x for y in x.text_offset] == out.text_offset


def test_the_example_of_the_page_runs(served, capsys):
  page = (processes.ROOT / 'docs' / 'serving.md').read_text()
  _, source = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
  source = source.replace('http://127.0.0.1:8000/v1', served.url)
  exec(source.replace("api_key='none'", f"api_key='{serving.KEY}'"), {})
  assert len(capsys.readouterr().out) > 20


# Refusals


def test_refusals_are_errors_of_the_client(served, client, monkeypatch):
  with refused('suffix') as error:
    complete(client, suffix='b')
  assert error.value.type == 'invalid_request_error'
  with refused('top_p', r'top_p must be in \(0, 1]'):
    complete(client, top_p=3)
  with refused('min_tokens'):
    complete(client, extra_body={'min_tokens': NEW + 1})
  with pytest.raises(openai.BadRequestError) as error:
    complete(client, [1] * 96)
  assert error.value.code == 'context_length_exceeded'
  with pytest.raises(openai.NotFoundError, match="'gpt' is not served"):
    client.completions.create(model='gpt', prompt='a')
  with pytest.raises(openai.NotFoundError, match='/v1/chat/completions'):
    client.responses.create(model='tiny', input='a')
  with refused('prediction', 'of which 64 are taken: shorten it'):
    chat(client, prediction=predict('one two ' * 99))
  with (
    served.client(api_key='wrong') as other,
    pytest.raises(openai.AuthenticationError) as error,
  ):
    complete(other)
  assert serving.KEY not in str(error.value)
  monkeypatch.setattr(served.service, 'taken', 12)
  with pytest.raises(openai.RateLimitError, match='12 texts are prepared') as e:
    complete(client)
  assert e.value.code == 'queue_full'
  assert e.value.response.headers['Retry-After'] == '1'
  # A port is taken before anybody is answered.
  port = int(served.url.removesuffix('/v1').rpartition(':')[2])
  for at in (('127.0.0.1', port), ('203.0.113.1', 80)):
    with pytest.raises(UserError, match=f'^port {at[1]} of host'):
      app.listen(*at)


def test_bodies_are_read_whatever_they_are_called(served):
  """Curl says that a body is a form."""
  kind = {'Content-Type': 'application/x-www-form-urlencoded'}
  body = b'{"prompt": "def fib(n):", "max_tokens": 3, "temperature": 0}'
  assert served.post('/completions', content=body, headers=kind).is_success


# What else there is


def test_the_model_the_health_and_the_numbers(served, client):
  (model,) = client.models.list().data
  assert (model.id, model.max_model_len) == ('tiny', 96)
  assert client.models.retrieve('tiny') == model
  root = served.url.removesuffix('/v1')
  assert served.plain.get(f'{root}/health').json() == {'status': 'ok'}

  number = functools.partial(numbers, served)
  names = {
    'num_drafts': 'num_spec_steps',
    'num_draft_tokens': 'num_draft_tokens',
    'num_accepted_tokens': 'num_accepted_draft_tokens',
    'num_accepted_tokens_per_pos': 'num_accepted_draft_tokens',
  }
  full = {name: f'vllm:spec_decode_{name}_total' for name in names}
  before = {name: number(full[name]) for name in names}
  ended = 'vllm:request_success_total{finished_reason="length"'
  lengths = number(ended)
  told = complete(client, n=2).metrics['speculative_decoding']
  for name, field in names.items():
    assert number(full[name]) - before[name] == told[field] > 0
  assert number(ended) - lengths == 2
  assert number('vllm:num_requests_running{') == 0
  for name in ('time_to_first_token', 'e2e_request_latency'):
    count, seconds = (
      number(f'vllm:{name}_seconds_{kind}' + '{') for kind in ('count', 'sum')
    )
    began = time.monotonic()
    complete(client, n=2)
    took = time.monotonic() - began
    assert number(f'vllm:{name}_seconds_count' + '{') == count + 2
    assert 0 < number(f'vllm:{name}_seconds_sum' + '{') - seconds < 2 * took
    assert number(f'vllm:{name}_seconds_bucket' + '{le="+Inf"') == count + 2


# Ends


@pytest.mark.parametrize('stream', [False, True])
def test_the_row_of_a_client_that_went_away_is_free(
  served, monkeypatch, stream
):
  held = served.worker.pools[0]
  cancelled = served.service.counters._metric('specjax:request_cancelled')
  many = cancelled._value.get()
  turn, began = held.turn, threading.Event()

  def slowly(*args, **options):
    began.set()
    time.sleep(0.1)  # Of at most 12 tokens a row, of 80.
    return turn(*args, **options)

  monkeypatch.setattr(held, 'turn', slowly)
  given = {'prompt': PROMPT, 'max_tokens': 80, 'stream': stream, 'n': 2}
  given['seed'] = 3
  headers = {'Authorization': f'Bearer {serving.KEY}'}
  with httpx.Client(headers=headers, timeout=0.5) as one:
    ask = 'POST', f'{served.url}/completions'
    if stream:
      with one.stream(*ask, json=given) as got:
        next(got.iter_lines())
    else:
      with pytest.raises(httpx.ReadTimeout):
        one.request(*ask, json=given)
  assert served.rest()
  assert began.is_set()
  assert cancelled._value.get() - many == 2


def test_pages_of_others_may_not_ask_unless_they_are_allowed(served):
  friend, name = 'http://friend.example', 'Access-Control-Allow-Origin'
  other, own = 'http://elsewhere.example', served.url.removesuffix('/v1')
  given = {'prompt': PROMPT, 'max_tokens': 1}
  asks = {
    'Access-Control-Request-Method': 'POST',
    'Access-Control-Request-Headers': 'authorization,content-type',
  }
  for origin, status in ((friend, 200), (own, 200), (other, 403)):
    headers = {'Origin': origin}
    out = served.post('/completions', json=given, headers=headers)
    assert out.status_code == status
    assert out.headers.get(name) == (friend if origin == friend else None)
  for origin, status in ((friend, 200), (other, 400)):
    out = served.plain.options(
      f'{served.url}/completions', headers=asks | {'Origin': origin}
    )
    assert out.status_code == status
    assert (name in out.headers) == (status == 200)


# Predictions


def predict(text):
  return {'type': 'content', 'content': text}


def details(usage):
  told = usage.completion_tokens_details
  return told.accepted_prediction_tokens, told.rejected_prediction_tokens


def test_a_prediction_changes_no_text_and_is_counted(client):
  greedy = functools.partial(chat, client, temperature=0, max_tokens=40)
  plain = greedy()
  text = plain.choices[0].message.content
  assert details(plain.usage) == (0, 0)
  parts = [{'type': 'text', 'text': x} for x in (text[:9], text[9:])]
  for prediction in (text, parts):
    out = greedy(prediction=predict(prediction))
    assert out.choices[0].message.content == text
    accepted, rejected = details(out.usage)
    told = out.metrics['speculative_decoding']
    assert told['num_spec_tokens'] == 4
    assert told['num_accepted_draft_tokens'] == accepted
    assert told['num_draft_tokens'] == accepted + rejected
    # Random tokens are read back from their text as others in some places.
    assert accepted >= 16
  *rest, last = greedy(prediction=predict(text), **USAGE)
  assert ''.join(x.choices[0].delta.content or '' for x in rest) == text
  assert last.usage == out.usage
  wrong = greedy(prediction=predict('import ' * 20))
  assert wrong.choices[0].message.content == text
  assert details(wrong.usage)[0] < accepted / 2
  assert details(wrong.usage)[1] > 0
  none = greedy(prediction=predict(''), max_tokens=4)
  assert details(none.usage) == (0, 0)


def test_answers_with_a_prediction_are_alike_whatever_is_beside_them(
  client, caplog
):
  texts = [f'def f{n}(a):\n  return a + {n}\n' for n in range(12)]

  def ask(n):
    given = {'seed': n, 'max_tokens': 6 + n % 5, 'n': 1 + n % 2}
    if n % 3 == 1:
      given['extra_body'] = {'prediction': predict(texts[n])}
    if n % 4 == 0:
      given |= {'temperature': 0}
    if n % 3 == 2:
      out = chat(client, texts[n], prediction=predict(texts[n]), **given)
      return [x.message.content for x in out.choices]
    return [x.text for x in complete(client, texts[n], **given).choices]

  with serving.nothing_compiles(caplog):
    alone = [ask(n) for n in range(12)]
    with concurrent.futures.ThreadPoolExecutor(6) as many:
      assert [*many.map(ask, range(12))] == alone


# The page


PAGE = app._PAGE.read_text()
CHAT = """(() => {
  const real = fetch;
  window.fetch = async (path, options) => {
    const answer = await real(path, options);
    if (path !== '/v1/models') return answer;
    const body = await answer.json();
    body.data[0].specjax.chat = true;
    return new Response(JSON.stringify(body));
  };
})()"""
WAIT = '(async () => {{ while (!({})) await new Promise(setTimeout); }})()'


def ask(served, path='/completions', **given):
  mine = {'max_tokens': NEW, 'temperature': 0, 'origins': True} | given
  sent = served.post(path, json={'prompt': PROMPT} | mine)
  assert sent.status_code == 200, sent.text
  return sent


def test_the_page_asks_for_what_there_is(served):
  """Its addresses, the fields that it sends, and the fields that it reads.

  It needs no key, and loads nothing of others.
  """
  root = served.url.removesuffix('v1')
  sent = served.plain.get(root, headers={'Authorization': ''})
  assert sent.status_code == 200
  assert sent.headers['Content-Type'].startswith('text/html')
  assert "default-src 'none'" in sent.headers['Content-Security-Policy']
  assert sent.text == PAGE
  assert not re.search(r'(src|href)=|//\w|innerHTML', PAGE)
  paths = {*re.findall(r"'(/v1/[^']*)'", PAGE)}
  assert paths == {'/v1/models', '/v1/completions', '/v1/chat/completions'}
  (model,) = served.plain.get(f'{served.url}/models').json()['data']
  read = {*re.findall(r'\bmodel\.(\w+)', PAGE)}
  assert read == {'id', 'max_model_len', 'specjax'}
  assert read <= {*model}
  can = {*re.findall(r'\b(?:can|model\.specjax)\.(\w+)', PAGE)}
  assert can == {*model['specjax']}
  sets = {*re.findall(r'\basked\.(\w+)', PAGE)}
  (inner,) = re.findall(r'const body = \{\.\.\.asked, (.*?)\};', PAGE, re.S)
  sets |= {*re.findall(r'(\w+):', inner)} - {'include_usage'}
  (inner,) = re.findall(r'const asked = \{(.*?)\};', PAGE, re.S)
  sets |= {*re.findall(r'(\w+):', inner)}
  sent = {
    'prompt': PROMPT, 'max_tokens': NEW, 'temperature': 0, 'seed': 3,
    'plain': False, 'origins': True, 'stream': True,
    'stream_options': {'include_usage': True}, 'response_format': None,
  }  # fmt: skip
  assert sets == {*sent, 'messages'}
  *parts, last = events(ask(served, **sent))
  keys = {'preventDefault', 'key', 'ctrlKey', 'metaKey'}
  read = {*re.findall(r'\bevent\.(\w+)', PAGE)} - {'error'} - keys
  assert read == {'seed', 'choices', 'metrics'}
  assert parts[0]['seed'] == 3
  assert last['metrics']['speculative_decoding']['mean_acceptance_length'] >= 1
  assert parts[-1]['choices'][0]['finish_reason'] == 'length'


def test_origins_are_told_of_every_token_where_they_are_asked_for(served):
  given = {'n': 2, 'temperature': 0.9, 'seed': 3}
  whole = ask(served, **given).json()
  parts = [x['choices'][0] for x in events(ask(served, stream=True, **given))]
  for place, choice in enumerate(whole['choices']):
    origins = choice['origins']
    assert ''.join(one['text'] for one in origins) == choice['text']
    assert {one['origin'] for one in origins} >= {'accepted', 'corrected'}
    mine = [x['origins'] for x in parts if x['index'] == place]
    assert [y for x in mine for y in x] == origins
  told = sum(len(one['origins']) for one in whole['choices'])
  assert told == whole['usage']['completion_tokens'] == 2 * NEW
  without = ask(served, **given, origins=False).json()['choices'][0]
  assert 'origins' not in without


def test_plain_decoding_drafts_nothing_and_writes_the_same(served):
  name = 'vllm:spec_decode_num_drafts_total'
  drafted = ask(served).json()
  before = numbers(served, name)
  plain = ask(served, plain=True).json()
  assert numbers(served, name) == before > 0
  assert plain['choices'][0]['text'] == drafted['choices'][0]['text']
  assert {x['origin'] for x in plain['choices'][0]['origins']} == {'bonus'}
  told = plain['metrics']['speculative_decoding']
  assert told['num_spec_tokens'] == told['num_draft_tokens'] == 0
  assert told['num_spec_steps'] == NEW


# In a browser


@pytest.mark.slow
@pytest.mark.parametrize('width', [1280, 390])
def test_a_browser_shows_both_ways_beside_each_other(served, tmp_path, width):
  with browser.page(tmp_path, width) as page:
    page.open(served.url.removesuffix('v1'))
    page.run(WAIT.format('!$("keyed").hidden'))  # The service has a key.
    page.run(f'$("key").value = {json.dumps(serving.KEY)}; load()')
    page.run(f'$("tokens").value = {NEW}; send()')
    names, texts, taus, speeds = (
      page.run(f'[...document.querySelectorAll("{x}")].map(y => y.innerText)')
      for x in ('h2', 'pre', '.tau', '.speed')
    )
    origins = page.run(
      '[...document.querySelectorAll("pre")].map('
      'x => [...x.querySelectorAll("span")].map(y => y.className))'
    )
    drafts, plain = origins
    about = page.run('document.querySelector(".about").innerText')
    fits = page.run('document.documentElement.scrollWidth <= innerWidth')
    wrong = page.run('$("error").innerText')
  alone = ask(served).json()
  assert names == ['Speculative', 'Plain']
  assert texts == [PROMPT + alone['choices'][0]['text']] * 2
  told = alone['metrics']['speculative_decoding']
  assert taus == [f'{told["mean_acceptance_length"]:.2f}', '1.00']
  assert all(float(x) > 0 for x in speeds)
  shown = [x['origin'] for x in alone['choices'][0]['origins'] if x['text']]
  assert drafts == ['prompt', *shown]
  assert {*plain} == {'prompt', 'bonus'}
  assert 'times' in about
  assert 'equal' in about
  assert fits
  assert not wrong


@pytest.mark.slow
def test_a_conversation_goes_on_in_a_browser(served, tmp_path):
  """The service is one of a chat template, as far as the page is told."""
  with browser.page(tmp_path, 390) as page:
    page.open(served.url.removesuffix('v1'))
    page.run(CHAT)
    page.run(f'$("key").value = {json.dumps(serving.KEY)}; load()')
    for said in (PROMPT, 'import os'):
      page.run(f'$("prompt").value = "{said}"; $("tokens").value = {NEW}')
      page.run('send()')
    said, texts, turns = (
      page.run(f'[...document.querySelectorAll("{x}")].map(y => y.innerText)')
      for x in ('.said', '.turn:last-child pre', '.turn')
    )
    messages = page.run('messages')
    order = page.run('$("form").offsetTop > $("log").offsetTop')
    page.run('$("clear").click()')
    assert page.run('messages.length + $("log").children.length') == 0
  assert said == [PROMPT, 'import os']
  assert len(turns) == 2
  assert order
  assert [x['role'] for x in messages] == ['user', 'assistant'] * 2
  whole = {'messages': messages[:-1], 'prompt': None}
  alone = ask(served, '/chat/completions', **whole).json()
  text = alone['choices'][0]['message']['content']
  assert texts == [text] * 2
  assert messages[-1]['content'] == text


@pytest.mark.slow
def test_a_browser_shows_what_is_refused_and_json(served, tmp_path):
  with browser.page(tmp_path, 1280) as page:
    page.open(served.url.removesuffix('v1'))
    page.run(f'$("key").value = {json.dumps(serving.KEY)}; load()')
    page.run('$("form").elements.mode.value = "drafts"')
    page.run('$("schema").value = "{"; send()')
    assert 'is no JSON' in page.run('$("error").innerText')
    page.run('$("schema").value = \'{"type": "boolean"}\'; send()')
    shown = page.run('document.querySelector("pre").innerText')
    assert shown.removeprefix(PROMPT) in ('true', 'false')
    assert not page.run('$("error").innerText')
    page.run('$("tokens").value = 0; send()')
    assert 'max_tokens' in page.run('$("error").innerText')
    assert page.run('$("log").innerText').endswith('Not answered.')
    page.run('$("tokens").value = 9; going = send(); $("stop").click(); going')
    assert page.run('$("log").innerText').endswith('Stopped.')
    assert not page.run('$("send").disabled || $("error").innerText')
