"""Whole texts of the embedded pair within the schemas that come with it."""

import dataclasses
import json
import pathlib

import jsonschema
import pytest

import specjax
from specjax import constraints, pair
from specjax.constraints import targets

NAMES = ('note', 'table', 'character', 'choices', 'header')
ROWS, NEW = 60, 96


@pytest.fixture(scope='module')
def drafted():
  """A small target, which writes fast, and a draft."""
  target = specjax.load(pair.path('draft-128'), layout='whole')
  draft = specjax.drafters.lm.load(target, pair.path('draft-64'))
  return target, draft


def schema_of(name):
  return json.loads(
    pathlib.Path(pair.constraint(name)).with_suffix('.json').read_text()
  )


def write(drafted):
  """Texts of every schema, which are rows of one batch."""
  automata = [constraints.load(pair.constraint(name)) for name in NAMES]
  prompts = [f'{i}: ' for i in range(ROWS * len(NAMES))]
  return specjax.decode(
    *drafted, prompts, gamma=3, new_tokens=NEW, temperature=1.0, seed=0,
    constraint=[one for one in automata for _ in range(ROWS)],
  )  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_stored_automata_are_those_of_their_schemas(name):
  target = specjax.load(pair.path('target'), layout='whole')
  stored = constraints.load(pair.constraint(name))
  size = target.model.config.vocab_size
  made = constraints.json_schema(
    schema_of(name), target.tokenizer, size, target.eos
  )
  vocabulary = constraints.vocabulary(target.tokenizer, size)
  stored.check(vocabulary, size, target.eos)
  assert (stored.next == made.next).all()
  assert (stored.classes == made.classes).all()


@pytest.mark.slow
def test_texts_are_valid_or_said_to_be_cut(drafted):
  out = write(drafted)
  for i, name in enumerate(NAMES):
    check = jsonschema.Draft202012Validator(schema_of(name))
    language = constraints.load(pair.constraint(name))
    rows = range(i * ROWS, (i + 1) * ROWS)
    for row in rows:
      if out.ended[row]:
        check.validate(json.loads(out.texts[row]))
      else:  # The beginning of a value.
        assert len(out.tokens[row]) == NEW
        assert language.follow(out.tokens[row]) >= 0
    ended = sum(out.ended[row] for row in rows) / ROWS
    assert ended > (0.9 if name in ('choices', 'header') else 0.1)


@pytest.mark.slow
def test_each_prompt_has_its_own_constraint(drafted):
  target, draft = drafted
  schema = {
    'type': 'object',
    'properties': {'strict': {'type': 'boolean'}},
    'required': ['strict'],
  }
  asked = {
    'regex': ['[ab]{4}', None, None],
    'json_schema': [None, schema, None],
  }
  options = {'gamma': 2, 'new_tokens': 24, 'temperature': 1.0}
  prompts = ['x = ', 'y = ', 'def f(']
  out = specjax.decode(target, draft, prompts, **asked, **options)
  assert len(out.texts[0]) == 4
  assert set(out.texts[0]) <= {'a', 'b'}
  assert isinstance(json.loads(out.texts[1])['strict'], bool)
  free = specjax.decode(target, draft, prompts, **options)
  assert out.texts[2] == free.texts[2]
  assert out.ended[:2] == [True, True]


@pytest.mark.parametrize(
  ('asked', 'message'),
  [
    ({'regex': ['a']}, 'regex has 1 entries for 2 prompts'),
    ({'regex': 'a', 'json_schema': '{}'}, 'prompt 0 has both a regex and a js'),
    ({'json_schema': {'type': {1}}}, 'json_schema must be a text or a schema'),
    ({'regex': 3}, 'regex must be a text, got int'),
    ({'regex': 'a', 'constraint': [None, None]}, 'beside a regex or a json'),
  ],
)
def test_wrong_constraints_are_refused(drafted, asked, message):
  with pytest.raises(ValueError, match=message):
    specjax.decode(*drafted, ['a', 'b'], **{'new_tokens': 8} | asked)


def test_constraints_of_prompts_are_made_once(drafted):
  target, null = drafted[0], {'type': 'null'}
  patterns, wanted = ['a', None, 'a', None], [None, null, None, None]
  first, other, again, none = targets.for_prompts(target, 4, patterns, wanted)
  assert first is again
  assert none is None
  assert other.what.startswith('JSON schema ')
  assert targets.for_prompts(target, 1, 'a') == [first]
  (same,) = targets.for_prompts(target, 1, schemas=json.dumps(null))
  assert same is other


def test_a_target_without_a_tokenizer_takes_automata_alone(drafted):
  target = dataclasses.replace(drafted[0], tokenizer=None)
  with pytest.raises(ValueError, match=r'^regex: .*draft-128 has no tokenizer'):
    targets.for_prompts(target, 1, 'a')
  one = constraints.load(pair.constraint('choices'))
  other = dataclasses.replace(one, vocabulary='other')
  assert targets.for_prompts(target, 1, automata=other) is other


def test_an_automaton_of_other_tokens_is_refused(drafted):
  one = constraints.load(pair.constraint('choices'))
  other = dataclasses.replace(one, vocabulary='other')
  # One of the same name that was taken before changes nothing.
  assert targets.for_prompts(drafted[0], 1, automata=one) is one
  with pytest.raises(ValueError, match='was made for tokenizer other, but'):
    specjax.decode(*drafted, ['a'], new_tokens=96, constraint=other)
  with pytest.raises(ValueError, match='was made for tokenizer other, but'):
    targets.for_prompts(drafted[0], 3, automata=[None, one, other])


@pytest.mark.parametrize('eos', [(), (0, 5000), (-1,), 0, ('0',)])
@pytest.mark.parametrize(
  ('make', 'asked'),
  [(constraints.regex, 'a'), (constraints.json_schema, '{"type": "null"}')],
)
def test_ends_that_are_no_tokens_are_refused(drafted, make, asked, eos):
  with pytest.raises(ValueError, match=r'^eos must be the tokens that end'):
    make(asked, drafted[0].tokenizer, 2048, eos)
