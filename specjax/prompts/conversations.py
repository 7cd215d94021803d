"""What users and models say in turns, as token ids.

A chat template writes a conversation with the answers as text. Without one a
conversation goes on plainly: the tokens so far and those of the answer, then an
empty line and what is said next.

  turn 1   Name a colour.
  turn 2   Name a colour. Blue.\n\nAnd another?
"""

import dataclasses
import functools
import hashlib
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
  """Checks what can be checked without a tokenizer.

  Raises:
    UserError: names the field and the remedy.
  """
  for name in ('system', 'template_kwargs'):
    need(
      x.chat or not getattr(x, name),
      f'prompts.{name} is for a chat template, but prompts.chat is False: give '
      '--prompts.chat, or leave it out',
    )
  need(
    isinstance(x.template_kwargs, dict)
    and all(isinstance(name, str) for name in x.template_kwargs),
    f'prompts.template_kwargs must be a dictionary by name, such as '
    f'{{"enable_thinking": False}}, got {x.template_kwargs!r}',
  )
  for name in _OWN:
    need(
      name not in x.template_kwargs,
      f'prompts.template_kwargs: {name!r} is decided here; leave it out',
    )


def template_of(tokenizer, x: Prompts) -> str:
  """The chat template that writes the prompts.

  Raises:
    UserError: there is none.
  """
  own = x.template_kwargs.get(_TEMPLATE)
  try:
    template = tokenizer.get_chat_template(own)
  except ValueError:
    template = None
  if not template:
    raise UserError(
      'prompts.chat: the tokenizer has no chat template; leave it out, use a '
      'target that was tuned on chats, or give a template as chat_template '
      'with prompts.template_kwargs'
    )
  return template


def digest(template: str) -> str:
  """A short hash of a chat template."""
  return hashlib.sha256(template.encode()).hexdigest()[:12]


def check_template(tokenizer, x: Prompts) -> None:
  """Whether the chat template takes all that it will be given.

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
  one, two = ['A question.'], ['A question.', 'Another question.']
  if x.system:
    text = _try(tokenizer, x, one, [], 'system', _NO_SYSTEM)
    need(
      x.system.strip() in text,
      f'prompts.system: the chat template drops it; {_NO_SYSTEM}',
    )
  if x.turns != 1:
    text = _try(tokenizer, x, two, ['Some answer.'], 'turns', _NO_TURNS)
    need(
      'Some answer.' in text,
      f'prompts.turns: the chat template drops answers; {_NO_TURNS}',
    )


def _try(tokenizer, x: Prompts, says, answers, field: str, rest: str) -> str:
  """What the template writes; blames a field if without it all is well."""
  try:
    return _render(tokenizer, x, says, answers, tokenize=False)
  except Exception as error:  # A template is a program of its own.
    without = dataclasses.replace(x, system='') if field == 'system' else x
    _write(tokenizer, without, says[:1], [])
    raise UserError(
      f'prompts.{field}: the chat template refuses it ({_reason(error)}); '
      f'{rest}'
    ) from error


def _reason(error: Exception) -> str:
  return ' '.join(str(error).split()) or type(error).__name__


def _render(tokenizer, x: Prompts, says, answers, **options) -> Any:
  messages = [{'role': 'system', 'content': x.system}] if x.system else []
  for place, text in enumerate(says):
    messages.append({'role': 'user', 'content': text})
    if place < len(answers):
      answer = answers[place].strip()
      messages.append({'role': 'assistant', 'content': answer})
  return _apply(tokenizer, x, messages, **options)


def _apply(tokenizer, x: Prompts, messages, **options) -> Any:
  return tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, **options, **x.template_kwargs
  )


def write(
  tokenizer, x: Prompts, messages: Sequence[Mapping[str, str]]
) -> list[int]:
  """The token ids of messages in the chat template, the answer to come.

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
  return _once_begun(tokenizer, ids)


def _once_begun(tokenizer, ids: list[int]) -> list[int]:
  """Without the second of two start tokens."""
  begin = getattr(tokenizer, 'bos_token_id', None)
  return ids[begin is not None and ids[:2] == [begin, begin] :]


def _write(tokenizer, x: Prompts, says, answers) -> list[int]:
  try:
    return _render(tokenizer, x, says, answers, return_dict=False)
  except Exception as error:
    raise UserError(
      f'prompts.chat: the chat template of the tokenizer fails '
      f'({_reason(error)}); leave prompts.chat out and write the form with '
      'prompts.form'
    ) from error


def read(tokenizer, answer: Sequence[int]) -> str:
  """The text of an answer, without what ends it."""
  return tokenizer.decode(list(answer), skip_special_tokens=True)


def encode(
  tokenizer,
  x: Prompts,
  says: Sequence[str],
  answers: Sequence[Sequence[int]] = (),
) -> list[int]:
  """The token ids of one prompt; they begin with one start token at most.

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
    ids = _write(tokenizer, x, says, [read(tokenizer, a) for a in answers])
  else:
    ids = tokenizer.encode(says[0], verbose=False)
    if answers:
      ids = _go_on(tokenizer, ids, says, answers)
  return _once_begun(tokenizer, ids)


def _go_on(tokenizer, ids: list[int], says, answers) -> list[int]:
  """A prompt with what followed it; the end of a text stays at the end."""
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
  """The most of `size` that fits, by halves; 0 is not asked for."""
  if fits(size):
    return size
  low, high = 0, size  # `low` fits, `high` does not.
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
  return low


@dataclasses.dataclass(frozen=True)
class Conversation:
  """What a user says in turns; the answers are still to be made.

  Attributes:
    says: of each turn.
    write: (says, token ids of answers) -> token ids of a prompt.
    limits: tokens that the prompt of each turn may have.
  """

  says: tuple[str, ...]
  write: Callable[[Sequence[str], Sequence[Sequence[int]]], list[int]]
  limits: tuple[int, ...]

  def bare(self) -> list[list[int]]:
    """The prompts of all turns, as if every answer were empty."""
    return bare(self.write, self.says)

  def prompt(
    self, answers: Sequence[Sequence[int]]
  ) -> tuple[list[int], bool] | None:
    """The prompt of a turn, and whether answers lost their end in it.

    They do where they are read as many more tokens than they were written
    with, as halves of characters are.

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
  """The prompts of all turns, as if every answer were empty."""
  return [write(says[: i + 1], [[]] * i) for i in range(len(says))]


def limits(
  prompts: Sequence[Sequence[int]], answer: int, room: int
) -> tuple[int, ...]:
  """Tokens that the prompt of each turn may have.

  Args:
    prompts: of all turns, with empty answers.
    answer: tokens of an answer, at most.
    room: tokens that any prompt may have.
  """
  more = answer + answer // 16 + SLACK
  return tuple(
    min(room, len(ids) + turn * more) for turn, ids in enumerate(prompts)
  )
