"""Prompts: formats, what is cut and counted, bad input. No model runs."""

import copy
import gzip
import json
import sys
import types

import pytest

from specjax import corpus, prompts
from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.prompts import forms

HUMANEVAL = [
  {
    'task_id': f'HumanEval/{i}',
    'prompt': f'def f{i}(x):\n    """Adds {i}."""\n',
    'entry_point': f'f{i}',
    'canonical_solution': f'    return x + {i}\n',
    'test': 'pass',
  }
  for i in range(12)
]
QUESTIONS = [
  {
    'question_id': 81 + i,
    'category': category,
    'turns': [f'Question {i}?', 'And then?'],
    **({'reference': ['so']} if i % 2 else {}),
  }
  for i, category in enumerate(('writing', 'writing', 'qa'))
]
CHAT = (
  '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
  '{% if add_generation_prompt %}<assistant>{% endif %}'
)


def write(path, records):
  text = ''.join(json.dumps(r) + '\n' for r in records)
  if path.suffix == '.gz':
    path.write_bytes(gzip.compress(text.encode()))
  else:
    path.write_text(text, 'utf-8')
  return str(path)


def collect(tokenizer, room=400, seed=0, **fields):
  return prompts.collect(Prompts(**fields), tokenizer, room, seed)


def texts(tokenizer, found):
  return {d: [tokenizer.decode(t) for t in c.texts] for d, c in found.items()}


FORMATS = [
  (HUMANEVAL[:1], 'humaneval', HUMANEVAL[0]['prompt']),
  (
    [
      {
        'text': 'Add two numbers.', 'code': 'x', 'task_id': 1,
        'test_list': ['assert f(1, 2) == 3', 'assert f(0, 0) == 0'],
      },
    ],
    'mbpp',
    'You are an expert Python programmer, and here is your task: Add two '
    'numbers. Your code should pass these tests:\n\nassert f(1, 2) == 3\n'
    'assert f(0, 0) == 0\n[BEGIN]\n',
  ),
  (
    [{'question': 'How many?', 'answer': 'Two. #### 2'}], 'gsm8k',
    'Q: How many?\nA:',
  ),
  (
    [
      {
        'prompt': 'Add them.', 'code': 'x', 'task_id': 2,
        'test_list': ['assert True'],
      },
    ],
    'mbpp',
    'You are an expert Python programmer, and here is your task: Add them. '
    'Your code should pass these tests:\n\nassert True\n[BEGIN]\n',
  ),
  (
    [
      {
        'problem': 'What is $1+1$?', 'solution': 'It is 2.', 'answer': '2',
        'subject': 'Algebra', 'level': 1,
      },
    ],
    'math500', 'Problem:\nWhat is $1+1$?\n\nSolution:\n',
  ),
  (
    [{'instruction': 'Double it.', 'input': '4', 'output': '8'}], 'alpaca',
    'Below is an instruction that describes a task, paired with an input that '
    'provides further context. Write a response that appropriately completes '
    'the request.\n\n### Instruction:\nDouble it.\n\n### Input:\n4\n\n'
    '### Response:\n',
  ),
  (
    [{'instruction': 'Say so.', 'input': '', 'output': 'So.'}], 'alpaca',
    'Below is an instruction that describes a task. Write a response that '
    'appropriately completes the request.\n\n### Instruction:\nSay so.\n\n'
    '### Response:\n',
  ),
  (
    [{'messages': [{'role': 'user', 'content': 'Hello?'}], 'category': 'qa'}],
    'qa', 'Hello?',
  ),
  (QUESTIONS[2:], 'qa', 'Question 2?'),
  (
    [{'document': 'It rained.', 'summary': 'Rain', 'id': 3}], 'xsum',
    'summarize: It rained.',
  ),
  (
    [{'article': 'It {rained}.', 'highlights': 'Rain', 'id': 'a'}],
    'cnn_dailymail', 'summarize: It {rained}.',
  ),
  (
    [{'translation': {'de': 'Es regnet.', 'en': 'It rains.'}}], 'wmt_en_de',
    'translate English to German: It rains.',
  ),
  ([{'instructions': 'Say so.', 'id': 4}], 'file', 'Say so.'),
  (['Say so.'], 'file', 'Say so.'),
]  # fmt: skip


@pytest.mark.parametrize(('records', 'domain', 'text'), FORMATS)
def test_known_formats_have_the_form_of_their_source(
  tokenizer, tmp_path, records, domain, text
):
  path = write(tmp_path / 'file.jsonl', records)
  found = collect(tokenizer, path=path)
  assert texts(tokenizer, found) == {domain: [text]}
  facts = found[domain].facts()
  assert facts['source'] == 'file.jsonl'
  assert (facts['available'], facts['cut'], facts['skipped']) == (1, 0, {})


def test_compressed_lists_and_lines(tokenizer, tmp_path):
  packed = write(tmp_path / 'HumanEval.jsonl.gz', HUMANEVAL)
  plain = write(tmp_path / 'a.jsonl', HUMANEVAL)
  (tmp_path / 'b.json').write_text(json.dumps(HUMANEVAL))
  one, *others = (
    collect(tokenizer, path=path)['humaneval'].texts
    for path in (plain, packed, str(tmp_path / 'b.json'))
  )
  assert others == [one, one]
  # A separator that Python's splitlines knows, and JSON leaves as it is.
  text = json.dumps({'text': 'one\u2028two'}, ensure_ascii=False)
  (tmp_path / 'c.jsonl').write_text(f'\n{text}\n\n', 'utf-8')
  found = collect(tokenizer, path=str(tmp_path / 'c.jsonl'))
  assert texts(tokenizer, found) == {'c': ['one\u2028two']}


def test_categories_are_domains(tokenizer, tmp_path):
  path = write(tmp_path / 'question.jsonl', QUESTIONS)
  found = texts(tokenizer, collect(tokenizer, path=path))
  assert {d: sorted(t) for d, t in found.items()} == {
    'writing': ['Question 0?', 'Question 1?'],
    'qa': ['Question 2?'],
  }
  assert list(collect(tokenizer, path=path, domains=('qa',))) == ['qa']
  second = collect(tokenizer, path=path, domains=('qa',), field='turns[1]')
  assert texts(tokenizer, second) == {'qa': ['And then?']}


def test_the_seed_draws_and_count_limits(tokenizer, tmp_path):
  path = write(tmp_path / 'a.jsonl', HUMANEVAL)
  some = [collect(tokenizer, path=path, count=5, seed=s) for s in (0, 0, 1)]
  first, again, other = (f['humaneval'].texts for f in some)
  assert len(first) == len({tuple(t) for t in first}) == 5
  assert first == again != other
  whole = collect(tokenizer, path=path, count=100)['humaneval']
  assert len(whole.texts) == whole.available == 12
  assert whole.texts[:5] == first


def test_a_form_of_ones_own(tokenizer, tmp_path):
  path = write(tmp_path / 'a.jsonl', [{'a': 'first', 'b': ['x', 'y']}])
  found = collect(tokenizer, path=path, form='{b}\\n<{a}>', field='a')
  assert texts(tokenizer, found) == {'a': ['x\ny\n<first>']}
  found = collect(tokenizer, path=path, form='{{}} {a}!')
  assert texts(tokenizer, found) == {'a': ['{} first!']}
  # One that leaves no room is passed over.
  records = [{'a': 'x', 'b': 'y ' * 100}, {'a': 'x', 'b': 'y'}]
  write(tmp_path / 'a.jsonl', records)
  found = collect(tokenizer, path=path, form='{a} {b}', room=20)['a']
  assert (len(found.texts), found.skipped) == (1, {'too long': 1})
  write(tmp_path / 'a.jsonl', records[:1])
  with pytest.raises(ValueError, match='max_new_tokens'):
    collect(tokenizer, path=path, form='{a} {b}', room=20)


def test_a_long_text_is_cut_inside_its_form(tokenizer, tmp_path):
  records = [{'a': x} for x in ('word ' * 500, 'short', '   ', 'more ' * 60)]
  path = write(tmp_path / 'a.jsonl', records)
  form = 'Begin: {a} :the end'
  found = collect(tokenizer, path=path, form=form, room=40)['a']
  assert (found.cut, found.skipped) == (2, {'without text': 1})
  decoded = sorted((tokenizer.decode(t) for t in found.texts), key=len)
  assert decoded[0] == 'Begin: short :the end'
  for text in decoded[1:]:
    assert text.startswith('Begin: ')
    assert text.endswith(' :the end')
  # As much as fits: one more word would not.
  assert 38 <= max(map(len, found.texts)) <= 40
  sentence = prompts.describe(3, found.facts())
  assert sentence.startswith('3 of 4 prompts of a.jsonl, ')
  assert sentence.endswith('; 2 cut, 1 passed over (without text)')
  # The experiment's own bound is kept where it is the smaller.
  shorter = collect(tokenizer, path=path, length=20)['a'].texts
  assert max(map(len, shorter)) in (19, 20)


def test_plain_text_gives_windows_or_lines(tokenizer, tmp_path):
  found = collect(tokenizer, count=2)  # Without a path, windows of the corpus.
  assert list(found) == list(corpus.DOMAINS)
  assert {len(t) for c in found.values() for t in c.texts} == {96}
  chosen = prompts.choose(tokenizer, 'code', 2, 96, 0)
  assert found['code'].texts == chosen
  lines = [f'Line {i} says something of its own.' for i in range(200)]
  path = tmp_path / 'some.en.txt'
  path.write_text('\n'.join(lines))
  found = collect(tokenizer, path=str(path), length=30, count=4)
  (windows,) = found.values()
  assert list(found) == ['some.en']
  assert [len(t) for t in windows.texts] == [30] * 4
  assert all(tokenizer.decode(t).startswith('Line ') for t in windows.texts)
  assert prompts.describe(4, windows.facts()) == (
    '4 windows of some.en.txt, 30 tokens'
  )
  form = 'translate English to German: {line}'
  found = collect(tokenizer, path=str(path), form=form, count=1000)
  (lines_found,) = texts(tokenizer, found).values()
  assert sorted(lines_found) == sorted(form.format(line=x) for x in lines)
  found = collect(tokenizer, path=str(path), field='line', count=1)
  assert texts(tokenizer, found)['some.en'][0] in lines


def test_chat_templates(tokenizer, tmp_path):
  chatty = copy.deepcopy(tokenizer)
  chatty.chat_template = CHAT
  path = write(tmp_path / 'question.jsonl', QUESTIONS)
  found = collect(chatty, path=path, domains=('qa',), chat=True)
  assert texts(tokenizer, found) == {'qa': ['<user>Question 2?<assistant>']}
  # The template stays whole, whatever is cut.
  long = write(tmp_path / 'long.jsonl', [{'text': 'word ' * 200}])
  (found,) = collect(chatty, path=long, chat=True, room=40).values()
  text = tokenizer.decode(found.texts[0])
  assert found.cut == 1
  assert len(found.texts[0]) <= 40
  assert text.startswith('<user>word')
  assert text.endswith('<assistant>')
  with pytest.raises(ValueError, match=r'prompts\.chat: .*no chat template'):
    collect(tokenizer, path=path, chat=True)
  chatty.chat_template = '{{ raise_exception("users only") }}'
  with pytest.raises(ValueError, match=r'prompts\.chat: .*users only'):
    collect(chatty, path=path, chat=True)


BAD_FILES = [
  ('a.jsonl', None, {}, 'path'),
  ('a.jsonl', '\n \n', {}, 'path'),
  ('a.jsonl', '{"text": "x"}\n{"text": \n', {}, 'path: line 2'),
  ('a.jsonl', '{"text": "x"}\n\n[1]\n', {}, 'path: line 3'),
  ('a.jsonl', '{"text": " "}\n{"text": ""}', {}, 'path'),
  ('a.json', '{"text": "x"}', {}, 'path'),
  ('a.jsonl.gz', 'no gzip', {}, 'path'),
  ('a.jsonl.gz', gzip.compress(b'{"text": 1}' * 9, mtime=0)[:-5], {}, 'path'),
  ('a.jsonl', b'\xff\xfe', {}, 'path'),
  ('a.jsonl', '{"a": "x", "b": "y", "c": 1}', {}, 'field: the fields a, b, c'),
  ('a.jsonl', '{"prompt": 5}', {}, 'field: no field of line 1 is a text'),
  ('a.jsonl', '{"a": "x"}\n{"b": "y"}', {'field': 'a'}, 'field: line 2'),
  ('a.jsonl', '{"a": 3}', {'field': 'a'}, "field: 'a' of line 1"),
  (
    'a.jsonl',
    '{"a": "x"}',
    {'form': 'x {b}'},
    "field: line 1 has no field 'b'",
  ),
  ('a.jsonl', '{"a": "x"}', {'form': 'x {a'}, 'form'),
  ('a.jsonl', '{"a": "x"}', {'form': 'x'}, 'form'),
  ('a.jsonl', '{"a": "x"}', {'field': 'a', 'domains': ('poetry',)}, 'domains'),
  ('a.txt', 'Some text.', {'length': 50}, 'length'),
  ('a.txt', 'Some text.', {'domains': ('b',)}, 'domains'),
  ('a.txt', 'Some text.', {'form': '{text}'}, 'form'),
  ('a.txt', 'Some text.', {'dataset': 'x'}, 'path'),
]


@pytest.mark.parametrize(('name', 'content', 'fields', 'where'), BAD_FILES)
def test_bad_file_names_the_field(
  tokenizer, tmp_path, name, content, fields, where
):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content if type(content) is bytes else content.encode())
  with pytest.raises(UserError) as error:
    collect(tokenizer, path=str(path), **fields)
  assert str(error.value).startswith(f'prompts.{where}')


def test_data_sets_of_the_hub(tokenizer, monkeypatch):
  def load_dataset(path, configuration, split, revision='main'):
    if revision == 'v2':
      return [{'question': 'How few?', 'answer': '#### 1'}]
    if (path, configuration, split) == ('openai/gsm8k', 'main', 'test'):
      return [{'question': 'How many?', 'answer': '#### 2'}]
    if path == 'me/empty':
      return []
    raise FileNotFoundError(f'no {path}\nand a long story')

  fake = types.SimpleNamespace(load_dataset=load_dataset)
  monkeypatch.setitem(sys.modules, 'datasets', fake)
  found = collect(tokenizer, dataset='openai/gsm8k:main')
  assert texts(tokenizer, found) == {'gsm8k': ['Q: How many?\nA:']}
  assert found['gsm8k'].source == 'openai/gsm8k:main (test)'
  found = collect(tokenizer, dataset='openai/gsm8k@v2:main')
  assert texts(tokenizer, found) == {'gsm8k': ['Q: How few?\nA:']}
  with pytest.raises(ValueError, match=r"'me/none' cannot be loaded \(no me"):
    collect(tokenizer, dataset='me/none')
  with pytest.raises(ValueError, match='is empty'):
    collect(tokenizer, dataset='me/empty')
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(ValueError, match='pip install'):
    collect(tokenizer, dataset='openai/gsm8k:main')


def test_every_format_can_be_told_apart():
  """The first that fits is taken: none may hide a later one."""
  for known in forms.FORMATS:
    others = [f for f in forms.FORMATS if f is not known]
    assert not any(set(f.fields) <= set(known.fields) for f in others)
