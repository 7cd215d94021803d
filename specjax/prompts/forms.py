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

from specjax.errors import UserError
from specjax.prompts.files import Record


class Format(NamedTuple):
  """A published set of prompts, known by its fields.

  name: the domain of records that name no category of their own.
  fields: that every record has.
  text: what is shortened where a prompt is too long.
  form: the prompt.
  optional: a field, without which, or where it is empty, the prompt is
  short: another form.
  """

  name: str
  fields: tuple[str, ...]
  text: str
  form: str
  optional: str = ''
  short: str = ''


# The forms of the sources: MBPP is Austin et al. (arXiv:2108.07732) without
# examples, GSM8K the question and answer of Kojima et al. (arXiv:2205.11916)
# without their trigger, MATH Lewkowycz et al. (arXiv:2206.14858) without
# examples, Alpaca that of its models (Taori et al., 2023); summaries and
# translations are those of T5 (Raffel et al., arXiv:1910.10683, appendix D).
_MBPP = (
  'You are an expert Python programmer, and here is your task: {%s} Your '
  'code should pass these tests:\n\n{test_list}\n[BEGIN]\n'
)
_FIRST_TURN = 'turns[0]'
FORMATS = (
  Format('humaneval', ('task_id', 'prompt', 'entry_point'), 'prompt', ''),
  Format('mbpp', ('text', 'code', 'test_list'), 'text', _MBPP % 'text'),
  # The sanitized questions.
  Format('mbpp', ('prompt', 'code', 'test_list'), 'prompt', _MBPP % 'prompt'),
  Format('gsm8k', ('question', 'answer'), 'question', 'Q: {question}\nA:'),
  Format(
    'math500',
    ('problem', 'solution', 'answer'),
    'problem',
    'Problem:\n{problem}\n\nSolution:\n',
  ),
  Format(
    'alpaca',
    ('instruction', 'output'),
    'instruction',
    'Below is an instruction that describes a task, paired with an input that '
    'provides further context. Write a response that appropriately completes '
    'the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n'
    '### Response:\n',
    'input',
    'Below is an instruction that describes a task. Write a response that '
    'appropriately completes the request.\n\n### Instruction:\n'
    '{instruction}\n\n### Response:\n',
  ),
  Format('turns', ('turns',), _FIRST_TURN, ''),
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


# What the published files of SPEED-Bench have in place of many texts.
PLACEHOLDER = 'FULL BENCHMARK DATA SHOULD BE FETCHED'


class Item(NamedTuple):
  """A prompt in three parts, of which only the text may be shortened.

  `later` is said in the turns that follow.
  """

  domain: str
  before: str
  text: str
  after: str
  later: tuple[str, ...] = ()


class Form(NamedTuple):
  """Which field is the text, and what stands around it.

  Where the field `optional` is empty, `short` is the form.
  """

  domain: str
  field: str
  before: str
  after: str
  optional: str = ''
  short: tuple[str, str] = ('', '')


def _listed(record: Record) -> str:
  return ', '.join(record.fields) or 'none'


def lookup(record: Record, name: str, setting: str) -> Any:
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
      value = lookup(record, name, 'prompts.form')
      if isinstance(value, list):
        value = '\n'.join(map(str, value))
      filled.append(str(value))
  return ''.join(filled)


def recognise(record: Record) -> Format | None:
  for known in FORMATS:
    if set(known.fields) <= record.fields.keys():
      return known
  return None


def _sole_text(record: Record) -> str:
  """The one field that holds text."""
  names = [k for k, v in record.fields.items() if isinstance(v, str)]
  if len(names) != 1:
    known = ', '.join(dict.fromkeys(f.name for f in FORMATS))
    raise UserError(
      f'prompts.field: the fields {_listed(record)} are of no known format '
      f'({known}); say which of them holds the prompt'
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
  known, optional = recognise(first), {}
  if not form and not field:
    field = known.text if known else _sole_text(first)
    form = known.form if known else ''
    if known and known.optional:
      before, _, after = known.short.partition('{' + field + '}')
      optional = {'optional': known.optional, 'short': (before, after)}
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
  return Form(known.name if known else name, field, before, after, **optional)


def with_turns(record: Record) -> Record:
  """A record whose turns are given as messages of a user, with `turns`.

  Raises:
    UserError: somebody else speaks, too.
  """
  messages = record.fields.get('messages')
  if 'turns' in record.fields or not isinstance(messages, list):
    return record
  says = []
  for message in messages:
    role = message.get('role') if isinstance(message, dict) else message
    if role != 'user':
      raise UserError(
        f'prompts.path: {record.place} has messages of {role!r}; only those of '
        'a user can be played: leave the others out, and give a system prompt '
        'with prompts.system'
      )
    says.append(message.get('content'))
  return record._replace(fields=record.fields | {'turns': says})


def turns_of(record: Record, most: int) -> tuple[str, ...]:
  """What is said in each turn of a record.

  Args:
    record: with `turns`.
    most: turns; 0 where there is no limit.

  Raises:
    UserError: it has no turns, or one is no text.
  """
  turns = record.fields.get('turns')
  if not isinstance(turns, list) or not turns:
    alone = '' if 'turns' in record.fields else 'leave prompts.turns at 1, or '
    raise UserError(
      f'prompts.turns: {record.place} has no list of turns, its fields are '
      f'{_listed(record)}; {alone}mend or remove it'
    )
  for place, text in enumerate(turns, 1):
    if not isinstance(text, str) or not text.strip():
      raise UserError(
        f'prompts.turns: turn {place} of {record.place} is '
        f'{f"of type {type(text).__name__}" if text else "without"} text; mend '
        'or remove it'
      )
  return tuple(turns[: most or None])


def apply(form: Form, record: Record, turns: int = 1) -> Item:
  """A record in a form; its category, where it names one, is the domain.

  Args:
    form: of its first turn.
    record: what it is filled with.
    turns: that are played, at most; 0: all.
  """
  said = turns != 1 or form.field == _FIRST_TURN
  later = turns_of(record, turns)[1:] if said else ()
  text = lookup(record, form.field, 'prompts.field')
  if not isinstance(text, str):
    raise UserError(
      f'prompts.field: {form.field!r} of {record.place} is of type '
      f'{type(text).__name__} and no text; the fields are {_listed(record)}'
    )
  before, after = form.before, form.after
  if form.optional and not record.fields.get(form.optional):
    before, after = form.short
  category = record.fields.get('category')
  item = Item(
    category if isinstance(category, str) and category else form.domain,
    _fill(record, before),
    text,
    _fill(record, after),
    later,
  )
  for part in (*item[:4], *item.later):
    check_text(f'prompts.path: {record.place}', part)
  return item


def check_complete(record: Record, item: Item) -> None:
  """Refuses a record whose text is still to be fetched.

  Raises:
    UserError: names it.
  """
  number = record.fields.get('question_id')
  name = record.place if number is None else f'{record.place} ({number})'
  if any(PLACEHOLDER in text for text in (item.text, *item.later)):
    raise UserError(
      f'prompts.path: {name} says "{PLACEHOLDER}...": it is a placeholder of '
      'SPEED-Bench; fetch the texts with its own script, prepare_data.py of '
      'specdec_bench, and name the file that it writes'
    )


def check_text(whose: str, text: str) -> None:
  """Refuses halves of characters, which JSON can write and UTF-8 cannot."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f'{whose}: {text[error.start : error.end]!r} is half of a character, '
      'which no UTF-8 text can hold; mend or remove it'
    ) from error
