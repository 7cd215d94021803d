"""Greedy texts that another program wrote: a JSON object a line."""

import json

from specjax.errors import UserError
from specjax.types import Spec

_CONTENT = ('text', 'tokens')


def _ids(value) -> bool:
  return isinstance(value, list) and all(type(x) is int for x in value)


def _parse(path: str, number: int, line: str) -> dict:
  where = f'text: line {number} of {path}'
  try:
    entry = json.loads(line)
  except ValueError as error:
    raise UserError(f'{where} is no JSON: {error}') from error
  if not isinstance(entry, dict) or 'prompt' not in entry:
    raise UserError(f'{where} is no object with a prompt: give its token ids')
  if sum(name in entry for name in _CONTENT) != 1:
    raise UserError(f'{where} needs either text or tokens')
  text, tokens = entry.get('text', ''), entry.get('tokens', [])
  if not isinstance(text, str) or not _ids(tokens):
    raise UserError(
      f'{where}: text must be a string and tokens a list of ids, got '
      f'{text or tokens!r}'
    )
  return entry


def read(path: str) -> list[dict]:
  """The objects of a file, checked one by one.

  Raises:
    UserError: names the line and what it lacks.
  """
  if not path:
    raise UserError('text is empty: name a file with --text=FILE')
  try:
    with open(path) as file:
      lines = file.read().splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(
      f'text: {path} cannot be read: {error}; name a file of texts'
    ) from error
  return [
    _parse(path, i + 1, line) for i, line in enumerate(lines) if line.strip()
  ]


def _prompt(entry: dict, prompts: list[list[int]]) -> tuple[int, ...]:
  """The prompt that an object is about, given as such or by its number."""
  prompt, total = entry['prompt'], len(prompts)
  if _ids(prompt) and prompt in prompts:
    return tuple(prompt)
  if type(prompt) is not int or not 0 <= prompt < total:
    raise UserError(
      f'text: {prompt!r} is none of the {total} prompts: give the token ids of '
      f'one, or its number from 0 to {total - 1}'
    )
  return tuple(prompts[prompt])


def _cut(ids: list[int], spec: Spec, new_tokens: int, whose: str) -> list[int]:
  """Token ids up to the end of the text or the limit."""
  end = next((i + 1 for i, t in enumerate(ids) if t in spec.eos), len(ids))
  ids = ids[: min(end, new_tokens)]
  vocab = spec.target.config.vocab_size
  if not all(0 <= t < vocab for t in ids):
    raise UserError(
      f'text: that of {whose} has a token outside the vocabulary of {vocab} '
      'tokens'
    )
  if len(ids) < new_tokens and not (ids and ids[-1] in spec.eos):
    raise UserError(
      f'text: that of {whose} has {len(ids)} tokens and no end of text, but '
      f'max_new_tokens is {new_tokens}: lower it'
    )
  return ids


def match(
  entries: list[dict],
  prompts: list[list[int]],
  tokenizer,
  spec: Spec,
  new_tokens: int,
) -> list[list[int]]:
  """New tokens of every prompt, in the order of the prompts.

  Args:
    entries: from `read`.
    prompts: token ids.
    tokenizer: what makes tokens of a text.
    spec: what knows the vocabulary and the ends of a text; what follows an end
      is cut off.
    new_tokens: of each text; what is beyond is cut off.

  Raises:
    UserError: a prompt without a text or with two, or a text too short.
  """
  texts: dict[tuple[int, ...], list[int]] = {}
  for entry in entries:
    prompt = _prompt(entry, prompts)
    ids = entry.get('tokens')
    if ids is None:
      ids = tokenizer.encode(entry['text'], add_special_tokens=False)
    whose = f'prompt {prompts.index(list(prompt))}'
    ids = _cut(ids, spec, new_tokens, whose)
    if texts.setdefault(prompt, ids) != ids:
      raise UserError(f'text: {whose} has two texts: leave one out')
  missing = [i for i, p in enumerate(prompts) if tuple(p) not in texts]
  if missing:
    raise UserError(
      f'text: {len(missing)} of {len(prompts)} prompts have no text, such as '
      f'prompt {missing[0]}: add a line for each'
    )
  return [texts[tuple(p)] for p in prompts]
