"""Writes conversations of users and models as token ids.

A chat template writes a conversation with the answers as text. Without one a
conversation goes on plainly: the tokens so far and those of the answer, then an
empty line and what is said next.

  turn 1   Name a colour.
  turn 2   Name a colour. Blue.\n\nAnd another?
"""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specjax.errors import UserError, need
from specjax.prompts import forms
from specjax.prompts.config import Prompts

# An answer may be read as a few tokens more than it was written with.
SLACK = 8
_TEMPLATE = 'chat_template'
_NO_SYSTEM = 'leave it out, or write it with prompts.form'
_NO_TURNS = 'leave it at 1, and the first turn is played alone'
_OWN = (
  'conversation', 'tools', 'documents', 'add_generation_prompt',
  'continue_final_message', 'tokenize', 'padding', 'truncation', 'max_length',
  'return_tensors', 'return_dict', 'messages',
)  # fmt: skip


def check(x: Prompts) -> None:
  """Checks the fields of a conversation that need no tokenizer.

  Raises:
    UserError: names the field and the remedy.
  """
  for name in ('system', 'template_kwargs'):
    need(
      x.chat or not getattr(x, name),
      f'prompts.{name} is for a chat template, but prompts.chat is False: give '
      '--prompts.chat, or leave it out',
    )
  for name in _OWN:
    need(
      name not in x.template_kwargs,
      f'prompts.template_kwargs: {name!r} is decided here; leave it out',
    )


def template_of(tokenizer, x: Prompts) -> str:
  """Returns the chat template that writes the prompts.

  Raises:
    UserError: there is none.
  """
  template = ''
  with contextlib.suppress(ValueError):
    template = tokenizer.get_chat_template(x.template_kwargs.get(_TEMPLATE))
  need(
    template,
    'prompts.chat: the tokenizer has no chat template; leave it out, use a '
    'target that was tuned on chats, or give a template as chat_template with '
    'prompts.template_kwargs',
  )
  return template


def digest(template: str) -> str:
  """Returns a short hash of a chat template."""
  return hashlib.sha256(template.encode()).hexdigest()[:12]


def check_template(tokenizer, x: Prompts) -> None:
  """Checks that the chat template takes all that it will be given.

  Raises:
    UserError: names the field and the remedy.
  """
  template = template_of(tokenizer, x)
  for name in x.template_kwargs:
    need(
      name == _TEMPLATE or name in template,
      f'prompts.template_kwargs: the chat template knows no {name!r}; leave it '
      'out, or check how the template calls it',
    )
  one, two, answer = ['A question.'], ['A question.', 'Another.'], 'An answer.'
  if x.system:
    other = dataclasses.replace(x, system='')
    text = _try(tokenizer, x, other, _messages(x, one), 'system', _NO_SYSTEM)
    need(
      x.system.strip() in text,
      f'prompts.system: the chat template drops it; {_NO_SYSTEM}',
    )
  if x.turns != 1:
    text = _try(
      tokenizer, x, x, _messages(x, two, [answer]), 'turns', _NO_TURNS
    )
    need(
      answer in text,
      f'prompts.turns: the chat template drops answers; {_NO_TURNS}',
    )


def _try(tokenizer, x, without: Prompts, messages, field: str, rest: str):
  """Returns what the template writes.

  Raises:
    UserError: the template fails; names `field` if without it it does not.
  """
  try:
    return _apply(tokenizer, x, messages, tokenize=False)
  except Exception as error:  # A template is a program of its own.
    _write(tokenizer, without, _messages(without, ['A question.']))
    raise UserError(
      f'prompts.{field}: the chat template refuses it ({_reason(error)}); '
      f'{rest}'
    ) from error


def _reason(error: Exception) -> str:
  return ' '.join(str(error).split()) or type(error).__name__


def _messages(x: Prompts, says, answers=()) -> list[dict[str, str]]:
  messages = [{'role': 'system', 'content': x.system}] if x.system else []
  for text, answer in itertools.zip_longest(says, answers):
    messages.append({'role': 'user', 'content': text})
    if answer is not None:
      messages.append({'role': 'assistant', 'content': answer.strip()})
  return messages


def _apply(tokenizer, x: Prompts, messages, **options) -> Any:
  return tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, **options, **x.template_kwargs
  )


def write(
  tokenizer, x: Prompts, messages: Sequence[Mapping[str, str]]
) -> list[int]:
  """Returns the token ids of messages in the chat template, without an answer.

  Args:
    tokenizer: of the target.
    x: what the template is told; its system prompt is put before messages that
      have none.
    messages: each with `role` and `content`.

  Raises:
    UserError: the template refuses them.
  """
  if x.system and messages[0]['role'] != 'system':
    messages = [{'role': 'system', 'content': x.system}, *messages]
  try:
    ids = _apply(tokenizer, x, messages, return_dict=False)
  except Exception as error:  # A template is a program of its own.
    raise UserError(
      f'the chat template refuses them: {_reason(error)}'
    ) from error
  return _with_one_start(tokenizer, ids)


def _write(tokenizer, x: Prompts, messages) -> list[int]:
  try:
    return write(tokenizer, x, messages)
  except UserError as error:
    raise UserError(
      f'prompts.chat: {error}; leave prompts.chat out and write the form with '
      'prompts.form'
    ) from error


def _with_one_start(tokenizer, ids: list[int]) -> list[int]:
  """Returns a prompt without the second of two start tokens."""
  begin = getattr(tokenizer, 'bos_token_id', None)
  return ids[begin is not None and ids[:2] == [begin, begin] :]


def encode(
  tokenizer,
  x: Prompts,
  says: Sequence[str],
  answers: Sequence[Sequence[int]] = (),
) -> list[int]:
  """Returns the token ids of one prompt, with one start token at most.

  Args:
    tokenizer: of the target.
    x: whether and how a chat template is put around what is said, up to where
      the answer begins.
    says: what the user says in each turn.
    answers: token ids, to all of it but the last.

  Raises:
    UserError: the tokenizer has no chat template, or it does not take this.
  """
  for text in says:
    forms.check_text('prompt', text)
  if x.chat:
    template_of(tokenizer, x)
    texts = [
      tokenizer.decode(list(answer), skip_special_tokens=True)
      for answer in answers
    ]
    return _write(tokenizer, x, _messages(x, says, texts))
  ids = tokenizer.encode(says[0], verbose=False)
  if answers:
    ids = _go_on(tokenizer, ids, says, answers)
  return _with_one_start(tokenizer, ids)


def _go_on(tokenizer, ids: list[int], says, answers) -> list[int]:
  """Returns a prompt with its answers and turns; an end token stays last."""
  encode = functools.partial(
    tokenizer.encode, add_special_tokens=False, verbose=False
  )
  end = ids[-1:] if ids[-1:] != encode(says[0])[-1:] else []
  ids = ids[: len(ids) - len(end)]
  special = set(tokenizer.all_special_ids)
  for answer, text in zip(answers, says[1:], strict=True):
    ids += [token for token in answer if token not in special]
    ids += encode(f'\n\n{text}')
  return ids + end


def longest(size: int, fits: Callable[[int], bool]) -> int:
  """Returns the most of `size` that fits, found by halves; 0 is not tried."""
  if fits(size):
    return size
  return bisect.bisect_left(range(1, size), True, key=lambda n: not fits(n))


@dataclasses.dataclass(frozen=True)
class Conversation:
  """Turns of a user, whose answers are still to be made.

  Attributes:
    says: of each turn.
    write: (says, token ids of answers) -> token ids of a prompt.
    limits: tokens that the prompt of each turn may have.
  """

  says: tuple[str, ...]
  write: Callable[[Sequence[str], Sequence[Sequence[int]]], list[int]]
  limits: tuple[int, ...]

  def bare(self) -> list[list[int]]:
    """Returns the prompts of all turns, with empty answers."""
    return bare(self.write, self.says)

  def prompt(
    self, answers: Sequence[Sequence[int]]
  ) -> tuple[list[int], bool] | None:
    """Returns the prompt of a turn, and whether answers were shortened in it.

    An answer is shortened where it is read as many more tokens than it was
    written with, as halves of characters are.

    Args:
      answers: token ids, to all turns before.

    Returns:
      None where all turns were played.
    """
    turn = len(answers)
    if turn >= len(self.says):
      return None

    def of(size):
      return self.write(self.says[: turn + 1], [a[:size] for a in answers])

    size = max(map(len, answers), default=0)
    most = longest(size, lambda n: len(of(n)) <= self.limits[turn])
    return of(most), most < size


def bare(write, says: Sequence[str]) -> list[list[int]]:
  """Returns the prompts of all turns, with empty answers."""
  return [write(says[: i + 1], [[]] * i) for i in range(len(says))]


def limits(
  prompts: Sequence[Sequence[int]], answer: int, room: int
) -> tuple[int, ...]:
  """Returns how many tokens the prompt of each turn may have.

  Args:
    prompts: of all turns, with empty answers.
    answer: tokens of an answer, at most.
    room: tokens that any prompt may have.
  """
  more = answer + answer // 16 + SLACK
  return tuple(
    min(room, len(ids) + turn * more) for turn, ids in enumerate(prompts)
  )
