"""Conversations: what is written in each turn, and bad input. No model runs."""

import copy
import json
import sys
import types

import pytest
from tokenizers import processors

from specjax import prompts
from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.prompts import conversations

TEMPLATE = (
  '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
  '{% if add_generation_prompt %}<assistant>{% if not enable_thinking %}'
  '(no thoughts){% endif %}{% endif %}'
)
TALKS = [
  {'question_id': 1, 'category': 'a', 'turns': ['Name a colour.', 'Another?']},
  {'question_id': 2, 'category': 'a', 'turns': ['Name a town.']},
  {'question_id': 3, 'category': 'b', 'turns': ['One.', 'Two.', 'Three.']},
]
TEXT = f'{"FULL BENCHMARK DATA SHOULD BE FETCHED"} FROM THE SOURCE'
HELD_BACK = {'question_id': 9, 'category': 'c', 'turns': ['x', TEXT]}
KWARGS = {'enable_thinking': False}


@pytest.fixture(scope='module')
def chatty(tokenizer):
  """A tokenizer with a template, and tokens that begin and end a text."""
  made = copy.deepcopy(tokenizer)
  made.add_special_tokens({'bos_token': '<|b|>', 'eos_token': '<|e|>'})
  made.chat_template = TEMPLATE
  return made


def write(path, records):
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))
  return str(path)


def collect(tokenizer, tmp_path, records=TALKS, room=400, answer=20, **fields):
  fields = {'turns': 0, 'path': write(tmp_path / 'q.jsonl', records)} | fields
  return prompts.collect(Prompts(**fields), tokenizer, room, 0, answer)


def talk_of(found, says):
  (talk,) = (
    t for c in found.values() for t in c.talks if t.says[0].startswith(says)
  )
  return talk


def test_without_a_template_the_text_goes_on(chatty, tmp_path):
  found = collect(chatty, tmp_path)
  assert {d: len(c.texts) for d, c in found.items()} == {'a': 2, 'b': 1}
  talk = talk_of(found, 'Name a colour')
  answer = [*chatty.encode(' Blue.'), chatty.eos_token_id]
  (first, cut), (second, also) = talk.prompt([]), talk.prompt([answer])
  assert not cut
  assert not also
  assert first in found['a'].texts
  assert first == chatty.encode('Name a colour.')
  # The answer's own tokens, but not the one that ends it.
  assert second == first + answer[:-1] + chatty.encode('\n\nAnother?')
  assert talk.prompt([answer, answer]) is None
  assert talk_of(found, 'Name a town').prompt([answer]) is None


def test_the_end_that_a_tokenizer_adds_stays_at_the_end(chatty, tmp_path):
  """As T5 has it: the encoder reads one text with one end."""
  ends = copy.deepcopy(chatty)
  end = ends.eos_token_id
  ends.backend_tokenizer.post_processor = processors.TemplateProcessing(
    single='$A <|e|>', special_tokens=[('<|e|>', end)]
  )
  talk = talk_of(collect(ends, tmp_path), 'Name a colour')
  ids, _ = talk.prompt([chatty.encode(' Blue.')])
  assert ids == [*chatty.encode('Name a colour. Blue.\n\nAnother?'), end]


def test_fewer_turns_and_the_first_alone(chatty, tmp_path):
  two = collect(chatty, tmp_path, turns=2)
  assert talk_of(two, 'One').says == ('One.', 'Two.')
  one = collect(chatty, tmp_path, turns=1)
  assert not one['b'].talks
  # Placeholders of other domains are passed over.
  records = [*TALKS, HELD_BACK]
  assert set(collect(chatty, tmp_path, records, domains=('a',))) == {'a'}
  assert one['b'].texts == two['b'].texts == one['b'].said
  assert 'turns' not in one['b'].facts()
  facts = two['b'].facts()
  assert facts['turns'] == 2
  sentence = prompts.describe(1, facts)
  assert 'up to 2 turns; 0 cut, none passed over' in sentence
  # Other questions later are other prompts.
  changed = [TALKS[0], TALKS[1], TALKS[2] | {'turns': ['One.', 'Zwei.']}]
  other = collect(chatty, tmp_path, changed, turns=2)
  assert other['b'].texts == two['b'].texts
  digests = {prompts.digest(x['b'].said) for x in (one, two, other)}
  assert len(digests) == 3


def test_templates_get_answers_as_text_and_a_system_prompt(chatty, tmp_path):
  fields = {'chat': True, 'system': 'Be brief.', 'template_kwargs': KWARGS}
  found = collect(chatty, tmp_path, **fields)
  answer = [*chatty.encode(' Blue. '), chatty.eos_token_id]
  ids, _ = talk_of(found, 'Name a colour').prompt([answer])
  assert chatty.decode(ids) == (
    '<system>Be brief.<user>Name a colour.<assistant>Blue.<user>Another?'
    '<assistant>(no thoughts)'
  )
  template = found['a'].facts()['template']
  assert template == conversations.digest(TEMPLATE)
  fields['template_kwargs'] = {'enable_thinking': True}
  ids, _ = talk_of(collect(chatty, tmp_path, **fields), 'One').prompt([])
  assert chatty.decode(ids) == '<system>Be brief.<user>One.<assistant>'
  own = {'chat_template': "{{ messages[-1].content ~ '!' }}"}
  found = collect(chatty, tmp_path, chat=True, template_kwargs=own, turns=1)
  assert chatty.decode(found['b'].texts[0]) == 'One.!'
  assert found['a'].facts()['template'] not in ('', template)


def test_a_text_begins_with_one_start_token(chatty, tmp_path):
  adds = copy.deepcopy(chatty)
  begin = adds.bos_token_id
  adds.backend_tokenizer.post_processor = processors.TemplateProcessing(
    single='<|b|> $A', special_tokens=[('<|b|>', begin)]
  )
  assert adds.encode('x')[0] == begin
  own = {'chat_template': '{{ bos_token }}' + TEMPLATE}
  chats = [{'chat': True, 'template_kwargs': own}, {}]
  for fields in chats:
    found = collect(adds, tmp_path, **fields)
    ids, _ = talk_of(found, 'One').prompt([adds.encode('x')[1:]])
    assert ids[0] == begin
    assert ids.count(begin) == 1
  written = [{'text': '<|b|>Hello'}]
  (found,) = collect(adds, tmp_path, written, turns=1).values()
  assert found.texts[0].count(begin) == 1


def test_room_is_left_for_answers(chatty, tmp_path):
  long = [{'turns': ['word ' * 100, 'And now?']}]
  found = collect(chatty, tmp_path, long, room=60, answer=30)['turns']
  assert found.cut == 1
  (talk,) = found.talks
  first, second = talk.bare()
  assert 58 <= len(second) + 30 <= 60
  answer = chatty.encode('word ' * 60)[:30]
  assert len(talk.prompt([answer])[0]) <= 60
  assert found.longest <= 60
  # As much as fits: a token more of room is used.
  more = collect(chatty, tmp_path, long, room=66, answer=30)['turns']
  assert len(more.texts[0]) > len(first)
  # What is said later is never shortened.
  late = [{'turns': ['Go.', 'word ' * 100]}, {'turns': ['Go.', 'On.']}]
  found = collect(chatty, tmp_path, late, room=60, answer=30)['turns']
  assert (len(found.texts), found.skipped) == (1, {'too long': 1})
  with pytest.raises(ValueError, match=r'max_new_tokens is 60.*turns=1'):
    collect(chatty, tmp_path, late, room=60, answer=60)
  # Who has one turn needs no room for answers.
  collect(chatty, tmp_path, TALKS[1:2], room=60, answer=60)


def test_answers_that_are_read_as_more_tokens_lose_their_end(chatty, tmp_path):
  found = collect(chatty, tmp_path, chat=True)
  talk = talk_of(found, 'Name a colour')
  # Halves of characters: read as text, each is three tokens.
  (half,) = [
    i
    for i in range(400)
    if chatty.decode([i]) == '\ufffd'
    and len(chatty.encode(chatty.decode([i] * 20))) > 40
  ][:1]
  ids, shortened = talk.prompt([[half] * 20])
  assert shortened
  assert len(ids) <= talk.limits[1] <= found['a'].longest
  ids, shortened = talk.prompt([chatty.encode('A word. ' * 9)[:20]])
  assert not shortened


def test_records_of_messages_are_turns(tokenizer, tmp_path):
  says = [{'role': 'user', 'content': text} for text in ('One.', 'Two.')]
  found = collect(tokenizer, tmp_path, [{'messages': says, 'category': 'c'}])
  assert found['c'].talks[0].says == ('One.', 'Two.')
  says.insert(1, {'role': 'assistant', 'content': 'So.'})
  with pytest.raises(ValueError, match=r"line 1 has messages of 'assistant'"):
    collect(tokenizer, tmp_path, [{'messages': says}])


@pytest.mark.parametrize(
  ('records', 'turns', 'says'),
  [
    ([{'turns': []}], 0, 'turns: line 1'),
    ([TALKS[0], {'turns': 'x'}], 0, 'turns: line 2'),
    ([TALKS[0], {'a': 'x'}], 0, 'turns: line 2'),
    ([{'turns': ['a', 3]}], 0, 'turns: turn 2 of line 1'),
    ([{'turns': ['a', ' ']}], 0, 'turns: turn 2 of line 1'),
    ([{'a': 'x', 'b': 'y'}], 0, 'turns: line 1'),
    # The first turn alone is missing.
    ([TALKS[0], {'turns': []}], 1, r'\w+: .*line 2.*; mend or remove it'),
    ([TALKS[0], {'turns': ['']}], 1, r'\w+: .*line 2.*; mend or remove it'),
    ([*TALKS, HELD_BACK], 0, r'\w+: .*line 4 \(9\).*placeholder of SPEED'),
  ],
)
def test_records_without_turns_are_refused(
  tokenizer, tmp_path, records, turns, says
):
  with pytest.raises(UserError, match=rf'^prompts\.{says}'):
    collect(tokenizer, tmp_path, records, turns=turns)


BAD_TEMPLATES = [
  (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    '{% endif %}x',
    {'system': 'Be brief.'}, r'prompts\.system: .*no system',
  ),
  (
    "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
    {'system': 'Be brief.'}, r'prompts\.system',
  ),
  (
    '{% if messages|length > 1 %}{{ raise_exception("once") }}{% endif %}x', {},
    r'prompts\.turns: .*once',
  ),
  ('{{ messages[-1].content }}', {}, r'prompts\.turns'),
  ("{{ raise_exception('never') }}", {}, r'prompts\.chat: .*never'),
  (
    TEMPLATE, {'template_kwargs': {'enable_thinkin_': False}},
    r'prompts\.template_kwargs: .*enable_thinkin_',
  ),
]  # fmt: skip


@pytest.mark.parametrize(('template', 'fields', 'message'), BAD_TEMPLATES)
def test_what_a_template_does_not_take_is_refused(
  chatty, tmp_path, template, fields, message
):
  made = copy.deepcopy(chatty)
  made.chat_template = template
  with pytest.raises(ValueError, match=message) as error:
    collect(made, tmp_path, chat=True, **fields)
  assert '\n' not in str(error.value)
  # What the harness tells a template is its own.
  with pytest.raises(UserError, match=r'^prompts\.template_kwargs'):
    conversations.check(Prompts(chat=True, template_kwargs={'tokenize': False}))


def test_parquet_needs_its_package(tokenizer, tmp_path, monkeypatch):
  path = tmp_path / 'test.parquet'
  path.write_bytes(b'PAR1')
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  monkeypatch.setitem(sys.modules, 'pyarrow.parquet', None)
  with pytest.raises(ValueError, match=r"needs pyarrow.*'\.\[datasets\]'"):
    collect(tokenizer, tmp_path, path=str(path))

  def read_table(name):
    if name != str(path):
      raise OSError('not a file of Parquet\nat all')
    return types.SimpleNamespace(to_pylist=lambda: TALKS)

  parquet = types.SimpleNamespace(read_table=read_table)
  package = types.SimpleNamespace(parquet=parquet)
  monkeypatch.setitem(sys.modules, 'pyarrow', package)
  monkeypatch.setitem(sys.modules, 'pyarrow.parquet', parquet)
  found = collect(tokenizer, tmp_path, path=str(path))
  assert found['b'].talks[0].says == ('One.', 'Two.', 'Three.')
  (tmp_path / 'bad.parquet').write_bytes(b'')
  with pytest.raises(ValueError, match=r'cannot be read \(not a file'):
    collect(tokenizer, tmp_path, path=str(tmp_path / 'bad.parquet'))
