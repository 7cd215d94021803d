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

from specjax.errors import UserError, need
from specjax.prompts.files import Record


class Form(NamedTuple):
  """How the records of a set of prompts are written.

  name: the domain of records that name no category of their own.
  fields: by which a record of a published set is known.
  text: the field that is shortened where a prompt is too long.
  form: the prompt; '' is the text alone.
  optional: a field that a record may lack, or leave empty; then `short` is its
    form.
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
  Form('humaneval', ('task_id', 'prompt', 'entry_point'), 'prompt', ''),
  Form('mbpp', ('text', 'code', 'test_list'), 'text', _MBPP % 'text'),
  # The sanitized questions.
  Form('mbpp', ('prompt', 'code', 'test_list'), 'prompt', _MBPP % 'prompt'),
  Form('gsm8k', ('question', 'answer'), 'question', 'Q: {question}\nA:'),
  Form(
    'math500',
    ('problem', 'solution', 'answer'),
    'problem',
    'Problem:\n{problem}\n\nSolution:\n',
  ),
  Form(
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
  Form('turns', ('turns',), _FIRST_TURN, ''),
  Form('xsum', ('document', 'summary'), 'document', 'summarize: {document}'),
  Form(
    'cnn_dailymail',
    ('article', 'highlights'),
    'article',
    'summarize: {article}',
  ),
  Form(
    'wmt_en_de',
    ('translation',),
    'translation[en]',
    'translate English to German: {translation[en]}',
  ),
)


# The published files of SPEED-Bench have this in place of many texts.
PLACEHOLDER = 'FULL BENCHMARK DATA SHOULD BE FETCHED'


class Item(NamedTuple):
  """A prompt in three parts; only the text may be shortened.

  domain: the category that the record names, or the name of its form.
  later: what the user says in the turns that follow.
  """

  domain: str
  before: str
  text: str
  after: str
  later: tuple[str, ...] = ()


def _listed(record: Record) -> str:
  return ', '.join(record.fields) or 'none'


def lookup(record: Record, name: str, setting: str) -> Any:
  """Returns the value of a field, named with the brackets of `str.format`."""
  try:
    return string.Formatter().get_field(name, (), record.fields)[0]
  except (KeyError, IndexError, TypeError, AttributeError, ValueError):
    raise UserError(
      f'{setting}: {record.place} has no field {name!r}; it has '
      f'{_listed(record)}'
    ) from None


def _fill(record: Record, part: str) -> str:
  """Fills in the fields of a part of a form; a list becomes lines."""
  filled = []
  for text, name, _, _ in string.Formatter().parse(part):
    filled.append(text)
    if name is not None:
      value = lookup(record, name, 'prompts.form')
      lines = value if isinstance(value, list) else [value]
      filled.append('\n'.join(map(str, lines)))
  return ''.join(filled)


def recognise(record: Record) -> Form | None:
  """Returns the form of the published set that a record is of, if any."""
  known = (f for f in FORMATS if set(f.fields) <= record.fields.keys())
  return next(known, None)


def _sole_text(record: Record) -> str:
  """Returns the one field that holds text."""
  names = [k for k, v in record.fields.items() if isinstance(v, str)]
  known = ', '.join(dict.fromkeys(f.name for f in FORMATS))
  need(
    names,
    f'prompts.field: no field of {record.place} is a text ({_listed(record)}), '
    'and the prompt must be one: write it in quotes',
  )
  need(
    len(names) == 1,
    f'prompts.field: the fields {_listed(record)} are of no known format '
    f'({known}); say which of them holds the prompt',
  )
  return names[0]


def choose(first: Record, field: str, form: str, name: str) -> Form:
  """Returns how every record is written.

  A form of the user's comes first, then the field alone, then a known form.

  Args:
    first: a record.
    field: `prompts.field`, the text that is shortened where it is too long; by
      default the first field of the form.
    form: `prompts.form`.
    name: the domain of records of no known format.

  Raises:
    UserError: the form has no such field, or the field cannot be guessed.
  """
  known = recognise(first)
  if known and not form and not field:
    return known
  domain = known.name if known else name
  if not form:
    field = field or _sole_text(first)
    return Form(domain, (), field, '')
  form = form.replace('\\n', '\n')
  try:
    names = [n for _, n, _, _ in string.Formatter().parse(form) if n]
  except ValueError as error:
    raise UserError(
      f'prompts.form: {form!r} is no form ({error}); write fields in braces, '
      "such as 'summarize: {document}'"
    ) from None
  field = field or (names[0] if names else '')
  need(
    field and f'{{{field}}}' in form,
    f'prompts.form: {form!r} must hold {{{field or "a field"}}}, which is to '
    f'be continued; the fields are {_listed(first)}',
  )
  return Form(domain, (), field, form)


def with_turns(record: Record) -> Record:
  """Returns a record whose `messages` of a user are given as `turns`.

  Raises:
    UserError: somebody else speaks, too.
  """
  messages = record.fields.get('messages')
  if 'turns' in record.fields or not isinstance(messages, list):
    return record
  says = []
  for message in messages:
    role = message.get('role') if isinstance(message, dict) else message
    need(
      role == 'user',
      f'prompts.path: {record.place} has messages of {role!r}; only those of '
      'a user can be played: leave the others out, and give a system prompt '
      'with prompts.system',
    )
    says.append(message.get('content'))
  return record._replace(fields=record.fields | {'turns': says})


def turns_of(record: Record, most: int) -> tuple[str, ...]:
  """Returns what is said in each turn of a record.

  Args:
    record: with `turns`.
    most: turns; 0 is no limit.

  Raises:
    UserError: it has no turns, or one is no text.
  """
  turns = record.fields.get('turns')
  alone = '' if 'turns' in record.fields else 'leave prompts.turns at 1, or '
  need(
    isinstance(turns, list) and turns,
    f'prompts.turns: {record.place} has no list of turns, its fields are '
    f'{_listed(record)}; {alone}mend or remove it',
  )
  assert turns is not None
  for place, text in enumerate(turns, 1):
    need(
      isinstance(text, str) and text.strip(),
      f'prompts.turns: turn {place} of {record.place} is '
      f'{f"of type {type(text).__name__}" if text else "without"} text; mend '
      'or remove it',
    )
  return tuple(turns[: most or None])


def apply(form: Form, record: Record, turns: int = 1) -> Item:
  """Returns a record in a form.

  Args:
    form: of its first turn.
    record: what it is filled with.
    turns: that are played, at most; 0: all.

  Raises:
    UserError: a field is missing or no text.
  """
  said = turns != 1 or form.text == _FIRST_TURN
  later = turns_of(record, turns)[1:] if said else ()
  text = lookup(record, form.text, 'prompts.field')
  need(
    isinstance(text, str),
    f'prompts.field: {form.text!r} of {record.place} is of type '
    f'{type(text).__name__} and no text; the fields are {_listed(record)}',
  )
  lacks = form.optional and not record.fields.get(form.optional)
  whole = form.short if lacks else form.form
  before, _, after = whole.partition(f'{{{form.text}}}')
  category = record.fields.get('category')
  item = Item(
    category if isinstance(category, str) and category else form.name,
    _fill(record, before),
    text,
    _fill(record, after),
    later,
  )
  for part in (*item[:4], *item.later):
    check_text(f'prompts.path: {record.place}', part)
  return item


def check_complete(record: Record, item: Item) -> None:
  """Raises a UserError if the text of a record is still to be fetched."""
  number = record.fields.get('question_id')
  name = record.place if number is None else f'{record.place} ({number})'
  need(
    not any(PLACEHOLDER in text for text in (item.text, *item.later)),
    f'prompts.path: {name} says "{PLACEHOLDER}...": it is a placeholder of '
    'SPEED-Bench; fetch the texts with its own script, prepare_data.py of '
    'specdec_bench, and name the file that it writes',
  )


def check_text(whose: str, text: str) -> None:
  """Raises a UserError at half a character, which JSON can write."""
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f'{whose}: {text[error.start : error.end]!r} is half of a character, '
      'which no UTF-8 text can hold; mend or remove it'
    ) from error
