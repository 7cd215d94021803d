"""Prompts: windows of documents, and records of files or of the hub.

A prompt that is too long for `prompts.length`, or for the positions that the
new tokens leave, loses the end of its text; what its form or the chat template
put around the text stays whole. A prompt without text, or one whose form alone
is too long, is passed over. Both are counted and reported.
"""

import collections
import dataclasses
import hashlib
import os
import re
from collections.abc import Callable

from experiments import corpus
from experiments.errors import UserError
from experiments.prompts import files, forms, windows
from experiments.prompts.windows import choose as choose
from experiments.settings import Prompts


@dataclasses.dataclass
class Chosen:
  """Prompts of one domain, and where they come from.

  Attributes:
    texts: token ids.
    source: what they were taken from.
    available: records of the domain there; None for windows.
    cut: how many lost the end of their text.
    skipped: how many were passed over on the way, by reason.
  """

  texts: list[list[int]]
  source: str
  available: int | None = None
  cut: int = 0
  skipped: dict[str, int] = dataclasses.field(default_factory=dict)

  def facts(self) -> dict:
    """What a row of results says of its prompts."""
    lengths = [len(text) for text in self.texts]
    return {
      'source': self.source,
      'available': self.available,
      'shortest': min(lengths),
      'longest': max(lengths),
      'cut': self.cut,
      'skipped': self.skipped,
    }


def describe(count: int, facts: dict) -> str:
  """One sentence on prompts, from `Chosen.facts`."""
  low, high = facts['shortest'], facts['longest']
  tokens = f'{low} tokens' if low == high else f'{low} to {high} tokens'
  if facts['available'] is None:
    return f'{count} windows of {facts["source"]}, {tokens}'
  skipped = ''.join(
    f', {n} passed over ({why})' for why, n in facts['skipped'].items()
  )
  return (
    f'{count} of {facts["available"]} prompts of {facts["source"]}, {tokens}; '
    f'{facts["cut"]} cut{skipped or ", none passed over"}'
  )


def check(x: Prompts) -> None:
  """Checks what can be checked without reading anything.

  Raises:
    UserError: names the field and the remedy.
  """
  if x.path and x.dataset:
    raise UserError(
      f'prompts.path {x.path!r} and prompts.dataset {x.dataset!r} are both '
      'given: leave one out'
    )
  if x.path or x.dataset:
    return
  unknown = set(x.domains) - set(corpus.DOMAINS)
  if unknown:
    raise UserError(
      f'prompts.domains must be some of {", ".join(corpus.DOMAINS)}, got '
      f'{tuple(x.domains)}'
    )
  _no_forms(x, 'the embedded corpus')


def _no_forms(x: Prompts, source: str) -> None:
  for name in ('field', 'form', 'chat'):
    if getattr(x, name):
      raise UserError(
        f'prompts.{name} = {getattr(x, name)!r} does not apply to windows of '
        f'{source}; leave it out, or name a file of prompts with prompts.path '
        '(of plain text, its lines are prompts with prompts.field=line)'
      )


def _need_template(tokenizer) -> None:
  if not getattr(tokenizer, 'chat_template', None):
    raise UserError(
      'prompts.chat: the tokenizer has no chat template; leave it out, or use '
      'a target that was tuned on chats'
    )


def encode(tokenizer, chat: bool, text: str) -> list[int]:
  """The token ids of one prompt.

  Args:
    tokenizer: of the target.
    chat: whether the text is what a user says: then the tokenizer's chat
      template is put around it, up to where the answer begins.
    text: the prompt.

  Raises:
    UserError: the tokenizer has no chat template, or it does not take this.
  """
  forms.check_text('prompt', text)
  if not chat:
    return tokenizer.encode(text, verbose=False)
  _need_template(tokenizer)
  try:
    return tokenizer.apply_chat_template(
      [{'role': 'user', 'content': text}],
      add_generation_prompt=True,
      return_dict=False,
    )
  except Exception as error:  # A template is a program of its own.
    raise UserError(
      f'prompts.chat: the chat template of the tokenizer fails ({error}); '
      'leave prompts.chat out and write the form with prompts.form'
    ) from error


def _fit(
  write: Callable[[str], list[int]], item: forms.Item, limit: int
) -> tuple[list[int], bool] | None:
  """The prompt, with as much of its text as fits.

  Args:
    write: text -> token ids.
    item: the prompt.
    limit: tokens at most.

  Returns:
    Token ids and whether the text was cut; None where no text fits.
  """

  def of(size):
    return write(item.before + item.text[:size] + item.after)

  ids = of(len(item.text))
  if len(ids) <= limit:
    return ids, False
  # The longest beginning that fits: `low` characters do, `high` do not.
  low, high = 0, len(item.text)
  while high - low > 1:
    middle = (low + high) // 2
    ids = of(middle)
    low, high = (middle, high) if len(ids) <= limit else (low, middle)
  ids = of(low)
  return (ids, True) if low and len(ids) <= limit else None


def _take(x: Prompts, write, items, domain, limit, seed, source) -> Chosen:
  """Draws prompts of one domain until there are enough."""
  chosen = Chosen([], source, len(items))
  skipped: collections.Counter[str] = collections.Counter()
  for i in windows.generator(seed, domain).permutation(len(items)):
    item = items[i]
    fitted = _fit(write, item, limit) if item.text.strip() else None
    if fitted is None:
      skipped['too long' if item.text.strip() else 'without text'] += 1
      continue
    chosen.texts.append(fitted[0])
    chosen.cut += fitted[1]
    if len(chosen.texts) == x.count:
      break
  chosen.skipped = dict(skipped)
  if not chosen.texts:
    raise UserError(
      f'prompts.length: none of the {len(items)} prompts of {domain} in '
      f'{source} can be used with at most {limit} tokens ({dict(skipped)})'
    )
  return chosen


def _from_records(x, records, tokenizer, room, seed, source, name):
  form = forms.choose(records[0], x.field, x.form, name)
  domains: dict[str, list[forms.Item]] = {}
  for record in records:
    item = forms.apply(form, record)
    domains.setdefault(item.domain, []).append(item)
  unknown = set(x.domains) - domains.keys()
  if unknown:
    raise UserError(
      f'prompts.domains: {source} has {", ".join(domains)}, got '
      f'{tuple(x.domains)}; choose from these, or leave it empty for all'
    )

  def write(text):
    return encode(tokenizer, x.chat, text)

  limit = min(x.length or room, room)
  return {
    domain: _take(x, write, domains[domain], domain, limit, seed, source)
    for domain in x.domains or domains
  }


def _from_text(x, tokenizer, length, seed, source, name):
  """Windows of one plain text, whose name is the only domain."""
  _no_forms(x, f'the plain text {source}')
  if set(x.domains) - {name}:
    raise UserError(
      f'prompts.domains: {source} has {name}, got {tuple(x.domains)}; leave it '
      'empty'
    )
  text, rng = files.read_text(x.path), windows.generator(seed, name)
  texts = windows.cut(tokenizer, [text], x.count, length, rng)
  if not texts:
    raise UserError(
      f'prompts.length {length} is longer than {x.path}: choose less'
    )
  return {name: Chosen(texts, source)}


def _is_text(x: Prompts) -> bool:
  """Whether the prompts are windows of documents."""
  by_line = x.field == 'line' or '{line}' in x.form
  return not x.dataset and (
    not x.path or (files.kind_of(x.path) == 'text' and not by_line)
  )


def length_of_windows(x: Prompts) -> int | None:
  """Tokens that every prompt has; None where each has its own."""
  return (x.length or windows.LENGTH) if _is_text(x) else None


def collect(x: Prompts, tokenizer, room: int, seed: int) -> dict[str, Chosen]:
  """The prompts of an experiment, by domain.

  Args:
    x: the settings.
    tokenizer: of the target.
    room: tokens that a prompt may have so that the new ones fit behind it;
      windows have `length_of_windows`.
    seed: which are drawn.

  Raises:
    UserError: names the field, what is there and the remedy.
  """
  check(x)
  if x.path:
    files.check(x.path)
  if x.chat:
    _need_template(tokenizer)  # Before a large file is read.
  source, name = os.path.basename(x.path), files.stem_of(x.path)
  if x.dataset:
    records = files.load_dataset(x.dataset, x.split)
    name = re.split('[:@]', x.dataset)[0].rpartition('/')[2]
    source = f'{x.dataset} ({x.split})'
    return _from_records(x, records, tokenizer, room, seed, source, name)
  length = length_of_windows(x)
  if length is None:
    records = files.read_records(x.path)
    return _from_records(x, records, tokenizer, room, seed, source, name)
  if x.path:
    return _from_text(x, tokenizer, length, seed, source, name)
  return {
    domain: Chosen(
      choose(tokenizer, domain, x.count, length, seed), 'the embedded corpus'
    )
    for domain in x.domains or corpus.DOMAINS
  }


def digest(prompts) -> str:
  """A short hash of token ids: the same prompts have the same."""
  text = repr([list(map(int, p)) for p in prompts])
  return hashlib.sha256(text.encode()).hexdigest()[:12]
