"""Gives text that every machine with Python already has.

Speculative decoding is worth most where text is predictable, and how
predictable text is differs between programs, prose and tables. Experiments
therefore need several kinds of text, the same on every machine, without a
download. The library of the running Python has all three: its sources, the
documentation inside them, and the facts it keeps in tables.

What is held out is held out by name and in every domain at once; see `names`.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from specjax.corpus import documentation, library, structured
from specjax.corpus.names import DOMAINS as DOMAINS
from specjax.corpus.names import HELD_OUT_MODULES as HELD_OUT_MODULES
from specjax.corpus.names import HELD_OUT_TOPICS as HELD_OUT_TOPICS


class Document(NamedTuple):
  """A piece of text that stands on its own.

  Attributes:
    domain: One of DOMAINS.
    name: What the text is, unique within the domain.
    text: The text, which ends with a newline.
  """

  domain: str
  name: str
  text: str


def training_documents(domain: str) -> Iterator[Document]:
  """Reads the documents of a domain to train on, in the order of their names.

  Raises:
    ValueError: If there is no such domain.
  """
  return _write_documents(domain, _choose_plan(domain)(False))


def evaluation_documents(domain: str) -> list[Document]:
  """Reads the documents that training never sees, in the order of their names.

  The tests of the library are not needed, as some systems leave them out.

  Raises:
    ValueError: If there is no such domain.
  """
  return list(_write_documents(domain, _choose_plan(domain)(True)))


def _choose_plan(domain: str) -> Callable[[bool], Iterator]:
  # Checked before the first document is asked for, so that a wrong name does
  # not wait inside an iterator.
  plans = {
    'code': _plan_code,
    'documentation': documentation.plan_documents,
    'structured': structured.plan_documents,
  }
  if domain not in plans:
    raise ValueError(
      f'Unknown domain {domain!r}; the domains are {", ".join(DOMAINS)}.'
    )
  return plans[domain]


def _write_documents(domain: str, plan: Iterator) -> Iterator[Document]:
  for name, write in plan:
    text = write()
    if text:
      yield Document(domain, name, text)


def _plan_code(held_out: bool) -> Iterator[tuple[str, Callable]]:
  for module in library.find_modules():
    if module.is_held_out == held_out and not (held_out and module.is_test):
      yield module.name, functools.partial(library.read_source, module)
