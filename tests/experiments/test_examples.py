"""Examples of one's own: what is read, held out, drawn and refused."""

import itertools
import json

import numpy as np
import pytest

from specjax import checkpoints, pair
from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.training import examples
from specjax.training.examples import Example, Reader
from specjax.training.recipes import Examples

TOKENIZER = checkpoints.load_tokenizer(pair.path('target'))
END = TOKENIZER.eos_token_id
TEMPLATE = (
  "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
  "{% if m['role'] == 'assistant' %}</s>{% endif %}{% endfor %}"
  '{% if add_generation_prompt %}[assistant]{% endif %}'
)


CHAT = {'chat': True, 'template_kwargs': {'chat_template': TEMPLATE}}


def said(*texts, roles=('user', 'assistant')):
  """A conversation of the roles in turn."""
  turns = zip(itertools.cycle(roles), texts, strict=False)
  return [{'role': role, 'content': text} for role, text in turns]


SAID = [*said('Be brief.', roles=['system']), *said('One?', 'Two.')]


def reader(path, records, answer='', evaluation='', **prompts):
  path.write_text('\n'.join(map(json.dumps, records)) + '\n')
  x = Examples(Prompts(str(path), **prompts), answer, 0.5, evaluation)
  return Reader(x, TOKENIZER, 2048)


def text_of(example):
  """What is asked, and what is learned."""
  return (
    TOKENIZER.decode(example.tokens[: example.begin]),
    TOKENIZER.decode(example.tokens[example.begin :]),
  )


@pytest.mark.parametrize(
  ('name', 'role', 'text'),
  [('messages', 'role', 'content'), ('conversations', 'from', 'value')],
)
def test_each_answer_of_a_conversation_is_learned(tmp_path, name, role, text):
  talk = said('One?', 'Two.', 'Three?', 'Four.')
  record = {name: [{role: x['role'], text: x['content']} for x in talk]}
  first, second = reader(tmp_path / 'a.jsonl', [record]).read()
  assert text_of(first) == ('One?', ' Two.<|endoftext|>')
  assert text_of(second) == ('One? Two.\n\nThree?', ' Four.<|endoftext|>')
  assert first.key == second.key  # Both are on one side of the split.


@pytest.mark.parametrize(
  ('record', 'more', 'asked', 'learned'),
  [
    # As a run asks it.
    ({'question': 'How many?', 'answer': '4.'}, {}, 'Q: How many?\nA:', ' 4.'),
    # A template is put around conversations.
    (
      {'messages': SAID},
      CHAT,
      '[system]Be brief.[user]One?[assistant]',
      'Two.',
    ),
    # All of a text is learned.
    ({'text': 'def f():'}, {}, '', 'def f():'),
    # Fields of one's own are named.
    ({'a': 'One?', 'b': '2.'}, {'answer': 'b', 'field': 'a'}, 'One?', ' 2.'),
  ],
)
def test_a_record_is_asked_and_learned(tmp_path, record, more, asked, learned):
  (one,) = reader(tmp_path / 'a.jsonl', [record], **more).read()
  assert text_of(one) == (asked, f'{learned}<|endoftext|>')
  assert one.tokens[-1] == END


def test_written_answers_keep_their_tokens(tmp_path):
  record = {'prompt_ids': [5, 6], 'answer_ids': [7, 8], 'prompt': 'x'}
  (one,) = reader(tmp_path / 'a.jsonl', [record]).read()
  assert (one.tokens, one.begin) == ([5, 6, 7, 8], 2)


def questions(count):
  return [{'question': f'What is {i}?', 'answer': str(i)} for i in range(count)]


def test_a_question_is_on_one_side_wherever_it_stands(tmp_path):
  all_of_it = examples.split(reader(tmp_path / 'a.jsonl', questions(40)))
  learned = {one.key for one in all_of_it.learned}
  held_out = {one.key for one in all_of_it.held_out}
  assert len(learned) + len(held_out) == 40
  assert 8 <= len(held_out) <= 32
  twice = questions(40)[::-1] + questions(20)
  again = examples.split(reader(tmp_path / 'b.jsonl', twice))
  assert {one.key for one in again.learned} == learned
  assert {one.key for one in again.held_out} == held_out


def test_the_share_that_is_held_out_is_that_of_hashes():
  keys = [examples.digest([i]) for i in range(4000)]
  share = np.mean([examples.is_held_out(key, 0.1) for key in keys])
  assert 0.08 < share < 0.12


def test_a_batch_counts_the_places_before_answers():
  one = Example('line 1', [3, 4, 5, 6, 7], 3, '')
  tokens, counts = examples.draw([one], 1, 8, 0, 0)
  assert tokens.tolist() == [[3, 4, 5, 6, 7, 0, 0, 0]]
  assert counts.tolist() == [[0, 0, 1, 1, 0, 0, 0, 0]]
  text = Example('line 1', [3, 4, 5], 0, '')
  assert examples.draw([text], 1, 4, 0, 0)[1].tolist() == [[1, 1, 0, 0]]


def test_a_window_of_a_long_example_has_some_of_its_answer():
  one = Example('line 1', list(range(1, 41)), 30, '')
  firsts = set()
  for number in range(50):
    tokens, counts = examples.draw([one], 1, 8, 0, number)
    judged = tokens[0][1:][counts[0][:-1] > 0]
    assert judged.size
    assert (judged > 30).all()
    assert (counts[0][:-1][tokens[0][1:] > 30] == 1).all()
    firsts.add(tokens[0, 0])
  assert min(firsts) == 24  # Its last token is the first of the answer.
  assert max(firsts) == 33


def test_every_example_is_seen_before_one_is_seen_again():
  made = [Example('', [i, i], 1, '') for i in range(1, 8)]
  seen = [
    row[0] for n in range(7) for row in examples.draw(made, 3, 2, 0, n)[0]
  ]
  for epoch in range(3):
    assert sorted(seen[7 * epoch : 7 * epoch + 7]) == list(range(1, 8))
  assert seen[:7] != seen[7:14]
  assert seen[3:6] == [row[0] for row in examples.draw(made, 3, 2, 0, 1)[0]]


def test_prompts_are_different_and_end_where_answers_begin():
  made = [Example('', [1, 2, 3, 4], 3, 'a'), Example('', [5, 6], 1, 'b')]
  found = examples.prompts_of([*made, made[0]], 9, 2, 0)
  assert sorted(found) == [[2, 3], [5]]


@pytest.mark.parametrize(
  ('record', 'message'),
  [
    ({'messages': []}, 'line 1 has no list of messages'),
    ({'messages': said('x')}, 'without an answer'),
    ({'messages': said('x', ' ')}, 'answer 1 of .* is empty'),
    (
      {'messages': said('x', roles=['assistant'])},
      'assistant speaks where it is the turn of user',
    ),
    ({'messages': said('x', roles=['tool'])}, "message of 'tool'"),
    ({'messages': said('x', roles=['system'])}, 'system prompt'),
    ({'messages': ['x']}, 'message of None'),
    ({'question': 'x', 'answer': ' '}, "no answer in 'answer'"),
    ({'question': 'x'}, r'fields question.*examples\.answer'),
    ({'text': ''}, 'line 1 is without text'),
    ({'prompt_ids': [1]}, 'answer_ids of line 1 is no list of tokens'),
    ({'prompt_ids': [1], 'answer_ids': [2048]}, 'written by another one'),
    ({'prompt_ids': [1], 'answer_ids': []}, 'answer_ids of line 1'),
    ({'prompt_ids': [True], 'answer_ids': [1]}, 'prompt_ids of line 1'),
  ],
)
def test_what_cannot_be_learned_is_named(tmp_path, record, message):
  with pytest.raises(UserError, match=message):
    reader(tmp_path / 'a.jsonl', [record]).read()


def test_examples_that_an_evaluation_asks_are_refused(tmp_path):
  asked = tmp_path / 'asked.jsonl'
  records = [{'question': f'What is {i}?', 'answer': ''} for i in (50, 3)]
  asked.write_text('\n'.join(map(json.dumps, records)))
  made = reader(tmp_path / 'a.jsonl', questions(9), evaluation=str(asked))
  with pytest.raises(UserError, match=r'line 4 asks what line 2 of.*asked'):
    examples.split(made)
  # Also where a template is around it, and written by the target.
  long = 'How many legs have nine spiders?'
  asked.write_text(json.dumps({'question': long, 'answer': ''}))
  for record in (
    {
      'prompt_ids': TOKENIZER.encode(f'[user]{long} [assistant]'),
      'answer_ids': [1],
    },
    {'messages': said('Hello!', 'What?', long.replace(' ', '\n '), '72')},
  ):
    made = reader(
      tmp_path / 'c.jsonl', [record, *questions(9)], evaluation=str(asked)
    )
    with pytest.raises(UserError, match=r'line 1 asks what line 1 of.*asked'):
      examples.split(made)
  other = reader(tmp_path / 'b.jsonl', questions(3), evaluation=str(asked))
  assert sum(map(len, examples.split(other))) == 3


def test_a_side_without_examples_is_refused(tmp_path):
  made = reader(tmp_path / 'a.jsonl', questions(2))
  made.x.held_out = 1e-9
  with pytest.raises(UserError, match=r'none is held out: raise it'):
    examples.split(made)


def test_plain_text_is_refused(tmp_path):
  with pytest.raises(UserError, match='is plain text; give records'):
    reader(tmp_path / 'a.txt', []).read()
