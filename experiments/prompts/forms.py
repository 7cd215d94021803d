"""How a record becomes a prompt: known formats, and forms to fill in.

  form     summarize: {document}        translate: {translation[en]} =
  before   'summarize: '                'translate: '
  text     the document                 the sentence
  after    ''                           ' ='

Only `text` may be shortened, at its end: what a form says before and after it
always stays whole.
"""

import string
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.prompts.files import Record


class Format(NamedTuple):
  """A published set of prompts, known by its fields.

  name: the domain of records that name no category of their own.
  fields: that every record has.
  text: what is shortened where a prompt is too long.
  form: the prompt.
  """

  name: str
  fields: tuple[str, ...]
  text: str
  form: str


# The forms of the sources: MBPP is Austin et al. (arXiv:2108.07732) without
# examples, GSM8K the question and answer of Kojima et al. (arXiv:2205.11916)
# without their trigger, summaries and translations are those of T5 (Raffel et
# al., arXiv:1910.10683, appendix D). Questions of several turns give the first:
# a later one needs the model's answers to those before it.
FORMATS = (
  Format('humaneval', ('task_id', 'prompt', 'entry_point'), 'prompt', ''),
  Format(
    'mbpp',
    ('text', 'code', 'test_list'),
    'text',
    'You are an expert Python programmer, and here is your task: {text} Your '
    'code should pass these tests:\n\n{test_list}\n[BEGIN]\n',
  ),
  Format('gsm8k', ('question', 'answer'), 'question', 'Q: {question}\nA:'),
  Format('turns', ('turns',), 'turns[0]', ''),
  Format('xsum', ('document', 'summary'), 'document', 'summarize: {document}'),
  Format(
    'cnn_dailymail',
    ('article', 'highlights'),
    'article',
    'summarize: {article}',
  ),
  Format(
    'wmt_en_de',
    ('translation',),
    'translation[en]',
    'translate English to German: {translation[en]}',
  ),
)


class Item(NamedTuple):
  """A prompt in three parts, of which only the text may be shortened."""

  domain: str
  before: str
  text: str
  after: str


class Form(NamedTuple):
  """Which field is the text, and what stands around it."""

  domain: str
  field: str
  before: str
  after: str


def _listed(record: Record) -> str:
  return ', '.join(record.fields) or 'none'


def _lookup(record: Record, name: str, setting: str) -> Any:
  """The value of a field, with the brackets of `str.format`."""
  try:
    return string.Formatter().get_field(name, (), record.fields)[0]
  except (KeyError, IndexError, TypeError, AttributeError, ValueError):
    raise UserError(
      f'{setting}: {record.place} has no field {name!r}; it has '
      f'{_listed(record)}'
    ) from None


def _fill(record: Record, part: str) -> str:
  """A part of a form with its fields; a list is joined, one entry a line."""
  filled = []
  for text, name, _, _ in string.Formatter().parse(part):
    filled.append(text)
    if name is not None:
      value = _lookup(record, name, 'prompts.form')
      if isinstance(value, list):
        value = '\n'.join(map(str, value))
      filled.append(str(value))
  return ''.join(filled)


def _recognise(record: Record) -> Format | None:
  for known in FORMATS:
    if set(known.fields) <= record.fields.keys():
      return known
  return None


def _sole_text(record: Record) -> str:
  """The one field that holds text."""
  names = [k for k, v in record.fields.items() if isinstance(v, str)]
  if len(names) != 1:
    raise UserError(
      f'prompts.field: the fields {_listed(record)} are of no known format '
      f'({", ".join(f.name for f in FORMATS)}); say which of them holds the '
      'prompt'
    )
  return names[0]


def choose(first: Record, field: str, form: str, name: str) -> Form:
  """What is written of every record.

  A form of one's own comes first, then the field alone, then the form of the
  known format.

  Args:
    first: a record.
    field: `prompts.field`: the text, which is shortened where it is too long;
      by default the first field of the form.
    form: `prompts.form`.
    name: the domain of records of no known format.

  Raises:
    UserError: the form has no such field, or the field cannot be guessed.
  """
  known = _recognise(first)
  if not form and not field:
    field = known.text if known else _sole_text(first)
    form = known.form if known else ''
  form = form.replace('\\n', '\n') or '{' + field + '}'
  try:
    names = [n for _, n, _, _ in string.Formatter().parse(form) if n]
  except ValueError as error:
    raise UserError(
      f'prompts.form: {form!r} is no form ({error}); write fields in braces, '
      "such as 'summarize: {document}'"
    ) from None
  field = field or (names[0] if names else '')
  before, matched, after = form.partition('{' + field + '}')
  if not field or not matched:
    raise UserError(
      f'prompts.form: {form!r} must hold {{{field or "a field"}}}, which is to '
      f'be continued; the fields are {_listed(first)}'
    )
  return Form(known.name if known else name, field, before, after)


def apply(form: Form, record: Record) -> Item:
  """A record in a form; its category, where it names one, is the domain."""
  text = _lookup(record, form.field, 'prompts.field')
  if not isinstance(text, str):
    raise UserError(
      f'prompts.field: {form.field!r} of {record.place} is of type '
      f'{type(text).__name__} and no text; the fields are {_listed(record)}'
    )
  category = record.fields.get('category')
  item = Item(
    category if isinstance(category, str) and category else form.domain,
    _fill(record, form.before),
    text,
    _fill(record, form.after),
  )
  for part in item:
    check_text(f'prompts.path: {record.place}', part)
  return item


def check_text(whose: str, text: str) -> None:
  """Refuses halves of characters, which JSON can write and UTF-8 cannot."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f'{whose}: {text[error.start : error.end]!r} is half of a character, '
      'which no UTF-8 text can hold; mend or remove it'
    ) from error
