"""Draws prompts: windows of documents, and records of files or of the hub.

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
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from specjax import corpus
from specjax.errors import UserError, need
from specjax.prompts import conversations, files, forms
from specjax.prompts.config import Prompts
from specjax.prompts.conversations import Conversation
from specjax.prompts.conversations import encode as encode

Writer = Callable[[Sequence[str], Sequence[Sequence[int]]], list[int]]
Size = Callable[[Sequence[int]], int]

WINDOW = 96  # tokens of a window where the experiment names none


@dataclasses.dataclass
class Chosen:
  """The prompts of one domain.

  Attributes:
    texts: token ids; of conversations those of the first turns.
    source: where they were taken from, in words.
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
    """The tokens that a prompt of any turn may have."""
    lengths = [len(text) for text in self.texts]
    return max(*lengths, *(n for talk in self.talks for n in talk.limits), 0)

  @property
  def said(self) -> list[list[int]]:
    """Everything but answers, which tells these prompts from others."""
    later = [ids for talk in self.talks for ids in talk.bare()[1:]]
    return self.texts + later

  def facts(self) -> dict:
    """Returns what a row of results says about its prompts."""
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
  """Returns one sentence on prompts, from `Chosen.facts`."""
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
  need(
    not (x.path and x.dataset),
    f'prompts.path {x.path!r} and prompts.dataset {x.dataset!r} are both '
    'given: leave one out',
  )
  if x.turns != 1:
    for name in ('field', 'form'):
      need(
        not getattr(x, name),
        f'prompts.turns is {x.turns}, but prompts.{name} makes one prompt of a '
        'record: leave one of them out',
      )
  if not x.path and not x.dataset:
    _check_domains(x, corpus.DOMAINS, 'the embedded corpus')
    _refuse_forms(x, 'the embedded corpus')


def _check_domains(x: Prompts, known: Sequence[str], source: str) -> None:
  need(
    set(x.domains) <= set(known),
    f'prompts.domains must be some of {", ".join(known)}, which {source} has, '
    f'got {tuple(x.domains)}; leave it empty for all',
  )


def _refuse_forms(x: Prompts, source: str) -> None:
  for name in ('field', 'form', 'system', 'template_kwargs', 'chat', 'turns'):
    need(
      getattr(x, name) == getattr(Prompts(), name),
      f'prompts.{name} = {getattr(x, name)!r} does not apply to windows of '
      f'{source}; leave it out, or name a file of prompts with prompts.path '
      '(of plain text, its lines are prompts with prompts.field=line)',
    )


def generator(seed: int, name: str) -> np.random.Generator:
  """Returns the random numbers of a domain, whichever others there are."""
  return np.random.default_rng((seed, zlib.crc32(name.encode())))


def cut_windows(
  tokenizer,
  documents: Sequence[str],
  count: int,
  length: int,
  rng: np.random.Generator,
) -> list[list[int]]:
  """Returns windows of `length` tokens that begin at a line of a document.

  Args:
    tokenizer: of the target.
    documents: used again, elsewhere, once all were.
    count: windows.
    length: tokens of each.
    rng: draws documents and places.

  Returns:
    Lists of token ids; fewer than `count` where documents are too short.
  """
  order = rng.permutation(len(documents))
  lines: dict[int, np.ndarray] = {}  # where the lines of a document begin
  windows: list[list[int]] = []
  for turn in range(100 * count):
    which = order[turn % len(order)]
    text = documents[which]
    if which not in lines:
      ends = [match.end() for match in re.finditer('\n', text)]
      lines[which] = np.array([0, *ends])
    places = lines[which]
    start = int(rng.choice(places[: max(1, len(places) * 3 // 4)]))
    part = text[start : start + 40 * length]
    ids = tokenizer.encode(part, truncation=True, max_length=length)
    if len(ids) == length:
      windows.append(ids)
    if len(windows) == count:
      break
  return windows


def choose(tokenizer, domain: str, count: int, length: int, seed: int):
  """Returns windows of held-out documents of the embedded corpus.

  Args:
    tokenizer: of the target.
    domain: of the corpus.
    count: windows.
    length: tokens of each.
    seed: of documents and places.

  Returns:
    A list of `count` lists of token ids.

  Raises:
    UserError: no document is long enough.
  """
  documents = [d.text for d in corpus.evaluation_documents(domain)]
  rng = generator(seed, domain)
  windows = cut_windows(tokenizer, documents, count, length, rng)
  need(
    len(windows) == count,
    f'prompts.length {length} is longer than the held-out documents of '
    f'{domain}: choose less',
  )
  return windows


def _fit(
  write: Writer,
  item: forms.Item,
  limit: int,
  room: int,
  answer: int,
  size: Size = len,
) -> tuple[tuple[str, ...], bool] | None:
  """Returns what is said, with as much of the first text as fits.

  Args:
    write: makes token ids of it.
    item: the prompt, and the turns that follow.
    limit: tokens of the first prompt, at most.
    room: tokens of a later one.
    answer: tokens of an answer, which later ones hold.
    size: how much of the room a prompt takes.

  Returns:
    What is said in each turn, and whether the first was cut; None where no
    text fits.
  """

  def of(letters):
    return (item.before + item.text[:letters] + item.after, *item.later)

  def fits(letters):
    prompts = conversations.bare(write, of(letters))
    return len(prompts[0]) <= limit and all(
      size(ids) + turn * answer <= room for turn, ids in enumerate(prompts)
    )

  whole = len(item.text)
  most = conversations.longest(whole, fits)
  return (of(most), most < whole) if most and fits(most) else None


def _draw(
  x: Prompts,
  write: Writer,
  items,
  rng,
  source: str,
  room: int,
  answer: int,
  size: Size,
) -> Chosen:
  """Draws prompts of one domain until there are enough."""
  chosen = Chosen([], source, len(items))
  limit = min(x.length or room, room)
  skipped: collections.Counter[str] = collections.Counter()
  for i in rng.permutation(len(items)):
    if not items[i].text.strip():
      skipped['without text'] += 1
      continue
    fitted = _fit(write, items[i], limit, room, answer, size)
    if fitted is None:
      skipped['too long'] += 1
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
  if chosen.texts:
    return chosen
  field, remedy = 'prompts.path', 'the texts are empty: name another file'
  if 'too long' in skipped:
    field, remedy = 'prompts.length', f'{limit} tokens are too few: allow more'
    if x.length is None:
      field, remedy = 'max_new_tokens', f'it leaves {room} tokens: lower it'
  raise UserError(
    f'{field}: none of the {len(items)} prompts of {items[0].domain} in '
    f'{source} can be used ({dict(skipped)}); {remedy}'
  )


def _from_records(
  x: Prompts, records, tokenizer, room, seed, answer, size, source, name
) -> dict[str, Chosen]:
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
  _check_domains(x, list(domains), source)
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

  chosen = {
    domain: _draw(
      x, write, items, generator(seed, domain), source, room, answer, size
    )
    for domain, items in wanted.items()
  }
  if x.chat:
    template = conversations.template_of(tokenizer, x)
    for one in chosen.values():
      one.template = conversations.digest(template)
  return chosen


def length_of_windows(x: Prompts, room: int) -> int | None:
  """Returns the tokens of every window; None if prompts are no windows.

  Args:
    x: the settings.
    room: tokens that a prompt may have, to which an unset length is bounded.
  """
  by_line = x.field == 'line' or '{line}' in x.form
  is_text = not x.path or (files.kind_of(x.path) == 'text' and not by_line)
  return (x.length or min(WINDOW, room)) if is_text and not x.dataset else None


def collect(
  x: Prompts, tokenizer, room: int, seed: int, answer: int = 0, size: Size = len
) -> dict[str, Chosen]:
  """Returns the prompts of an experiment, by domain.

  Args:
    x: the settings.
    tokenizer: of the target.
    room: tokens that a prompt may have so that the new ones fit behind it;
      windows have `length_of_windows`.
    seed: which are drawn.
    answer: tokens of the answers that prompts of later turns hold, at most.
    size: how much of the room a prompt takes. Windows are not shortened to it.

  Raises:
    UserError: names the field, what is there and the remedy.
  """
  check(x)
  if x.path:
    files.check(x.path)
  if x.chat:  # Before a large file is read.
    conversations.check_template(tokenizer, x)
  if x.dataset:
    source = f'{x.dataset} ({x.split})'
    name = re.split('[:@]', x.dataset)[0].rpartition('/')[2]
  else:
    source, name = os.path.basename(x.path), files.stem_of(x.path)
  length = length_of_windows(x, room)
  if length is None:
    records = (
      files.load_dataset(x.dataset, x.split)
      if x.dataset
      else files.read_records(x.path)
    )
    return _from_records(
      x, records, tokenizer, room, seed, answer, size, source, name
    )
  if not x.path:
    return {
      domain: Chosen(
        choose(tokenizer, domain, x.count, length, seed), 'the embedded corpus'
      )
      for domain in x.domains or corpus.DOMAINS
    }
  _refuse_forms(x, f'the plain text {source}')
  _check_domains(x, [name], source)
  text, rng = files.read_text(x.path), generator(seed, name)
  texts = cut_windows(tokenizer, [text], x.count, length, rng)
  need(texts, f'prompts.length {length} is longer than {x.path}: choose less')
  return {name: Chosen(texts, source)}


def digest(prompts) -> str:
  """Returns a short hash of token ids: the same prompts have the same."""
  text = repr([list(map(int, p)) for p in prompts])
  return hashlib.sha256(text.encode()).hexdigest()[:12]
