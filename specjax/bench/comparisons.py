"""Comparisons that `specjax parity` can make; the config names one.

Each is a function of the config, of which it checks its own fields before
anything is loaded. It returns what makes the other side of a method:
(loaded experiment, prompts of all domains, method) -> Side.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from specjax.bench.config import Parity
from specjax.bench.measure import Decoding
from specjax.bench.methods import Loaded, Method
from specjax.checkpoints import precision
from specjax.errors import UserError, need
from specjax.prompts import files
from specjax.types import Spec


class Side(NamedTuple):
  """One side of a comparison: something to run, or texts that are there."""

  name: str
  way: Decoding | None = None
  batch: int = 0
  texts: list[list[int]] | None = None  # of every prompt


Other = Callable[[Loaded, list[list[int]], Method], Side]


def plain(x: Parity) -> Other:
  """Compares with plain decoding, in the same batches and the same dtype."""
  del x  # Unused.

  def other(loaded, prompts, method):
    del prompts  # Unused.
    need(
      method.spec.rule.lossless,
      f'verifiers: {method.verifier} is lossy, its text is not that of plain '
      'decoding: leave it out',
    )
    return Side('plain', loaded.base, loaded.plan.batch)

  return other


def batch(x: Parity) -> Other:
  """Compares with the same method, one prompt at a time."""
  need(
    x.batch > 1,
    'batch is 1: a comparison with single prompts needs more, such as '
    '--batch=8',
  )
  return lambda loaded, prompts, method: Side('batch 1', method.way, 1)


def dtype(x: Parity) -> Other:
  """Compares with the same method with its weights in `other_dtype`."""
  name = x.other_dtype
  need(
    name != precision.AUTO,
    'other_dtype is auto: name a type that differs from that of dtype',
  )

  def differ(dtype):
    need(dtype != name, f'other_dtype must differ from dtype, got {name} twice')

  asked = x.target.dtype or x.dtype
  if asked != precision.AUTO or jax.default_backend() == 'cpu':
    differ(precision.resolve(asked, 'float32'))

  def other(loaded, prompts, method):
    del prompts  # Unused.
    differ(loaded.target.dtype)  # On an accelerator auto may be any.
    way = Decoding(method.spec, precision.in_dtype(method.params, name))
    return Side(name, way, loaded.plan.batch)

  return other


def text(x: Parity) -> Other:
  """Compares with texts that another program wrote, in the file `text`."""
  entries = read_texts(x.text)

  def other(loaded, prompts, method):
    del method  # Unused.
    new, tokenizer = loaded.plan.max_new_tokens, loaded.target.tokenizer
    texts = match_texts(entries, prompts, tokenizer, loaded.plain, new)
    return Side('text', texts=texts)

  return other


def _ids(value: Any) -> bool:
  return isinstance(value, list) and all(type(x) is int for x in value)


def read_texts(path: str) -> list[dict]:
  """Reads a file of greedy texts: a JSON object a line.

  Raises:
    UserError: names the line and what it lacks.
  """
  need(path, 'text is empty: name a file with --text=FILE')
  records = files.read_records(path, 'text')
  for place, entry in records:
    where = f'text: {place} of {path}'
    need(
      'prompt' in entry,
      f'{where} is no object with a prompt: give its token ids',
    )
    need(
      len({'text', 'tokens'} & entry.keys()) == 1,
      f'{where} needs either text or tokens',
    )
    need(
      isinstance(entry.get('text', ''), str) and _ids(entry.get('tokens', [])),
      f'{where}: text must be a string and tokens a list of ids',
    )
  return [entry for _, entry in records]


def _cut(ids: list[int], spec: Spec, new_tokens: int, whose: str) -> list[int]:
  """Token ids up to the end of the text or the limit."""
  end = next((i + 1 for i, t in enumerate(ids) if t in spec.eos), len(ids))
  ids = ids[: min(end, new_tokens)]
  vocab = spec.target.config.vocab_size
  need(
    all(0 <= t < vocab for t in ids),
    f'text: that of {whose} has a token outside the vocabulary of {vocab} '
    'tokens',
  )
  need(
    len(ids) == new_tokens or (ids and ids[-1] in spec.eos),
    f'text: that of {whose} has {len(ids)} tokens and no end of text, but '
    f'max_new_tokens is {new_tokens}: lower it',
  )
  return ids


def match_texts(
  entries: list[dict],
  prompts: list[list[int]],
  tokenizer,
  spec: Spec,
  new_tokens: int,
) -> list[list[int]]:
  """Returns the new tokens of every prompt, in the order of the prompts.

  Args:
    entries: objects from `read_texts`; each says its prompt by token ids or by
      number.
    prompts: token ids.
    tokenizer: makes tokens of a text.
    spec: knows the vocabulary and the ends of a text; what follows an end is
      cut off.
    new_tokens: of each text; what is beyond is cut off.

  Raises:
    UserError: a prompt without a text or with two, or a text too short.
  """
  texts: dict[int, list[int]] = {}
  for entry in entries:
    number = entry['prompt']
    if _ids(number) and number in prompts:
      number = prompts.index(number)
    need(
      type(number) is int and 0 <= number < len(prompts),
      f'text: {number!r} is none of the {len(prompts)} prompts: give the token '
      f'ids of one, or its number from 0 to {len(prompts) - 1}',
    )
    number = prompts.index(prompts[number])  # The same prompt may come twice.
    ids = entry.get('tokens')
    if ids is None:
      ids = tokenizer.encode(entry['text'], add_special_tokens=False)
    whose = f'prompt {number}'
    ids = _cut(ids, spec, new_tokens, whose)
    need(
      texts.setdefault(number, ids) == ids,
      f'text: {whose} has two texts: leave one out',
    )
  places = [prompts.index(p) for p in prompts]
  missing = [i for i, place in enumerate(places) if place not in texts]
  if missing:
    raise UserError(
      f'text: {len(missing)} of {len(prompts)} prompts have no text, such as '
      f'prompt {missing[0]}: add a line for each'
    )
  return [texts[place] for place in places]
