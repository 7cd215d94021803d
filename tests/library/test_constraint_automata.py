"""Automata over tokens allow what a regex or a JSON schema allows.

Their languages are compared with Python's `re` by enumeration, with llguidance
along random walks, and with `jsonschema` by what they generate.
"""

import dataclasses
import functools
import itertools
import json
import pickle
import re
import subprocess
import sys
import time
import types

import hypothesis
import hypothesis.strategies as st
import jsonschema
import llguidance
import llguidance.hf
import numpy as np
import pytest

import specjax
from specjax import checkpoints, constraints
from specjax.checkpoints.vocabularies import tokens
from specjax.checkpoints.vocabularies.tokens import Tokens
from specjax.constraints import bytewise, compiling, schemas, states

EOS = (0,)


@functools.cache
def tokenizer():
  return checkpoints.load_tokenizer(specjax.pair.path('target'))


@functools.cache
def embedded():
  """The tokens of the embedded target."""
  return tokens.read_tokens('it', tokenizer(), 2048, EOS)


def over_embedded(pattern):
  return compiling.from_regex(f'regex {pattern!r}', pattern, embedded())


def walk(automaton, draws, length=200):
  """A random text: tokens, and whether it ended.

  Ends are drawn half of the time, and the shortest way is taken from the middle
  on, so that most texts end.
  """
  state, found = 0, []
  ends = automaton.classes[list(automaton.eos)]
  for n in range(length):
    if automaton.next[state, ends[0]] >= 0 and draws.random() < 0.5:
      return found, True
    allowed = np.flatnonzero(automaton.allowed(state))
    if n > length // 3:
      after = automaton.next[state, automaton.classes[allowed]]
      left = automaton.distance[after]
      allowed = allowed[left == left.min()]
    token = int(draws.choice(allowed))
    if token in automaton.eos:
      return found, True
    found.append(token)
    state = automaton.follow([token], state)
  return found, False


# Membership


SMALL = Tokens(
  9,
  {0: b'a', 1: b'b', 2: b'ab', 3: b'', 4: b'aba', 5: 'é'.encode(), 7: b'\xc3'},
  special={8: '<pad>'},
  ends=(6,),
)


@pytest.mark.parametrize(
  'pattern',
  [
    'ab?a*', 'a|ab', 'ab|a|abab', '(ab)*', 'aba?', '(a|b){2,4}', '', '(|a)b',
    '[^a]*', '(?:é|a)b*?', 'a{2,3}?', '(?s).*b',
    '[^]$b]*', '[]$a]*b',
  ],
)  # fmt: skip
def test_token_sequences_are_texts_where_their_bytes_match(pattern):
  automaton = compiling.from_regex(pattern, pattern, SMALL)
  assert automaton.next.dtype == automaton.classes.dtype == np.int16
  texts, ordinary = 0, set(range(9)) - {6}
  for length in range(5):
    for drawn in itertools.product(ordinary, repeat=length):
      ends = automaton.follow((*drawn, 6)) >= 0
      made = b''.join(SMALL.texts.get(i, b'\xff') for i in drawn)
      try:
        matches = re.fullmatch(pattern, made.decode()) is not None
      except UnicodeDecodeError:
        matches = False
      assert ends == (matches and 3 not in drawn), drawn
      texts += ends
  assert texts


def test_states_and_classes_are_few():
  few = Tokens(5, {0: b'a', 1: b'b', 2: b'ab', 3: b'b'}, ends=(4,))
  automaton = compiling.from_regex('it', 'ab?', few)
  # a, then b or the end; a and b at once (2); the end alone.
  assert automaton.next.shape == (4, 5)
  assert automaton.distance.tolist() == [2, 1, 1, 1]
  end = automaton.follow([0, 4])
  assert np.flatnonzero(automaton.allowed(end)).tolist() == [4]
  assert automaton.follow([0, 4, 4]) == end
  # Behind a and b the end must come, and behind it nothing is left to decide.
  assert automaton.only.tolist() == [-1, -1, 4, -1]
  equal = compiling.from_regex('it', 'a[ab]*|b[ab]*', SMALL)
  assert len(equal.next) == 3


def test_states_that_are_reached_and_lead_to_the_end_are_kept():
  """State 1 leads nowhere, and nothing leads to state 4."""
  table = [[1, 2, -1], [-1] * 3, [-1, -1, 3], [-1, -1, 3], [2, -1, -1]]
  found = states.trim(np.array(table))
  assert found.tolist() == [[-1, 1, -1], [-1, -1, 2], [-1, -1, 2]]
  assert states.trim(np.array([[0]])).tolist() == [[0]]
  assert states.trim(np.array([[1, -1], [-1, -1], [-1, 2]])) is None


def test_states_are_merged_where_that_is_quick_and_right(monkeypatch):
  """Two rounds over twelve entries show that states 1 and 2 are one."""
  table = np.array([[1, 2, -1], [-1, -1, 3], [-1, -1, 3], [0, -1, 3]])
  monkeypatch.setattr(states, '_PATIENCE', table.size)
  merged = [[1, 1, -1], [-1, -1, 2], [0, -1, 2]]
  assert states.merge(table).tolist() == merged
  monkeypatch.setattr(states, '_PATIENCE', table.size - 1)
  assert states.merge(table) is table
  monkeypatch.undo()
  # Where marks are equal by chance nothing is.
  draws = types.SimpleNamespace(integers=lambda a, b, n, kind: np.ones(n, kind))
  monkeypatch.setattr(np.random, 'default_rng', lambda seed: draws)
  assert states.merge(table) is table


def test_a_state_that_no_token_leads_on_from_is_left_out():
  only = Tokens(3, {0: b'ab', 1: b'aba'}, ends=(2,))
  automaton = compiling.from_regex('it', 'aba?', only)
  # After 'ab' no token spells 'a' alone.
  assert automaton.allowed(0).tolist() == [True, True, False]
  assert automaton.allowed(automaton.follow([0])).tolist() == [0, 0, 1]
  automaton = compiling.from_regex('it', 'ab(c|ab)|aba', only)
  assert automaton.follow([0, 0, 2]) >= 0
  assert automaton.follow([0, 1]) < 0


def test_several_tokens_end_a_text():
  two = dataclasses.replace(SMALL, ends=(8, 1))
  automaton = compiling.from_regex('it', 'ab?', two)
  # Token 1 is 'b', and as an end no part of a text.
  assert automaton.follow([0, 1]) == automaton.follow([0, 8, 1]) >= 0
  assert automaton.follow([0, 1, 0]) < 0


# Oracles


REGEXES = (
  '', 'ab?', 'def [a-z_]{1,12}\\(\\):', '[0-9]{4}-[0-9]{2}-[0-9]{2}',
  '(?:yes|no|maybe)(?:, (?:yes|no|maybe)){0,3}', '[^"]*',
  'é[à-ü]{2,5}(?:日本|語)*', '(?i)return [a-z]+', '\\w{2,4} \\d+',
  '(?s).{0,20}',
  # Brackets and escapes in classes are no syntax.
  r'[]($^)\]a][^]b](?i:\(\$)\\',
)  # fmt: skip
SCHEMAS = {
  'loose': {
    'type': 'object',
    'properties': {
      'name': {'type': 'string'},
      'size': {'type': 'number'},
      'tags': {'type': 'array', 'items': {'type': ['string', 'null']}},
      'more': {'anyOf': [{'type': 'integer'}, {'$ref': '#/$defs/pair'}]},
    },
    '$defs': {
      'pair': {
        'type': 'array',
        'prefixItems': [{'type': 'boolean'}, {'const': {'a': [1, 'é"\n']}}],
        'items': False,
      }
    },
  },
  'counted': {
    'type': 'object',
    'properties': {
      'id': {'type': 'string', 'format': 'uuid'},
      'age': {'type': 'integer', 'minimum': 0, 'exclusiveMaximum': 121},
      'code': {'type': 'string', 'pattern': '^[A-Z]{2}[(]\\d{1,3}-\\w+$'},
      'note': {'type': 'string', 'minLength': 2, 'maxLength': 6},
      'grid': {
        'type': 'array',
        'minItems': 1,
        'maxItems': 3,
        'items': {
          'type': 'array',
          'items': {'type': 'integer', 'maximum': -7},
          'maxItems': 2,
        },
      },
    },
    'required': ['age', 'note', 'grid'],
    'additionalProperties': False,
    'minProperties': 2,
  },
  'dates': {
    'type': 'array',
    'items': {
      'type': 'object',
      'properties': {
        'day': {'type': 'string', 'format': 'date'},
        'at "it"': {'type': 'string', 'format': 'date-time'},
        'time': {'type': 'string', 'format': 'time'},
      },
      'required': ['at "it"'],
      'additionalProperties': {'type': 'string'},
    },
    'minItems': 1,
    'maxItems': 2,
  },
  'choice': {
    'anyOf': [
      {'type': 'string', 'enum': ['left', 'left\\', 'ri"ght', '<é>']},
      {'enum': [1, 1.5, None, True, [], {}]},
      {'allOf': [{'type': 'boolean'}]},
    ]
  },
  'tight': {
    'type': 'object',
    'properties': {
      'ok': {'const': True},
      'kind': {'type': 'string', 'enum': ['a']},
    },
    'required': ['kind', 'ok'],
    'additionalProperties': False,
  },
}


@functools.cache
def of_schema(name):
  what, pattern = schemas.to_regex(SCHEMAS[name])
  return pattern, compiling.from_regex(what, pattern, embedded())


@functools.cache
def _llguidance():
  return llguidance.hf.from_tokenizer(
    tokenizer(), n_vocab=embedded().size, eos_token=EOS[0]
  )


class Llguidance:
  def __init__(self, pattern):
    grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
    self.matcher = llguidance.LLMatcher(_llguidance(), grammar)
    assert not self.matcher.is_error(), self.matcher.get_error()

  def allowed(self):
    """Its masks leave out what is not how it would write a forced text."""
    found = [self.matcher.validate_tokens([i]) for i in range(embedded().size)]
    found[EOS[0]] = self.matcher.is_accepting()
    return np.array(found) == 1

  def take(self, token):
    assert self.matcher.consume_token(token)


def agrees(automaton, oracle, seed):
  """Along one random walk, in every state."""
  found, _ = walk(automaton, np.random.default_rng(seed), 60)
  state = 0
  for token in [*found, None]:
    np.testing.assert_array_equal(automaton.allowed(state), oracle.allowed())
    if token is not None:
      oracle.take(token)
      state = automaton.follow([token], state)
  return len(found) + 1


@pytest.mark.parametrize('pattern', REGEXES)
def test_tokens_of_a_regex_are_those_of_llguidance(pattern):
  automaton = over_embedded(pattern)
  assert sum(agrees(automaton, Llguidance(pattern), seed) for seed in range(5))


# What schemas make


@pytest.mark.parametrize('name', SCHEMAS)
def test_texts_of_a_schema_validate_and_are_those_of_llguidance(name):
  pattern, automaton = of_schema(name)
  for seed in range(3):
    agrees(automaton, Llguidance(pattern), seed)
  validator = jsonschema.Draft202012Validator(
    SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
  )
  draws = np.random.default_rng(1)
  texts = set()
  for _ in range(1000):
    found, ended = walk(automaton, draws)
    if ended:
      text = b''.join(embedded().texts[i] for i in found).decode()
      validator.validate(json.loads(text))
      texts.add(text)
  assert len(texts) >= {'tight': 30, 'choice': 11}.get(name, 400)


_WORDS = st.text('ab"\\\\é日\U0001f600', max_size=4)
_VALUES = st.recursive(
  st.none() | st.booleans() | st.integers(-9, 9) | _WORDS,
  lambda inner: (
    st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from('ab'), inner).map(
      lambda x: dict(sorted(x.items()))
    )
  ),
  max_leaves=5,
)


def _some(**values):
  return st.fixed_dictionaries({}, optional=values)


def _counted(of, most):
  counts = {f'min{of}': st.integers(0, most), f'max{of}': st.integers(0, most)}
  return _some(**counts).filter(
    lambda x: x.get(f'min{of}', 0) <= x.get(f'max{of}', most)
  )


# What nothing validates against is refused, so all of these hold something.
_BOUNDS = _some(
  minimum=st.integers(-9, 1),
  exclusiveMinimum=st.integers(-9, 0),
  maximum=st.integers(1, 9),
  exclusiveMaximum=st.integers(2, 9),
)
_ANY_SCHEMA = st.recursive(
  st.sampled_from([{'type': 'null'}, {'type': 'boolean'}])
  | _BOUNDS.map(lambda x: {'type': 'integer', **x})
  | _counted('Length', 4).map(lambda x: {'type': 'string', **x})
  | st.builds(lambda x: {'const': x}, _VALUES)
  | st.builds(lambda x: {'enum': x}, st.lists(_VALUES, min_size=1, max_size=4)),
  lambda inner: (
    st.builds(
      lambda items, x: {'type': 'array', 'items': items, **x},
      inner,
      _counted('Items', 3),
    )
    | st.builds(
      lambda a, b, required: {
        'type': 'object',
        'properties': {'a': a, 'b': b},
        'required': required,
        'additionalProperties': False,
      },
      inner,
      inner,
      st.sets(st.sampled_from('ab')).map(sorted),
    )
    | st.lists(inner, min_size=1, max_size=3).map(lambda x: {'anyOf': x})
  ),
  max_leaves=4,
)


@hypothesis.settings(max_examples=300)
@hypothesis.given(_ANY_SCHEMA, st.lists(_VALUES, min_size=1, max_size=12))
def test_a_value_matches_where_it_validates(schema, values):
  validator = jsonschema.Draft202012Validator(schema)
  values = [
    *values, *range(-10, 11), [], [1], [1, 1], [True] * 3, {'a': 1}, 'é',
  ]  # fmt: skip
  valid = [validator.is_valid(x) for x in values]
  _, pattern = schemas.to_regex(schema)
  for value, holds in zip(values, valid, strict=True):
    text = json.dumps(value, ensure_ascii=False)
    assert bool(re.fullmatch(pattern, text)) == holds, (text, pattern)


def test_integers_are_those_between_their_bounds():
  near = [*range(-130, 131), *range(880, 1130), *range(-1130, -880)]
  bounds = (None, -1000, -999, -100, -21, -1, 0, 1, 9, 10, 99, 105, 1000, 1100)
  for low, high in itertools.product(bounds, bounds):
    pattern = schemas.integer(low, high)
    made = {x for x in near if pattern and re.fullmatch(pattern, str(x))}
    want = {
      x
      for x in near
      if (low is None or x >= low) and (high is None or x <= high)
    }
    assert made == want, (low, high)


def test_dates_are_days_that_there_are():
  for year, month, day in itertools.product(
    (1000, 1900, 1999, 2000, 2024, 2026), range(14), range(33)
  ):
    text = f'{year}-{month:02}-{day:02}'
    there_is = jsonschema.FormatChecker().conforms(text, 'date')
    assert bool(re.fullmatch(schemas.FORMATS['date'], text)) == there_is, text


# Refusals


def in_age(path, **rules):
  """A schema with rules of one of its properties, and a place in them."""
  within = {'properties': {'age': rules}, 'required': ['age']}
  return {'type': 'object'} | within, f'$.properties.age{path}'


STRING = {'type': 'string'}
OBJECT = {'type': 'object', 'properties': {'a': STRING}}


@pytest.mark.parametrize(
  ('schema', 'path'),
  [
    in_age('.minimum', type='number', minimum=3),
    in_age('.multipleOf', type='number', multipleOf=3),
    in_age('.minimum', type='integer', minimum=1.5),
    in_age('', type='integer', minimum=5, maximum=4),
    in_age('.type', type=['number', 'integer'], minimum=0),
    in_age('.minLength', type='string', minLength=-1),
    in_age('.minLength', type='string', minLength=4, maxLength=3),
    in_age('.minimum', type='string', minimum=3),
    in_age('.format', type='string', format='email'),
    in_age('.pattern', type='string', pattern='.*'),
    in_age('.pattern', type='string', pattern='a\\sb'),
    in_age('.pattern', type='string', pattern='^a|b$|^c'),
    in_age('.pattern', type='string', pattern='(?=a)a'),
    in_age('.pattern', type='string', pattern='[^\\d]'),
    in_age('.pattern', type='string', pattern='a++'),
    in_age('.pattern', type='string', pattern='(?i:a)'),
    in_age('.pattern', type='string', pattern='[a-z&&b]'),
    in_age('.pattern', type='string', pattern='a('),
    in_age('.pattern', type='string', pattern=3),
    in_age('.pattern', type='string', pattern='a{2}{3}'),
    in_age('.pattern', type='string', pattern='a\x1fb'),
    in_age('.pattern', type='string', pattern='"*'),
    in_age('.maxLength', type='string', pattern='a', maxLength=3, minLength=1),
    in_age('.enum', enum=[]),
    in_age('.enum[1]', enum=['a', 3], type='string'),
    in_age('.enum[2]', enum=[3, 3.0, 3.5], type='integer'),
    in_age('.enum[3]', enum=[3, 3.0, 3.5, True], type='number'),
    in_age('.maxLength', enum=['a'], maxLength=3, minLength=1),
    in_age('.const', const='\ud800'),
    in_age(''),
    in_age('.maxLength', maxLength=3),
    in_age('.type', type='text'),
    in_age('.type', type=[]),
    in_age('', type='array'),
    in_age('.uniqueItems', type='array', items=STRING, uniqueItems=True),
    in_age('.items', type='array', items=[STRING]),
    in_age('.items', type='array', prefixItems=[STRING], items=STRING),
    in_age('.prefixItems', type='array', prefixItems=[STRING], minItems=2),
    in_age('.prefixItems', type='array', prefixItems=[STRING], maxItems=0),
    in_age('.items', type='array', prefixItems=[STRING], items=True),
    in_age('.items', type='array', items=False, minItems=1),
    in_age('', type='array', maxItems=1),
    in_age('.additionalProperties', **OBJECT, additionalProperties='no'),
    in_age('.allOf', allOf=[STRING, STRING]),
    in_age('.oneOf', oneOf=[STRING, STRING]),
    in_age('.type', anyOf=[STRING], type='string'),
    in_age('.anyOf[1]', anyOf=[STRING, True]),
    in_age('.not', **{'not': STRING}),
    in_age('.properties', type='object'),
    in_age('.properties', type='object', properties=['a']),
    in_age('.required', **OBJECT, required='a'),
    in_age('.prefixItems', type='array', prefixItems=STRING),
    in_age('.additionalProperties', type='object', additionalProperties=STRING),
    in_age('.properties["a b"]', type='object', properties={'a b': False}),
    in_age('.required[0]', **OBJECT, required=['b']),
    in_age('.minProperties', **OBJECT, minProperties=1),
    in_age('.maxProperties', **OBJECT, maxProperties=0),
    in_age('.$ref', **{'$ref': '#'}),
    in_age('.$ref', **{'$ref': 'https://a/b'}),
    in_age('.$ref', **{'$ref': '#/$defs/x'}),
    ({'$ref': 'it#/$defs/a', '$defs': {'a': STRING}}, '$.$ref'),
    in_age('.$id', **{'$id': 'x', 'type': 'string'}),
    (
      {
        '$ref': '#/$defs/tree',
        '$defs': {'tree': {'type': 'array', 'items': {'$ref': '#/$defs/tree'}}},
      },
      '$.$defs.tree.items.$ref',
    ),
    (
      {
        '$ref': '#/$defs/20',
        '$defs': {
          str(n): {'anyOf': [{'$ref': f'#/$defs/{n - 1}'}] * 2}
          for n in range(1, 21)
        }
        | {'0': STRING},
      },
      '$.$defs.14',
    ),
    (
      functools.reduce(
        lambda inner, _: {'type': 'array', 'items': inner}, range(70), STRING
      ),
      '$' + 64 * '.items',
    ),
    ('{"type": ', '$'),
    ({'const': object}, '$'),
    ('{"const": NaN}', '$'),
    ('{"enum": [1, -Infinity]}', '$'),
    ('{"const": 1e999}', '$.const'),
    ('[' * 100_000, '$'),
    ('"string"', '$'),
    in_age('.pattern', type='string', pattern='[--c-e]'),
    in_age('.pattern', type='string', pattern='[a[b]'),
    ({'$ref': '#/$defs/a/-1', '$defs': {'a': [{'type': 'null'}]}}, '$.$ref'),
    ({'type': ['integer', 'junk'], 'enum': [1]}, '$.type'),
    ({'type': 'string', 'maxLength': 10**30}, '$.maxLength'),
    ({'type': 'integer', 'minimum': 10**18}, '$.minimum'),
    ({'type': 'integer', 'maximum': -(10**18)}, '$.maximum'),
  ],
)
def test_a_schema_is_refused_with_its_field(schema, path):
  with pytest.raises(ValueError, match=r'^JSON schema, ') as refused:
    schemas.to_regex(schema)
  said = str(refused.value).removeprefix('JSON schema, ')
  assert said.partition(': ')[0] == path
  assert '\n' not in said


NULL = {'type': 'null'}


def nested(levels):
  return {'anyOf': [nested(levels - 1)]} if levels > 1 else NULL


@pytest.mark.parametrize(
  ('taken', 'refused'),
  [
    ({'const': 'a' * 999_994}, {'const': 'a' * 999_995}),
    (nested(64), nested(65)),
    # Levels, not nodes.
    tuple({'anyOf': [NULL] * 70 + [nested(n)]} for n in (63, 64)),
    (STRING | {'maxLength': 10**6}, STRING | {'minLength': 10**6 + 1}),
  ],
)
def test_the_largest_schemas_that_are_taken(taken, refused):
  schemas.to_regex(taken)
  with pytest.raises(ValueError, match=r'^JSON schema, \$'):
    schemas.to_regex(refused)


@pytest.mark.parametrize(
  ('schema', 'texts', 'others'),
  [
    ({'type': 'integer', 'minimum': 10**18 - 1}, ['9' * 18], ['9' * 17 + '8']),
    (
      {'type': 'integer', 'minimum': 2, 'exclusiveMinimum': 2}
      | {'maximum': 9.0, 'exclusiveMaximum': 9}, ['3', '8'], ['2', '9'],
    ),
    ({'const': 'é\u2028'}, ['"é\u2028"'], ['"\\u00e9\\u2028"']),
    ({'type': ['number', 'integer']}, ['1.5'], ['"1"']),
    ({'type': ['number', 'string'], 'maxLength': 1}, ['1.5', '"a"'], ['"ab"']),
    ({'type': ['string', 'integer'], 'enum': ['a', 3]}, ['"a"', '3'], ['"b"']),
    ({'type': 'boolean', 'enum': [True]}, ['true'], ['false']),
    ({'type': 'array', 'maxItems': 0}, ['[]', '[ ]'], ['[1]']),
    ({'type': 'array', 'items': False}, ['[]'], ['[1]']),
    ({'type': 'array', 'items': NULL, 'maxItems': 1}, ['[]', '[null]'], []),
    (
      {'type': 'array', 'prefixItems': [NULL], 'minItems': 1, 'maxItems': 1}
      | {'uniqueItems': False}, ['[null]'], ['[]', '[null,null]'],
    ),
    ({'type': 'object', 'additionalProperties': False}, ['{}', '{ }'], []),
    (
      {'type': 'object', 'properties': {'a': NULL}, 'required': ['a']}
      | {'minProperties': 1, 'maxProperties': 1}, ['{"a":null}'], ['{}'],
    ),
    ({'$schema': 'x', '$id': 'y', 'title': 'z', **NULL}, ['null'], ['1']),
    *(
      ({'type': 'string', 'pattern': pattern}, texts, others)
      for pattern, texts, others in (
        (r'^a b\$$', ['"a b$"'], ['"a b"']),
        (r'\d\w', ['"1_"'], ['"٣a"', '"1é"', '"a1"']),
        (r'[\d.]+[*+]', ['"1.+"'], ['"d*"']),
        (r'\x41\u0042', ['"AB"'], ['"x41u0042"']),
        ('[(]a', ['"(a"'], ['"?a"', '":a"']),
        ('a-[&|~-]-', ['"a-~-"'], ['"a--"']),
      )
    ),
  ],
)  # fmt: skip
def test_what_a_schema_allows(schema, texts, others):
  _, pattern = schemas.to_regex(schema)
  assert all(re.fullmatch(pattern, text) for text in texts)
  assert not any(re.fullmatch(pattern, text) for text in others)


def test_a_schema_is_called_as_its_title():
  for title, name in (('A', "'A'"), (3, repr('{"title": 3, "type": "null"}'))):
    what, _ = schemas.to_regex({'title': title, **NULL})
    assert what == f'JSON schema {name}'
  assert bytewise.shown('x' * 60) == repr('x' * 60)
  assert bytewise.shown('x' * 61) == repr(f'{"x" * 57}...')


@pytest.mark.parametrize(
  ('pattern', 'says'),
  [
    ('^a', "has '^', an anchor: leave it out"),
    ('(?<!a)b', 'look-around'),
    ('(a)\\1', 'back reference'),
    ('\\ba', 'word boundary'),
    ('(?x)a b', 'the flag x'),
    ('a(', "a '(' without its ')'"),
    *((x, "has '^', an anchor") for x in ('a]^', '[a]^', '[]a]^')),
    ('a)|(b', "a ')' without its '('"),
    ('a{,2}', 'write {0,n} for {,n}'),
    ('[a', 'is no regex as outlines-core reads it'),
    ('[a&&b]', "nothing matches regex '[a&&b]'"),
    ('x' * 100 + '[', f"regex '{'x' * 57}...'"),
    ('c', "nothing matches regex 'c' in the tokens of this vocabulary"),
  ],
)
def test_a_regex_is_refused_with_a_remedy(pattern, says):
  with pytest.raises(ValueError, match=re.escape(says)) as refused:
    compiling.from_regex(f'regex {bytewise.shown(pattern)}', pattern, SMALL)
  assert '\n' not in str(refused.value)


def test_a_regex_that_takes_all_memory_or_long_is_refused(monkeypatch):
  pattern = '(((a{30}){30}){30}){30}'
  with pytest.raises(
    ValueError, match='GiB to compile: bound its repeats lower'
  ):
    bytewise.build('it', pattern, memory=200 << 20, seconds=20)
  held = []  # What is done at the end of the program.
  ends = types.SimpleNamespace(register=held.append, unregister=held.remove)
  monkeypatch.setattr(bytewise, 'atexit', ends)
  with pytest.raises(ValueError, match=r'more than 0\.5 s to compile: bound'):
    bytewise.build('it', pattern, seconds=0.5)
  assert not held
  with pytest.raises(ValueError, match=r'more than 0\.001 s to compile'):
    compiling.from_regex('it', 'a', SMALL, seconds=1e-3)


@pytest.mark.parametrize(
  ('code', 'told', 'says'),
  [
    (1, b'Traceback\nMemoryError\n', 'takes more than 2 GiB'),
    (1, b'', 'takes more than 2 GiB'),
    (-9, b'a warning \xff', 'takes more than 2 GiB'),
    (1, b'a\nb\nKeyError: 3\n', 'outlines-core failed on it: KeyError: 3'),
  ],
)
def test_what_compiling_died_of_is_told(monkeypatch, code, told, says):
  """A process that the system ended has said nothing, or something else."""
  died = subprocess.CompletedProcess([], code, b'', told)

  def run(job, seconds):
    assert (job['memory'], seconds) == (2 << 30, 60)
    return died

  monkeypatch.setattr(bytewise, '_run', run)
  with pytest.raises(ValueError, match=f'^(it )?{says}'):
    bytewise.build('it', 'a')


def test_what_outlines_core_says_is_told_in_other_words():
  errors = 'too big', 'exceeded', 'a limit', 'x', 'no transitions'
  found = [bytewise._said('it', error) for error in errors]
  assert [found.index(x) for x in found] == [0, 0, 0, 3, 4]


def test_a_vocabulary_without_text_spells_the_empty_text_alone():
  ends = Tokens(2, {}, ends=(1,))
  automaton = compiling.from_regex('it', 'a?', ends)
  assert automaton.allowed(0).tolist() == [False, True]
  with pytest.raises(ValueError, match='nothing matches it in the tokens'):
    compiling.from_regex('it', 'a', ends)


def test_a_table_that_is_large_is_refused(monkeypatch):
  for name, size in (('MOST_STATES', 102), ('MOST_BYTES', 2 * 102 * 3)):
    with monkeypatch.context() as patch:
      patch.setattr(compiling, name, size)
      compiling.from_regex('it', 'a{100}', SMALL)
      patch.setattr(compiling, name, size - 1)
      with pytest.raises(ValueError, match=r'102 states and 3 .* repeats low'):
        compiling.from_regex('it', 'a{100}', SMALL)
  # Five ways through 11 states, in two bytes; a quarter of the memory.
  three = Tokens(4, {0: b'a', 1: b'aa', 2: b'aaa'}, ends=(3,))
  monkeypatch.setattr(bytewise, 'MEMORY', 4 * 5 * 11 * 2)
  compiling.from_regex('it', 'a{9}', three)
  monkeypatch.setattr(bytewise, 'MEMORY', 4 * 5 * 11 * 2 - 1)
  with pytest.raises(ValueError, match=r'it makes 11 states .* too many ways'):
    compiling.from_regex('it', 'a{9}', three)


def test_without_outlines_core_the_message_says_what_to_install(monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r'pip install .*\[constraints\]'):
    over_embedded('a')


def test_outlines_core_is_imported_by_no_import_of_specjax():
  program = (
    'import sys, specjax, specjax.constraints; '
    'sys.exit("outlines_core" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', program], check=True)


# Files


def test_a_saved_automaton_is_the_same(tmp_path):
  _, made = of_schema('counted')
  made.save(tmp_path / 'it.npz')
  read = constraints.load(tmp_path / 'it.npz')
  assert (tmp_path / 'it.npz').stat().st_size < 50_000
  for field in dataclasses.fields(made):
    was, now = getattr(made, field.name), getattr(read, field.name)
    assert type(was) is type(now)
    np.testing.assert_array_equal(was, now)


def saved(tmp_path, **changes):
  path = tmp_path / 'it.npz'
  compiling.from_regex('it', 'ab?', SMALL).save(path)
  with np.load(path) as file:
    read = dict(file) | changes
  np.savez(path, **{k: v for k, v in read.items() if v is not None})
  return path


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'version': np.array(2)}, 'version 2, and this specjax reads 1'),
    ({'version': None, 'next': None}, 'not a whole automaton'),
    ({'next': np.zeros(3, np.int16)}, 'shapes'),
    ({'next': np.zeros((3, 9), np.int32)}, 'not int16'),
    ({'next': np.full((4, 9), 4, np.int16)}, 'states beyond the 4'),
    ({'next': np.full((4, 9), -1, np.int16)}, 'from which no text ends'),
    ({'classes': np.full(9, 99, np.int16)}, 'classes beyond'),
    ({'classes': np.repeat(np.int16([-1, 0]), 8)}, 'classes beyond'),
    ({'eos': np.array([9])}, 'eos beyond'),
    ({'eos': np.array([-1, 3])}, 'eos beyond'),
    ({'eos': np.zeros(0, int)}, 'no token ends'),
    ({'what': np.array(3)}, 'no text'),
    ({'what': np.array([{}], object)}, 'not a whole automaton'),
  ],
)
def test_a_file_that_is_no_automaton_is_refused(tmp_path, changes, says):
  with pytest.raises(ValueError, match=says):
    constraints.load(saved(tmp_path, **changes))


def test_a_damaged_file_is_refused(tmp_path):
  path = saved(tmp_path)
  whole = path.read_bytes()
  for length in range(0, len(whole), 37):
    path.write_bytes(whole[:length])
    with pytest.raises(ValueError, match='not a whole automaton'):
      constraints.load(path)
  path.write_bytes(pickle.dumps({'next': 3}))
  with pytest.raises(ValueError, match='not a whole automaton'):
    constraints.load(path)
  with pytest.raises(
    ValueError, match=r'no automaton .*none.npz.* can be read'
  ):
    constraints.load(tmp_path / 'none.npz')


def test_an_automaton_of_another_target_is_refused():
  made = constraints.regex('a+', tokenizer(), 2048, EOS)
  own = constraints.vocabulary(tokenizer(), 2048)
  made.check(own, 2048, EOS)
  for arguments, field in (
    ((compiling.digest(SMALL), 2048, EOS), 'tokenizer'),
    ((own, 2049, EOS), 'vocab_size 2048, but the target has 2049'),
    ((own, 2048, (0, 1)), r'eos \[0\], but the target has \[0, 1\]'),
  ):
    with pytest.raises(ValueError, match=f"regex 'a\\+' .* {field}.* anew"):
      made.check(*arguments)


def test_the_digest_tells_tokens_apart():
  others = [
    dataclasses.replace(SMALL, texts={**SMALL.texts, 0: b'A'}),
    dataclasses.replace(SMALL, texts={**SMALL.texts, 8: b'a'}),
    dataclasses.replace(SMALL, special={8: '<end>'}),
    dataclasses.replace(SMALL, texts=dict(list(SMALL.texts.items())[1:])),
  ]
  assert len({compiling.digest(each) for each in [SMALL, *others]}) == 5
  again = dataclasses.replace(SMALL, texts=dict(reversed(SMALL.texts.items())))
  assert compiling.digest(again) == compiling.digest(SMALL)


# Sizes


@pytest.mark.slow
def test_a_schema_of_a_thousand_states_over_131072_tokens():
  size, draws = 131_072, np.random.default_rng(0)
  letters, marks = b' etaoinsrhldcumfpgwybvkxjqz', b'".{}:,-[]0123456789eE\\ntu'
  texts = [bytes([b]) for b in range(256)]
  for length in draws.integers(2, 12, size - 257):
    some = letters if draws.random() < 0.8 else marks
    texts.append(bytes(draws.choice(np.frombuffer(some, np.uint8), length)))
  known = Tokens(size, dict(enumerate(texts)), ends=(size - 1,))
  text = {'type': 'string', 'maxLength': 10}
  kinds = [text, {'type': 'integer'}, {'type': 'number'}, {'enum': ['a', 'bc']}]
  fields = {f'field_{n}': kinds[n % 4] for n in range(24)}
  what, pattern = schemas.to_regex(
    {'type': 'object', 'properties': fields, 'required': [*fields]}
  )
  start = time.process_time()
  made = compiling.from_regex(what, pattern, known)
  spent = time.process_time() - start
  assert 700 < len(made.next) < 1500
  assert made.next.nbytes <= 16_000_000
  assert spent < 20


def test_a_string_alone_compiles_as_fast_as_one_inside():
  what, pattern = schemas.to_regex({'type': 'string', 'maxLength': 200})
  made = compiling.from_regex(what, pattern, embedded(), seconds=20)
  assert len(made.next) > 200
