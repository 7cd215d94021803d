"""Wherever a length is limited: the longest that fits does, one more does not.

Each limit is asked for itself, without a model.
"""

import dataclasses
import pathlib
import types

import pytest

from specjax import prompts, sampling, verify
from specjax.bench import load
from specjax.bench.config import Prompts
from specjax.bench.plan import freeze, plan_drafter
from specjax.checkpoints.families import conversion
from specjax.drafters import cascade, lm, ngram, plain
from specjax.loop import buffers, generate
from specjax.models import prefill, table
from specjax.models.config import Encoder
from specjax.prompts import forms
from specjax.types import Spec
from tests.support import tiny

# The library: 20 positions, of the target or of what drafts for it.

SHORT, LONG = table.build(5, 20), table.build(5, 512)
OF_DRAFTERS = (
  lm.make(SHORT, 2),
  lm.make_tree(SHORT, (0, 0, 1)),
  cascade.make(SHORT, ngram.make(2), 2),
  cascade.make(LONG, lm.make(SHORT, 2), 2),
)


def fit(spec, lengths, new, **options):
  count = len(lengths)
  return buffers.plan_buffers(
    spec, [[1] * length for length in lengths], new,
    generate.row_keys(0, range(count)), sampling.make(count), **options,
  )  # fmt: skip


@pytest.mark.parametrize(
  ('spec', 'who'),
  [
    (Spec(SHORT, plain.make(), verify.token), 'target'),
    *((Spec(LONG, x, verify.recursive), 'drafter') for x in OF_DRAFTERS),
  ],
)
def test_the_positions_of_the_target_and_of_drafters(spec, who):
  """Prompt and new tokens, whichever row they are of."""
  assert fit(spec, [15], 5).limit.tolist() == [20]
  assert fit(spec, [15, 1], [5, 19]).limit.tolist() == [20, 20]
  for lengths, new, row in (([16], 5, 0), ([15, 2], [5, 19], 1)):
    message = f'prompt {row} and .* make 21 tokens, but the {who} has 20 pos'
    with pytest.raises(ValueError, match=message):
      fit(spec, lengths, new)


# A step writes K + 1 tokens behind a text, and a cascade what is drafted below.
@pytest.mark.parametrize(
  ('drafter', 'longest'),
  [
    (plain.make(), 127),
    (lm.make(LONG, 4), 123),
    (ngram.make(3, candidates=2), 124),
    (cascade.make(LONG, lm.make(LONG, 4), 2), 121),
    (cascade.make(LONG, cascade.make(LONG, ngram.make(3), 2), 4), 118),
  ],
)
def test_slots(drafter, longest):
  spec = Spec(LONG, drafter, verify.recursive)
  assert fit(spec, [longest - 27], 27).slots == 128
  assert fit(spec, [longest - 27], 27, slots=128).slots == 128
  assert fit(spec, [longest - 27], 27, slots=129).slots == 256
  assert fit(spec, [longest - 26], 27).slots == 256
  with pytest.raises(ValueError, match='slots is 128, but prompt 0 needs 256'):
    fit(spec, [longest - 26], 27, slots=128)


def test_what_an_encoder_reads():
  """Its source is limited by itself, and the text begins with one token."""

  def reads(model):
    config = dataclasses.replace(model.config, encoder=Encoder(1, start=2))
    return Spec(model._replace(config=config), plain.make(), verify.token)

  spec = reads(SHORT)
  found = fit(spec, [20], 19)
  assert (found.limit.tolist(), found.source_slots) == ([20], 128)
  assert found.texts == [[2]]
  with pytest.raises(ValueError, match='prompt 1 has 21 tokens for the enc'):
    fit(spec, [20, 21], 1)
  with pytest.raises(ValueError, match=r'prompt 0 and .* make 21 tokens'):
    fit(spec, [3], 20)
  with pytest.raises(ValueError, match=r'source_slots is 128, .* 0 needs 256'):
    fit(reads(LONG), [200], 19, source_slots=128)


def test_tokens_and_the_longest_sequence_of_a_checkpoint():
  prefill.check_prompts(SHORT.config, [[0, 4]])
  for token in (-1, 5):
    with pytest.raises(ValueError, match='prompt 1 has a token outside'):
      prefill.check_prompts(SHORT.config, [[0], [token]])
  assert conversion.limit_length(SHORT.config, 20) == SHORT.config
  with pytest.raises(ValueError, match='max_length = 21 is more than the 20'):
    conversion.limit_length(SHORT.config, 21)


# Experiments: a target of 20 positions, and drafts.


def described(target=20, draft=None, encoder=None):
  """Models of so many positions, of which only that is looked at."""

  def model(positions, encoder):
    made = types.SimpleNamespace
    config = made(max_positions=positions, encoder=encoder, vocab_size=5)
    return made(model=made(config=config), other=None)

  found = {'target': model(target, encoder)}
  return found | ({'draft lm': model(draft, None)} if draft else {})


def settings(new, **fields):
  x = tiny.experiment(pathlib.Path(), max_new_tokens=new, **fields)
  drafters = {n: plan_drafter(n, c) for n, c in x.candidates.items()}
  return freeze(x, drafters)


@pytest.mark.parametrize(
  ('models', 'who'),
  [(described(20, 30), 'target'), (described(30, 20), 'draft lm')],
)
def test_windows_and_new_tokens(models, who):
  windows = Prompts(length=15)
  assert load.room(settings(5, prompts=windows), models) == 15
  assert load.room(settings(4, prompts=windows), models) == 16
  message = r'prompts\.length \+ max_new_tokens is 21, but the ' + who
  with pytest.raises(ValueError, match=f'{message} has 20 positions'):
    load.room(settings(6, prompts=windows), models)


@pytest.mark.parametrize(
  'fields', [{'prompt': 'a'}, {'prompts': Prompts(path='a.jsonl')}]
)
def test_other_prompts_have_at_least_one_token(fields):
  assert load.room(settings(19, **fields), described()) == 1
  with pytest.raises(ValueError, match='is 21, but the target has 20'):
    load.room(settings(20, **fields), described())


def test_the_room_of_an_encoder():
  """It is not that of the text; a draft without one reads no prompt."""
  models = described(20, 18, Encoder(1, start=2))
  assert load.room(settings(17, prompts=Prompts(length=20)), models) == 20
  with pytest.raises(ValueError, match=r'max_new_tokens \+ 1 is 19, but the d'):
    load.room(settings(18, prompts=Prompts(length=20)), models)
  with pytest.raises(ValueError, match='is 21, but an encoder has 20 pos'):
    load.room(settings(2, prompts=Prompts(length=21)), models)


class Letters:
  """A tokenizer whose tokens are letters."""

  def encode(self, text, **options):
    del options  # Unused.
    return [1] * len(text)


@pytest.mark.parametrize('encoder', [None, Encoder(1, start=2)])
def test_a_prompt_of_the_command_line(encoder):
  left = 20 if encoder else 15
  models = described(encoder=encoder)
  for count in (1, left):
    x = settings(5, prompt='a' * count)
    found = load.read_prompts(x, Letters(), models)
    assert found['prompt'].texts == [[1] * count]
  whose = 'an encoder has 20' if encoder else 'max_new_tokens leaves 15'
  with pytest.raises(ValueError, match=f'{left + 1} tokens; .* {whose} of the'):
    load.read_prompts(settings(5, prompt='a' * (left + 1)), Letters(), models)


@pytest.mark.parametrize(
  ('text', 'limit', 'kept', 'cut'),
  [
    ('abcdef', 8, 6, False),  # with what is around it eight letters
    ('abcdef', 9, 6, False),
    ('abcdefghijklm', 8, 6, True),
    ('abcdef', 7, 5, True),
    ('abcdef', 3, 1, True),
    ('a', 3, 1, False),
  ],
)
def test_a_text_is_cut_to_what_fits(text, limit, kept, cut):
  item = forms.Item('some', '<', text, '>')
  assert _fit(item, limit) == ((f'<{text[:kept]}>',), cut)
  # No text at all is no prompt.
  assert _fit(item, 2) is None


def _fit(item, limit, room=99, answer=0):
  def letters(says, answers):
    return [letter for text in (*says, *answers) for letter in text]

  return prompts._fit(letters, item, limit, room, answer)


def test_a_text_leaves_room_for_answers_and_what_is_said_later():
  talk = forms.Item('some', '', 'abcd', '', ('ef', 'g'))
  # The third prompt has the seven letters and two answers of three.
  assert _fit(talk, 4, 13, 3) == (('abcd', 'ef', 'g'), False)
  assert _fit(talk, 4, 12, 3) == (('abc', 'ef', 'g'), True)
  assert _fit(talk, 3, 13, 3) == (('abc', 'ef', 'g'), True)
  assert _fit(talk, 4, 10, 3) == (('a', 'ef', 'g'), True)
  assert _fit(talk, 4, 9, 3) is None


def test_the_smaller_of_two_limits_cuts(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"a": "' + 'x' * 50 + '"}\n')
  for length, room, kept in (
    *((None, 12, 12), (11, 12, 11), (12, 12, 12)),
    *((13, 12, 12), (50, 60, 50), (None, 50, 50)),
  ):
    x = Prompts(path=str(path), field='a', length=length)
    found = prompts.collect(x, Letters(), room, 0)['a']
    assert [len(text) for text in found.texts] == [kept]
    assert found.cut == (kept < 50)
