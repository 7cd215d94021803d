"""Prompts and conversations as token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.bench.config import Prompts
from specjax.errors import UserError
from specjax.prompts import conversations
from specjax.serving.fields import Asked, Limits
from specjax.serving.refusals import Refused


def _plainly(messages: Sequence[Mapping[str, str]]) -> str:
  """A conversation that goes on as text: an empty line before what is asked."""
  text = ''
  for one in messages:
    gap = '\n\n' if text and one['role'] != 'assistant' else ''
    text += gap + one['content']
  return text


def _plain(tokenizer: Any, text: str) -> list[int]:
  return conversations.encode(tokenizer, Prompts(), [text])


def _write(tokenizer: Any, form: Prompts, messages: Sequence) -> list[int]:
  if not form.chat:
    return _plain(tokenizer, _plainly(messages))
  try:
    return conversations.write(tokenizer, form, messages)
  except UserError as error:
    raise Refused(f'messages: {error}', 'messages') from error


def predict(tokenizer: Any, asked: Asked, limits: Limits) -> list[int]:
  """The token ids of a prediction; none where there is none.

  Raises:
    Refused: it is too long.
  """
  text, most, name = asked.prediction, limits.predicted, 'prediction'
  ids = tokenizer.encode(text, add_special_tokens=False) if text else []
  if len(ids) > most:
    raise Refused(
      f'{name} has {len(ids)} tokens, of which {most} are taken: shorten it, '
      'or start the service with more prediction_tokens',
      name,
    )
  return ids


def encode(
  tokenizer: Any, form: Prompts, asked: Asked, limits: Limits
) -> list[list[int]]:
  """The token ids of each prompt of a request.

  Raises:
    Refused: one is empty or too long, or the chat template refuses it.
  """
  name = 'messages' if asked.chat else 'prompt'
  new = asked.new_tokens or 1
  room = limits.length - (0 if limits.apart else new)
  found = []
  for one in asked.prompts:
    if asked.chat:
      ids = _write(tokenizer, form, one)
    elif isinstance(one, str):
      ids = _plain(tokenizer, one)
    else:
      ids = list(one)
    if not ids:
      raise Refused(f'{name} is empty', name)
    if len(ids) > room:
      raise Refused(
        f'{name} has {len(ids)} tokens, and the answer may have {new}: there '
        f'is room for {limits.length} together',
        name if len(ids) >= limits.length else 'max_tokens',
        code='context_length_exceeded',
      )
    if max(ids) >= limits.vocab_size:
      raise Refused(f'{name} has a token that the target does not know', name)
    found.append(ids)
  return found
