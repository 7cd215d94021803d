"""The page of a service: what it asks for is there, and a browser shows it."""

import json
import re

import pytest

from specjax.serving import app, requests
from tests.support import browser, serving

PROMPT, NEW = 'def fib(n):', 12
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


@pytest.fixture(scope='module')
def served(folder):
  with serving.serve(folder) as one:
    yield one


def ask(served, path='/completions', **given):
  mine = {'max_tokens': NEW, 'temperature': 0, 'origins': True} | given
  sent = served.post(path, json={'prompt': PROMPT} | mine)
  assert sent.status_code == 200, sent.text
  return sent


def events(sent):
  lines = [x[6:] for x in sent.text.splitlines() if x.startswith('data: ')]
  assert lines.pop() == '[DONE]'
  return [json.loads(line) for line in lines]


def test_the_page_needs_no_key_and_loads_nothing_of_others(served):
  root = served.url.removesuffix('v1')
  sent = served.plain.get(root, headers={'Authorization': ''})
  assert sent.status_code == 200
  assert sent.headers['Content-Type'].startswith('text/html')
  assert "default-src 'none'" in sent.headers['Content-Security-Policy']
  assert sent.text == PAGE
  assert not re.search(r'(src|href)=|//\w|innerHTML', PAGE)


def test_the_page_asks_for_what_there_is(served):
  """Its addresses, the fields that it sends, and the fields that it reads."""
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
    'prompt': PROMPT,
    'max_tokens': NEW,
    'temperature': 0,
    'seed': 3,
    'plain': False,
    'origins': True,
    'stream': True,
    'stream_options': {'include_usage': True},
    'response_format': None,
  }
  assert sets == {*sent, 'messages'}
  *parts, last = events(ask(served, **sent))
  assert {*re.findall(r'\bevent\.(\w+)', PAGE)} - {'error'} == {
    'seed',
    'choices',
    'metrics',
    'preventDefault',
    'key',
    'ctrlKey',
    'metaKey',
  }
  assert parts[0]['seed'] == 3
  assert last['metrics']['speculative_decoding']['mean_acceptance_length'] >= 1
  assert parts[-1]['choices'][0]['finish_reason'] == 'length'


@pytest.mark.parametrize('chat', [False, True])
def test_origins_are_told_of_every_token_where_they_are_asked_for(served, chat):
  path = '/chat/completions' if chat else '/completions'
  said = {'messages': [{'role': 'user', 'content': PROMPT}], 'prompt': None}
  given = {'path': path, 'n': 2, 'temperature': 0.9, 'seed': 3}
  given |= said if chat else {}
  whole = ask(served, **given).json()
  parts = events(ask(served, stream=True, **given))
  for place, choice in enumerate(whole['choices']):
    text = choice['message']['content'] if chat else choice['text']
    origins = choice['origins']
    assert ''.join(one['text'] for one in origins) == text
    assert {one['origin'] for one in origins} >= {'accepted', 'corrected'}
    mine = [x['choices'][0] for x in parts]
    mine = [x for x in mine if x['index'] == place]
    assert [y for x in mine for y in x['origins']] == origins
    for one in mine:
      shown = one['delta'].get('content', '') if chat else one['text']
      assert ''.join(x['text'] for x in one['origins']) == shown
  told = sum(len(one['origins']) for one in whole['choices'])
  assert told == whole['usage']['completion_tokens'] == 2 * NEW
  without = ask(served, **given, origins=False).json()['choices'][0]
  assert 'origins' not in without


def test_plain_decoding_drafts_nothing_and_writes_the_same(served):
  drafted, plain = (ask(served, plain=x).json() for x in (False, True))
  assert plain['choices'][0]['text'] == drafted['choices'][0]['text']
  assert {x['origin'] for x in plain['choices'][0]['origins']} == {'bonus'}
  told = plain['metrics']['speculative_decoding']
  assert told['num_spec_tokens'] == told['num_draft_tokens'] == 0
  assert told['num_spec_steps'] == NEW
  page = served.plain.get(served.url.replace('v1', 'metrics'))
  (drafts,) = re.findall(r'num_drafts_total\{.*\} (\S+)', page.text)
  ask(served, plain=True)
  page = served.plain.get(served.url.replace('v1', 'metrics'))
  assert re.findall(r'num_drafts_total\{.*\} (\S+)', page.text) == [drafts]


def test_a_service_without_plain_decoding_refuses_it(served):
  limits = served.service.limits
  body = json.dumps({'prompt': 'a', 'plain': True}).encode()
  assert requests.read(body, False, limits).plain
  with pytest.raises(requests.Refused, match='with plain') as error:
    requests.read(body, False, limits._replace(plain=False))
  assert error.value.param == 'plain'
  both = {'prediction': {'type': 'content', 'content': 'a'}, 'plain': True}
  body = json.dumps({'prompt': 'a'} | both).encode()
  with pytest.raises(requests.Refused, match='leave out prediction') as error:
    requests.read(body, False, limits)
  assert error.value.param == 'plain'


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
