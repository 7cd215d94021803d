r"""Texts that match a regex or a JSON schema, as tables over tokens.

  from specjax import constraints

  date = constraints.regex(r'[0-9]{4}-[0-9]{2}', tokenizer, vocab_size, eos)
  person = constraints.json_schema(
    {
      'type': 'object',
      'properties': {'name': {'type': 'string'}, 'age': {'type': 'integer'}},
      'required': ['name', 'age'],
    },
    tokenizer,
    vocab_size,
    eos,
  )
  person.save('person.npz')

The whole text matches: `ab` is no text of the regex `a`. Languages are regular:
JSON may nest as deep as its schema, which does not refer to itself.

  schemas    JSON schema -> regex, and which schemas are refused
  bytewise   regex -> states over bytes, by outlines-core
  compiling  states over bytes -> states over tokens
  states     what is reached in a table of states, and what is the same

The result is an `Automaton` of `specjax.sampling`.
Needs outlines-core, which `pip install 'specjax[constraints]'` installs, except
to load an automaton that was saved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.arguments import check_eos, named
from specjax.checkpoints.vocabularies import tokens
from specjax.constraints import bytewise, compiling, schemas
from specjax.constraints.compiling import vocabulary as vocabulary
from specjax.sampling.automaton import Automaton as Automaton
from specjax.sampling.automaton import load as load


def regex(
  pattern: str, tokenizer: Any, vocab_size: int, eos: Sequence[int]
) -> Automaton:
  """The texts that match a regex as a whole.

  Args:
    pattern: in the syntax of the Rust crate regex, without anchors, word
      boundaries, look-around and back references.
    tokenizer: of transformers.
    vocab_size: V, entries of the target's head.
    eos: tokens that end a text.

  Raises:
    ValueError: the pattern is refused, takes too much memory or time or makes
      too large a table; nothing matches it; the tokenizer has no byte
      representation; an eos is no token; outlines-core is not installed.
  """
  if not isinstance(pattern, str):
    raise ValueError(f'regex must be a text, got {named(pattern)}')
  what = f'regex {bytewise.shown(pattern)}'
  check_eos(vocab_size, eos)
  read = tokens.read_tokens('the target', tokenizer, vocab_size, tuple(eos))
  return compiling.from_regex(what, pattern, read)


def json_schema(
  schema: Mapping[str, Any] | str,
  tokenizer: Any,
  vocab_size: int,
  eos: Sequence[int],
) -> Automaton:
  """Texts that are JSON and validate against a schema.

  Not all such texts: see `schemas` for what is made and what is refused.

  Args:
    schema: or its JSON text.
    tokenizer: of transformers.
    vocab_size: V, entries of the target's head.
    eos: tokens that end a text.

  Raises:
    ValueError: the schema has what cannot be promised, named with its path; or
      see `regex`.
  """
  check_eos(vocab_size, eos)
  read = tokens.read_tokens('the target', tokenizer, vocab_size, tuple(eos))
  what, pattern = schemas.to_regex(schema)
  return compiling.from_regex(what, pattern, read)
