"""Texts and conversations of one's own: read and split.

An example is a prompt and its answer, as token ids. A drafter that is asked
while a model answers learns from answers alone; what a question says is read,
and never judged. Which examples are held out is decided by a hash of the
prompt: the same question asked twice is on one side, whatever else the file
holds.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax.errors import UserError, need
from specjax.prompts import conversations, files, forms
from specjax.prompts.files import Record
from specjax.training.recipes import Examples

_SHORTEST, _BEGIN = 16, 40  # characters of a question


def _words(text: str) -> str:
  return ' '.join(text.split())


class Questions:
  """Questions by their words.

  Args:
    places: where each question stands, by its text. Those of few characters
      are left out: they are in many texts by chance.
  """

  def __init__(self, places: Mapping[str, str]):
    self._begins: dict[int, dict[str, list[tuple[str, str]]]] = {}
    for text, place in places.items():
      words = _words(text)
      if len(words) >= _SHORTEST:
        begin = words[:_BEGIN]
        found = self._begins.setdefault(len(begin), {})
        found.setdefault(begin, []).append((words, place))

  def find(self, text: str) -> str | None:
    """Where a question stands that a text has in it, or None."""
    words = _words(text)
    for length, begins in self._begins.items():
      for at in range(len(words) - length + 1):
        for question, place in begins.get(words[at : at + length], ()):
          if words.startswith(question, at):
            return place
    return None


FIELD = 'examples.prompts.path'
DOMAIN = 'examples'
# Fields of answers, in formats that `forms` knows.
_ANSWERS = {
  'gsm8k': 'answer',
  'alpaca': 'output',
  'math500': 'solution',
  'mbpp': 'code',
  'humaneval': 'canonical_solution',
  'xsum': 'summary',
  'cnn_dailymail': 'highlights',
  'wmt_en_de': 'translation[de]',
}
_ROLES = {'human': 'user', 'gpt': 'assistant'}  # as ShareGPT calls them
_PARTS = 'prompt_ids', 'answer_ids'  # as `specjax answers` writes them


class Example(NamedTuple):
  """A prompt and what follows it.

  place: where it stands, for messages.
  tokens: ids of both.
  begin: the first of the answer; of a text 0.
  key: a hash of the prompt that opens the conversation; of a text, of it all.
  """

  place: str
  tokens: list[int]
  begin: int
  key: str


def digest(ids: Sequence[int]) -> str:
  """A hash of token ids."""
  text = ' '.join(map(str, ids))
  return hashlib.sha256(text.encode()).hexdigest()


def is_held_out(key: str, share: float) -> bool:
  """Returns True where a prompt is on the side that is never trained on."""
  return int(key[:13], 16) < share * 16**13


def _messages(record: Record) -> list[tuple[str, str]]:
  """Who says what in a conversation.

  Raises:
    UserError: it is none that can be learned from.
  """
  said = []
  listed = record.fields.get('messages', record.fields.get('conversations'))
  need(
    isinstance(listed, list) and listed,
    f'{FIELD}: {record.place} has no list of messages; mend or remove it',
  )
  for message in listed:
    role = text = None
    if isinstance(message, dict):
      role = message.get('role', message.get('from'))
      text = message.get('content', message.get('value'))
    role = _ROLES.get(str(role), role)
    need(
      role in ('system', 'user', 'assistant') and isinstance(text, str),
      f'{FIELD}: {record.place} has a message of {role!r} whose text is of '
      f'type {type(text).__name__}; system, user and assistant say texts: mend '
      'or remove it',
    )
    said.append((str(role), str(text)))
  return said


class Reader:
  """Makes examples of records.

  Args:
    x: the settings.
    tokenizer: of the target.
    vocab_size: of the target.
  """

  def __init__(self, x: Examples, tokenizer: Any, vocab_size: int):
    self.x, self.tokenizer, self.vocab_size = x, tokenizer, vocab_size

  def read(self) -> list[Example]:
    """All examples of the file.

    Raises:
      UserError: names the line, what is wrong and the remedy.
    """
    path = self.x.prompts.path
    need(
      files.kind_of(path) != 'text',
      f'{FIELD}: {path} is plain text; give records, such as a .jsonl file of '
      '{"text": ...}',
    )
    made = [
      example
      for record in files.read_records(path, FIELD)
      for example in self.of(record)
    ]
    need(made, f'{FIELD}: {path} holds no example')
    return made

  def of(self, record: Record) -> Iterator[Example]:
    """The examples of a record: one for each answer in it."""
    if any(name in record.fields for name in _PARTS):
      yield self._written(record)
    elif 'messages' in record.fields or 'conversations' in record.fields:
      yield from self._conversation(record)
    elif set(record.fields) == {'text'} and not self.x.answer:
      text = record.fields['text']
      need(
        isinstance(text, str) and text.strip(),
        f'{FIELD}: {record.place} is without text; mend or remove it',
      )
      ids = self.tokenizer.encode(text, verbose=False)
      yield Example(record.place, [*ids, *self._end()], 0, digest(ids))
    else:
      ids = self.question(record)
      answer = self._encode(ids, self._answer(record))
      yield self._example(record.place, ids, answer, digest(ids))

  def _item(self, record: Record) -> forms.Item:
    x = self.x.prompts
    return forms.apply(forms.choose(record, x.field, x.form, DOMAIN), record)

  def question(self, record: Record) -> list[int]:
    """The prompt of a record, as a run asks it."""
    item = self._item(record)
    text = item.before + item.text + item.after
    return conversations.encode(self.tokenizer, self.x.prompts, [text])

  def asked(self, path: str) -> tuple[dict[str, str], Questions]:
    """The questions of a file for evaluation, by hashes and by words."""
    keys, texts = {}, {}
    for record in files.read_records(path, 'examples.evaluation'):
      record = forms.with_turns(record)
      try:
        keys[digest(self.question(record))] = record.place
        texts[self._item(record).text] = record.place
      except UserError as error:
        raise UserError(f'examples.evaluation: {error}') from error
    return keys, Questions(texts)

  def _end(self) -> list[int]:
    end = self.tokenizer.eos_token_id
    return [] if end is None else [end]

  def _encode(self, prompt: Sequence[int], answer: str) -> list[int]:
    """The ids of an answer, behind a blank where the prompt ends in none."""
    chat, decode = self.x.prompts.chat, self.tokenizer.decode
    apart = chat or decode(prompt).endswith((' ', '\n'))
    text = answer if apart else f' {answer}'
    ids = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return [*ids, *self._end()]

  def _example(self, place, prompt, answer, key) -> Example:
    need(
      len(answer) > len(self._end()),
      f'{FIELD}: {place} has an empty answer; mend or remove it',
    )
    return Example(place, [*prompt, *answer], len(prompt), key)

  def _answer(self, record: Record) -> str:
    known = forms.recognise(record)
    name = self.x.answer or (known and _ANSWERS.get(known.name)) or ''
    need(
      name,
      f'{FIELD}: {record.place} has the fields {", ".join(record.fields)}, and '
      'none is known to hold an answer; name it with examples.answer, or give '
      'conversations as messages',
    )
    text = forms.lookup(record, name, 'examples.answer')
    need(
      isinstance(text, str) and text.strip(),
      f'{FIELD}: {record.place} has no answer in {name!r}; mend or remove it',
    )
    return text.strip()

  def _written(self, record: Record) -> Example:
    """An answer with its tokens, as the target wrote it."""
    both = [record.fields.get(name) for name in _PARTS]
    for name, ids in zip(_PARTS, both, strict=True):
      whole = isinstance(ids, list) and ids and all(type(i) is int for i in ids)
      need(
        whole and 0 <= min(ids) <= max(ids) < self.vocab_size,
        f'{FIELD}: {name} of {record.place} is no list of tokens of the target '
        f'(0 to {self.vocab_size - 1}): it was written by another one, have it '
        'answered again',
      )
    prompt, answer = both
    return Example(
      record.place, [*prompt, *answer], len(prompt), digest(prompt)
    )

  def _conversation(self, record: Record) -> Iterator[Example]:
    """An example for each answer; what was said before is its prompt."""
    said = _messages(record)
    x, says, answers = self.x.prompts, [], []
    if said[0][0] == 'system':
      need(
        x.chat,
        f'{FIELD}: {record.place} begins with a system prompt, which needs a '
        'chat template: give --examples.prompts.chat, or remove it',
      )
      x = dataclasses.replace(x, system=said[0][1])
      said = said[1:]
    turns = itertools.cycle(('user', 'assistant'))
    for who, (role, text) in zip(turns, said, strict=False):
      need(
        role == who,
        f'{FIELD}: in {record.place} {role} speaks where it is the turn of '
        f'{who}: mend or remove it',
      )
      (says if role == 'user' else answers).append(text)
    need(
      answers,
      f'{FIELD}: {record.place} is a conversation without an answer: remove '
      'it, or have it answered with specjax answers',
    )
    encoded: list[list[int]] = []
    key = ''
    for turn, text in enumerate(answers):
      need(
        text.strip(),
        f'{FIELD}: answer {turn + 1} of {record.place} is empty; mend or '
        'remove it',
      )
      ids = conversations.encode(self.tokenizer, x, says[: turn + 1], encoded)
      key = key or digest(ids)
      encoded.append(self._encode(ids, text.strip()))
      yield self._example(record.place, ids, encoded[-1], key)


class Split(NamedTuple):
  """Examples to learn from, and those that drafters are tried on."""

  learned: list[Example]
  held_out: list[Example]


def split(reader: Reader) -> Split:
  """The two sides of a file.

  Raises:
    UserError: one of them is empty, or an example asks what an evaluation asks.
  """
  x, made = reader.x, reader.read()
  if x.evaluation:
    keys, questions = reader.asked(x.evaluation)
    for one in made:
      text = reader.tokenizer.decode(one.tokens)
      place = keys.get(one.key) or questions.find(text)
      need(
        place is None,
        f'{FIELD}: {one.place} asks what {place} of '
        f'examples.evaluation ({x.evaluation}) asks: remove it from one of '
        'them, or what is measured there was learned by heart',
      )
  sides = Split([], [])
  for one in made:
    sides[is_held_out(one.key, x.held_out)].append(one)
  remedies = 'learned: lower', 'held out: raise'
  for side, remedy in zip(sides, remedies, strict=True):
    need(
      side,
      f'examples.held_out is {x.held_out}, and of {len(made)} examples none is '
      f'{remedy} it, or give more',
    )
  return sides


def fingerprint(sides: Split) -> str:
  """A hash of all examples, in their order."""
  found = hashlib.sha256()
  for one in (*sides.learned, *sides.held_out):
    found.update(f'{one.begin} {digest(one.tokens)} '.encode())
  return found.hexdigest()


def describe(sides: Split) -> str:
  """The sizes of both sides as JSON."""

  def size(side):
    answers = sum(len(one.tokens) - one.begin for one in side)
    return {'examples': len(side), 'tokens of answers': answers}

  return json.dumps(
    {'learned': size(sides.learned), 'held out': size(sides.held_out)}
  )


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
  return np.random.default_rng((seed, epoch)).permutation(count)


def draw(
  examples: Sequence[Example], count: int, length: int, seed: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
  """A batch: tokens and what counts, [count, length] each.

  Examples come in an order that is drawn anew for each time that all were
  seen; a batch depends on the seed and its number alone. One that is longer
  than the window loses its begin or its end, and keeps some of its answer.
  """
  tokens = np.zeros((count, length), np.int32)
  counts = np.zeros((count, length), np.float32)
  for row in range(count):
    epoch, place = divmod(number * count + row, len(examples))
    one = examples[_order(seed, epoch, len(examples))[place]]
    first = 0
    if len(one.tokens) > length:
      # At least one place of the answer is in it, with what it follows.
      rng = np.random.default_rng((seed, epoch, place))
      low = max(0, one.begin - length + 1)
      first = int(rng.integers(low, len(one.tokens) - length + 1))
    ids = one.tokens[first : first + length]
    tokens[row, : len(ids)] = ids
    # Place t is judged by what follows it: token t + 1.
    answer = max(one.begin - first - 1, 0)
    counts[row, answer : len(ids) - 1] = 1
  return tokens, counts


def prompts_of(
  examples: Sequence[Example], count: int, length: int, seed: int
) -> list[list[int]]:
  """Prompts of examples, each once, the last `length` tokens of each.

  A text is its own prompt up to its half at most: the rest is the answer.
  """
  different = list({one.key: one for one in examples}.values())
  order = np.random.default_rng(seed).permutation(len(different))
  chosen = [different[i] for i in order[:count]]
  return [
    (
      one.tokens[: one.begin][-length:]
      if one.begin
      else one.tokens[: min(length, max(1, len(one.tokens) // 2))]
    )
    for one in chosen
  ]
