"""Texts of a request: its messages, its prompts, and what is predicted."""

from typing import Any

from specjax.serving import kinds
from specjax.serving.refusals import of_field


def _content(name: str, value: Any) -> str:
  """A message's text: one, or parts of kind `text`."""
  if not isinstance(value, list):
    return kinds.text(name, value)
  texts = []
  for part in value:
    if not isinstance(part, dict) or part.get('type') != 'text':
      raise of_field(name, 'must be a text, or parts of type text')
    kinds.know(name, part, ('type', 'text'))
    texts.append(kinds.text(name, part.get('text')))
  return ''.join(texts)


def messages(value: Any) -> list[dict[str, str]]:
  name = 'messages'
  if not isinstance(value, list) or not value:
    raise of_field(name, 'must be a list of at least one message')
  found = []
  for place, one in enumerate(value):
    at = f'{name}[{place}]'
    if not isinstance(one, dict):
      raise of_field(at, 'must be an object with role and content')
    one = {key: x for key, x in one.items() if x is not None}
    kinds.know(at, one, ('role', 'content'))
    role = 'system' if one.get('role') == 'developer' else one.get('role')
    if role not in ('system', 'user', 'assistant'):
      raise of_field(f'{at}.role', 'must be system, user or assistant')
    content = _content(f'{at}.content', one.get('content'))
    found.append({'role': role, 'content': content})
  return found


def _ids(value: list, vocab_size: int) -> list[int]:
  for one in value:
    if not kinds.is_whole(one) or not 0 <= one < vocab_size:
      raise of_field(
        'prompt', f'must have token ids from 0 to {vocab_size - 1}'
      )
  return value


def prompts(value: Any, vocab_size: int) -> list[Any]:
  if isinstance(value, str):
    return [kinds.text('prompt', value)]
  if not isinstance(value, list) or not value:
    raise of_field('prompt', 'must be a text, token ids, or a list of these')
  if all(isinstance(one, str) for one in value):
    return [kinds.text('prompt', one) for one in value]
  if all(isinstance(one, list) for one in value):
    return [_ids(one, vocab_size) for one in value]
  return [_ids(value, vocab_size)]


def prediction(value: Any) -> str:
  """The text that an answer is predicted to repeat."""
  name = 'prediction'
  if not isinstance(value, dict) or value.get('type') != 'content':
    raise of_field(name, 'must be an object of type content, with content')
  kinds.know(name, value, ('type', 'content'))
  return _content(f'{name}.content', value.get('content'))
