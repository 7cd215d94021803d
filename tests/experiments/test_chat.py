"""Conversations in the terminal: what is said, answered and forgotten."""

import contextlib
import io
import re
import sys

import pytest

import specjax
from specjax.bench import single_model
from specjax.bench.config import Prompts
from specjax.programs import chat
from tests.support import tiny

NEW = 10
SIZES = re.compile(r'[0-9.]+ (a second|s\])')
TEMPLATE = (
  "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<bot>"
)


@pytest.fixture
def say(folder, monkeypatch, capsys):
  """Runs the program on lines of input; what it prints, without times."""

  def run(*lines, **changes):
    text = ''.join(f'{line}\n' for line in lines)
    monkeypatch.setattr(sys, 'stdin', io.StringIO(text))
    options = {'max_new_tokens': NEW, 'temperatures': (0.0,)} | changes
    chat.main(tiny.experiment(folder, **options))
    return SIZES.sub(r'. \1', capsys.readouterr().out)

  return run


@pytest.fixture
def heard(monkeypatch):
  """The prompts that were answered, as text."""
  seen, stream = [], specjax.stream

  def listen(target, drafter, prompt, **options):
    seen.append(target.tokenizer.decode(prompt))
    return stream(target, drafter, prompt, **options)

  monkeypatch.setattr(specjax, 'stream', listen)
  return seen


def answers_of(shown):
  """What stands between what was said and the line of sizes."""
  return re.findall(r'^> [^/\n].*\n((?s:.*?))\n\[', shown, re.M)


def test_an_answer_is_what_the_door_gives(folder, say):
  target = specjax.load(folder / 'target')
  draft = specjax.drafters.lm.load(target, str(folder / 'draft'))
  out = specjax.decode(target, draft, 'def fib(n):', gamma=2, new_tokens=NEW)
  shown = say('def fib(n):')
  assert answers_of(shown) == out.texts
  sizes = f'[draft: {NEW} tokens, {out.tau:.2f} a target call, . a second'
  assert f'{sizes}, the first after . s]' in shown
  assert '\x1b' not in shown


def test_an_answer_without_speculation_is_the_same(say):
  shown = say('def f', '/plain', '/reset', 'def f', '/plain', '/reset', 'def f')
  one, plain, other = answers_of(shown)
  assert one == plain == other
  assert shown.count('[draft: ') == 2
  assert f'[plain: {NEW} tokens, 1.00 a target call' in shown
  assert '(the next answers: plain)' in shown
  assert '(the next answers: drafts of draft)' in shown


def test_something_is_shown_before_the_first_token(folder, monkeypatch):
  both = io.StringIO()
  monkeypatch.setattr(sys, 'stdin', io.StringIO('def f\n'))
  with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
    chat.main(tiny.experiment(folder, max_new_tokens=NEW))
  phases = r'loading: .* s\n> def f\nuntil the first token: .* s\n'
  assert re.match(phases, both.getvalue())


def test_a_conversation_goes_on_until_it_is_forgotten(say, heard):
  shown = say('one', '', 'two', '/nothing', '/reset', 'three', '/quit', 'four')
  first, _, _ = answers_of(shown)
  assert heard == ['one', f'one{first}\n\ntwo', 'three']
  assert 'no command is called /nothing' in shown
  assert 'forgotten' in shown


def test_a_chat_template_is_used_where_there_is_one(say, heard):
  prompts = Prompts(chat=True, template_kwargs={'chat_template': TEMPLATE})
  shown = say('one', 'two', prompts=prompts)
  first, _ = answers_of(shown)
  assert heard[0] == '<user>one<bot>'
  assert heard[1] == (f'<user>one<assistant>{first.strip()}<user>two<bot>')


def test_an_interrupt_ends_an_answer_and_not_the_program(
  say, heard, monkeypatch
):
  stream, calls = specjax.stream, []

  def interrupted(*args, **options):
    calls.append(options)
    pieces = stream(*args, **options)
    yield next(pieces)
    if len(calls) == 1:
      raise KeyboardInterrupt
    yield from pieces

  monkeypatch.setattr(specjax, 'stream', interrupted)
  shown = say('one', 'two')
  first, _ = answers_of(shown)
  assert first.endswith(' (interrupted)')
  said = first.removesuffix(' (interrupted)')
  assert heard[1] == f'one{said}\n\ntwo'
  assert f'[draft: {NEW} tokens' in shown


def test_an_interrupt_while_nothing_is_said_says_how_to_end(say, monkeypatch):
  lines = iter([KeyboardInterrupt(), '/quit'])

  def hear(shows):
    del shows  # Unused.
    line = next(lines)
    if isinstance(line, KeyboardInterrupt):
      raise line
    return line

  monkeypatch.setattr(chat, 'hear', hear)
  assert '/quit ends the program' in say()


def test_the_oldest_turns_are_forgotten_where_there_is_no_room(say, heard):
  """There are 128 positions, of which answers take NEW."""
  long = 'x y ' * 40
  shown = say(long, long, 'two', 'x ' * 400, 'three')
  assert shown.count('(the oldest turn is forgotten)') >= 1
  assert heard[1].startswith('x y')
  assert heard[1].count('x y') == 40
  assert 'there is room for 118: say less' in shown
  assert heard[-1].endswith('three')
  assert len(heard) == 4


def test_a_draft_of_another_vocabulary_counts_its_own_tokens(say, monkeypatch):
  monkeypatch.setattr(
    single_model.vocabulary,
    'size_of_prompts',
    lambda described, room, new: lambda ids: room + 1,
  )
  assert 'this has 119 tokens, and there is room for 118' in say('x')


def test_seeds_of_answers_differ(say):
  one, other = answers_of(say('one', '/reset', 'one', temperatures=(1.0,)))
  assert one != other
