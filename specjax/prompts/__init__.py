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
from collections.abc import Callable, Sequence

from specjax import corpus
from specjax.errors import UserError, need
from specjax.prompts import conversations, files, forms, windows
from specjax.prompts.config import Prompts
from specjax.prompts.conversations import Conversation
from specjax.prompts.conversations import encode as encode
from specjax.prompts.windows import choose as choose

Writer = Callable[[Sequence[str], Sequence[Sequence[int]]], list[int]]


@dataclasses.dataclass
class Chosen:
  """Prompts of one domain, and where they come from.

  Attributes:
    texts: token ids; of conversations those of the first turns.
    source: what they were taken from.
    available: records of the domain there; None for windows.
    cut: how many lost the end of their text.
    skipped: how many were passed over on the way, by reason.
    talks: the conversations, where more than their first turns are played.
    template: a hash of the chat template; '' without one.
  """

  texts: list[list[int]]
  source: str
  available: int | None = None
  cut: int = 0
  skipped: dict[str, int] = dataclasses.field(default_factory=dict)
  talks: list[Conversation] = dataclasses.field(default_factory=list)
  template: str = ''

  @property
  def longest(self) -> int:
    """Tokens that a prompt of any turn may have."""
    lengths = [len(text) for text in self.texts]
    return max(*lengths, *(n for talk in self.talks for n in talk.limits), 0)

  @property
  def said(self) -> list[list[int]]:
    """What tells these prompts from others: all that is no answer."""
    later = [ids for talk in self.talks for ids in talk.bare()[1:]]
    return self.texts + later

  def facts(self) -> dict:
    """What a row of results says of its prompts."""
    lengths = [len(text) for text in self.texts]
    more: dict = {'template': self.template} if self.template else {}
    if self.talks:
      more['turns'] = max(len(talk.says) for talk in self.talks)
      more['longest_turn'] = self.longest
    return {
      'source': self.source,
      'available': self.available,
      'shortest': min(lengths),
      'longest': max(lengths),
      'cut': self.cut,
      'skipped': self.skipped,
      **more,
    }


def describe(count: int, facts: dict) -> str:
  """One sentence on prompts, from `Chosen.facts`."""
  low, high = facts['shortest'], facts['longest']
  tokens = f'{low} tokens' if low == high else f'{low} to {high} tokens'
  if facts['available'] is None:
    return f'{count} windows of {facts["source"]}, {tokens}'
  if facts.get('turns', 1) > 1:
    tokens += f', up to {facts["turns"]} turns'
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
  if x.turns != 1:
    for name in ('field', 'form'):
      need(
        not getattr(x, name),
        f'prompts.turns is {x.turns}, but prompts.{name} makes one prompt of a '
        'record: leave one of them out',
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
  names = ['field', 'form', 'system', 'template_kwargs', 'chat', 'turns']
  for name in names:
    if getattr(x, name) != getattr(Prompts(), name):
      raise UserError(
        f'prompts.{name} = {getattr(x, name)!r} does not apply to windows of '
        f'{source}; leave it out, or name a file of prompts with prompts.path '
        '(of plain text, its lines are prompts with prompts.field=line)'
      )


def _fit(
  write: Writer, item: forms.Item, limit: int, room: int, answer: int
) -> tuple[tuple[str, ...], bool] | None:
  """What is said, with as much of the first text as fits.

  Args:
    write: makes token ids of it.
    item: the prompt, and the turns that follow.
    limit: tokens of the first prompt, at most.
    room: tokens of a later one.
    answer: tokens of an answer, which later ones hold.

  Returns:
    What is said in each turn, and whether the first was cut; None where no
    text fits.
  """

  def of(size):
    return (item.before + item.text[:size] + item.after, *item.later)

  def fits(size):
    first, *later = conversations.bare(write, of(size))
    return len(first) <= limit and all(
      len(ids) + turn * answer <= room for turn, ids in enumerate(later, 1)
    )

  whole = len(item.text)
  most = conversations.longest(whole, fits)
  return (of(most), most < whole) if most and fits(most) else None


def _take(x: Prompts, write, items, domain, room, answer, seed, source):
  """Draws prompts of one domain until there are enough."""
  chosen = Chosen([], source, len(items))
  limit = min(x.length or room, room)
  skipped: collections.Counter[str] = collections.Counter()
  for i in windows.generator(seed, domain).permutation(len(items)):
    item, fitted = items[i], None
    if item.text.strip():
      fitted = _fit(write, item, limit, room, answer)
    if fitted is None:
      skipped['too long' if item.text.strip() else 'without text'] += 1
      continue
    says, cut = fitted
    prompts = conversations.bare(write, says)
    chosen.texts.append(prompts[0])
    if x.turns != 1:
      limits = conversations.limits(prompts, answer, room)
      chosen.talks.append(Conversation(says, write, limits))
    chosen.cut += cut
    if len(chosen.texts) == x.count:
      break
  chosen.skipped = dict(skipped)
  if not chosen.texts:
    raise UserError(
      f'prompts.length: none of the {len(items)} prompts of {domain} in '
      f'{source} can be used with at most {limit} tokens ({dict(skipped)})'
    )
  return chosen


def _from_records(x, records, tokenizer, room, answer, seed, source, name):
  if not (x.field or x.form):
    records = [forms.with_turns(record) for record in records]
  if x.turns != 1:
    forms.turns_of(records[0], x.turns)
  form = forms.choose(records[0], x.field, x.form, name)
  domains: dict[str, list[forms.Item]] = {}
  for record in records:
    item = forms.apply(form, record, x.turns)
    if not x.domains or item.domain in x.domains:
      forms.check_complete(record, item)
    domains.setdefault(item.domain, []).append(item)
  unknown = set(x.domains) - domains.keys()
  if unknown:
    raise UserError(
      f'prompts.domains: {source} has {", ".join(domains)}, got '
      f'{tuple(x.domains)}; choose from these, or leave it empty for all'
    )
  wanted = {domain: domains[domain] for domain in x.domains or domains}
  need(
    answer < room
    or not any(i.later for items in wanted.values() for i in items),
    f'max_new_tokens is {answer}, but the prompt of a second turn holds an '
    f'answer of so many tokens and may have {room}: lower it, or play one turn '
    'with prompts.turns=1',
  )

  def write(says, answers):
    return encode(tokenizer, x, says, answers)

  template = ''
  if x.chat:
    template = conversations.template_of(tokenizer, x)
    template = conversations.digest(template)
  chosen = {
    domain: _take(x, write, items, domain, room, answer, seed, source)
    for domain, items in wanted.items()
  }
  for one in chosen.values():
    one.template = template
  return chosen


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


def collect(
  x: Prompts, tokenizer, room: int, seed: int, answer: int = 0
) -> dict[str, Chosen]:
  """The prompts of an experiment, by domain.

  Args:
    x: the settings.
    tokenizer: of the target.
    room: tokens that a prompt may have so that the new ones fit behind it;
      windows have `length_of_windows`.
    seed: which are drawn.
    answer: tokens of the answers that prompts of later turns hold, at most.

  Raises:
    UserError: names the field, what is there and the remedy.
  """
  check(x)
  if x.path:
    files.check(x.path)
  if x.chat:  # Before a large file is read.
    conversations.check_template(tokenizer, x)
  source, name = os.path.basename(x.path), files.stem_of(x.path)
  if x.dataset:
    records = files.load_dataset(x.dataset, x.split)
    name = re.split('[:@]', x.dataset)[0].rpartition('/')[2]
    source = f'{x.dataset} ({x.split})'
    return _from_records(
      x, records, tokenizer, room, answer, seed, source, name
    )
  length = length_of_windows(x)
  if length is None:
    records = files.read_records(x.path)
    return _from_records(
      x, records, tokenizer, room, answer, seed, source, name
    )
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
