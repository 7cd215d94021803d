"""Wherever a length is limited: the longest that fits does, one more does not.

Each limit is asked for itself, without a model.
"""

import dataclasses
import pathlib
import platform
import types

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import prompts, sampling, verify
from specjax.bench import load, memory, plan
from specjax.bench.config import Candidate, Mesh, Prompts
from specjax.bench.plan import freeze, plan_drafter
from specjax.checkpoints import CheckpointError, parameters
from specjax.checkpoints.families import conversion
from specjax.drafters import cascade, lm, ngram, plain
from specjax.errors import UserError
from specjax.loop import buffers, generate
from specjax.models import prefill, sharding, table, transformer
from specjax.models.config import Encoder, Experts
from specjax.models.own import Sizes
from specjax.models.sharding import Placement
from specjax.prompts import forms
from specjax.types import Spec
from tests.support import models, own_models, tiny

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
  message = (
    rf'prompts\.length \+ max_new_tokens is 21, but the {who} has 20 pos'
  )
  remedies = r'itions: choose max_new_tokens=5 or prompts\.length=14$'
  with pytest.raises(ValueError, match=message + remedies):
    load.room(settings(6, prompts=windows), models)


@pytest.mark.parametrize(
  'fields', [{'prompt': 'a'}, {'prompts': Prompts(path='a.jsonl')}]
)
def test_other_prompts_have_at_least_one_token(fields):
  assert load.room(settings(19, **fields), described()) == 1
  message = r'is 21, but the target has 20 .*: choose max_new_tokens=19$'
  with pytest.raises(ValueError, match=message):
    load.room(settings(20, **fields), described())


def test_a_draft_is_shorter_than_the_target():
  for gamma, positions in ((19, 20), (20, 21)):
    x = settings(2, candidates={'a': Candidate('ngram', gamma)})
    assert load.room(x, described(positions)) == positions - 2
    with pytest.raises(ValueError, match=f'drafter a is {gamma}, but the targ'):
      load.room(x, described(gamma))


def test_the_room_of_an_encoder():
  """It is not that of the text; a draft without one reads no prompt."""
  models = described(20, 18, Encoder(1, start=2))
  assert load.room(settings(17, prompts=Prompts(length=20)), models) == 20
  message = (
    r'max_new_tokens \+ 1 is 19, but the draft .*: choose max_new_tokens=17$'
  )
  with pytest.raises(ValueError, match=message):
    load.room(settings(18, prompts=Prompts(length=20)), models)
  message = r'is 21, but an encoder has 20 pos.*: choose prompts\.length=20$'
  with pytest.raises(ValueError, match=message):
    load.room(settings(2, prompts=Prompts(length=21)), models)
  models['draft lm'].model.config.encoder = Encoder(1)
  assert load.room(settings(17, prompts=Prompts(length=18)), models) == 18


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
  remedies = {19: ', or max_new_tokens=1', 20: ''} if not encoder else {21: ''}
  for count, remedy in remedies.items():
    with pytest.raises(ValueError, match=f'positions: shorten it{remedy}$'):
      load.read_prompts(settings(5, prompt='a' * count), Letters(), models)


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


# Memory: what an experiment is as wide as, and what would fit.


@pytest.mark.parametrize(
  ('longest', 'changes', 'backend', 'rows'),
  [
    # 20 prompts of a domain, in batches of one, of which two are side by side.
    (113, {'timed': True}, 'cpu', 20),
    (113, {'timed': False}, 'cpu', 1),
    (113, {'timed': False, 'batch': 4}, 'cpu', 4),
    (113, {'timed': True, 'mesh': Mesh(data=3)}, 'cpu', 21),
    (113, {'together': True}, 'cpu', 2 * 10),
    (114, {'together': True, 'timed': True}, 'gpu', 10),
  ],
)
def test_how_much_is_decoded_at_once(
  longest, changes, backend, rows, monkeypatch
):
  """Prompt, twelve new tokens, the longest draft and one more are 128."""
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  planned = dataclasses.replace(settings(12), **changes)
  (one, *_) = planned.drafters.values()
  drafters = {'a': one, 'b': dataclasses.replace(one, gammas=(1, 2))}
  planned = dataclasses.replace(planned, drafters=drafters)
  batch = -(-planned.batch // planned.mesh.data) * planned.mesh.data
  found = memory.widths_of(planned, SHORT.config, longest, 20)
  slots = 128 if longest == 113 else 256
  assert found == (batch, rows, slots, 128, 2)
  read = dataclasses.replace(SHORT.config, encoder=Encoder(1, start=2))
  found = memory.widths_of(planned, read, 129, 20)
  assert (found.slots, found.sources) == (128, 256)


@given(st.integers(-2, 9), st.integers(-2, 9), st.integers(-2, 9))
def test_the_largest_number_that_fits(least, most, limit):
  found = memory._largest(lambda n: n <= limit, least, most)
  wanted = [n for n in range(least, most + 1) if n <= limit]
  assert found == max(wanted, default=None)


def proposals(planned, fits, dtype='float32', count=10, heads=6):
  return [*memory._proposals(planned, dtype, heads, 20, count, fits)]


def test_the_least_changes_that_fit_are_proposed(monkeypatch):
  """Ten rows of 20 + 12 tokens take 320 bytes, in 16 bits the half."""

  def fits(p, count, tokens=20):
    rows = max(count * p.timed, p.batch)
    share = p.mesh.model * (1 + (p.dtype == 'bfloat16'))
    return rows * (tokens + p.max_new_tokens) <= limit * share

  planned = dataclasses.replace(settings(12), timed=True, batch=4, batches=(4,))
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  limit = 250
  assert proposals(planned, fits) == [
    *('prompts.count=7', 'batch=3 prompts.count=3', 'prompts.length=13'),
    *('max_new_tokens=5', 'dtype=bfloat16', 'mesh.model=2'),
  ]
  # No fewer prompts than a batch has; a CPU computes in nothing narrower.
  monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
  limit = 65
  assert proposals(planned, fits, count=4) == [
    *('batch=2 prompts.count=2', 'prompts.length=4', 'mesh.model=2'),
  ]
  # Each is less than there is now.
  limit = 1000
  assert proposals(planned, fits)[:4] == [
    *('prompts.count=9', 'batch=3 prompts.count=3', 'prompts.length=19'),
    'max_new_tokens=11',
  ]
  # No mesh has more than 64 devices.
  for heads, found in ((128, ['mesh.model=64']), (130, [])):
    wide = proposals(planned, lambda p, *_: p.mesh.model > 32, heads=heads)
    assert wide == found


@pytest.mark.parametrize(
  ('batches', 'named'), [((2, 4, 8), '(2,4,)'), ((6, 8), '(4,)')]
)
def test_what_is_proposed_divides_batches_and_heads(batches, named):
  """A proposal keeps the batch sizes that fit, or the largest below them."""
  planned = dataclasses.replace(
    settings(1), timed=False, batch=8, batches=batches, mesh=Mesh(2, 2)
  )

  def fits(p, count, tokens=20):
    split = p.mesh.split_draft or p.mesh.model > 3
    return p.batch == 8 if split else p.batch <= 5 and tokens == 20

  assert proposals(planned, fits, 'bfloat16') == [
    *(f'batches={named}', 'mesh.split_draft=True', 'mesh.model=6'),
  ]


def test_the_compiler_is_asked_where_widened_weights_may_not_fit(monkeypatch):
  """All weights may be there in float32 beside those of 16 bits."""
  load, asked = memory.Load(10**9, 0, 2 * 10**9), []

  def predict(*given, compiles=True):
    asked.append(compiles)
    return load

  monkeypatch.setattr(memory, 'predict', predict)
  described = {'target': types.SimpleNamespace(model=SHORT)}
  few = dataclasses.replace(settings(12), timed=False, mesh=Mesh(2, 3))
  # Eight times two rows of 128 slots, and of as many that an encoder reads.
  each = memory._width(SHORT.config, 'float32', 128) + 4 * 5
  most = 3 * load.total + 8 * 2 * (128 + 128) * each
  for limit, found in ((most - 1, [False, True]), (most, [False])):
    # Of a device, of which there are six.
    monkeypatch.setattr(memory, 'available', {6: limit}.__getitem__)
    memory.refuse(few, described, 20, 1)
    assert asked == found
    asked.clear()


@pytest.mark.parametrize('computing', [0, 50])
def test_what_is_too_much_names_what_fits(monkeypatch, computing):
  """A row takes ten bytes, a tenth of the bytes that computing takes."""

  def predict(changed, described, tokens, prompts, compiles=True):
    assert not compiles
    rows = memory.widths_of(changed, SHORT.config, tokens, prompts).rows
    return memory.Load(0, 10 * rows, 0)

  monkeypatch.setattr(memory, 'predict', predict)
  described = {'target': types.SimpleNamespace(model=SHORT, dtype='float32')}
  planned, load = settings(12), memory.Load(0, 100, 0, 0, computing or None)
  for limit, says in (
    *((load.total, ''), (None, ''), (load.total // 2, r'prompts\.count=5$')),
    *((load.total // 2 - 1, r'prompts\.count=4$'), (1, 'a smaller model')),
  ):
    monkeypatch.setattr(memory, 'available', {1: limit}.__getitem__)
    if not says:
      memory.check(planned, described, 20, 10, load)
      continue
    with pytest.raises(UserError, match=f'{limit}: choose {says}') as error:
      memory.check(planned, described, 20, 10, load)
    assert ('computing 50' in str(error.value)) == (computing > 0)


@pytest.mark.parametrize(
  ('widths', 'reading', 'reads', 'activations'),
  [
    # Five arrays of 12 rows and five tokens, the target and a draft in 32 bits.
    ((2, 6, 3), (0, 0), {}, 20 * 12 * 5 + 200 + 100),
    ((2, 6, 9), (0, 0), {}, 20 * 20 * 5 + 200 + 100),
    # Where texts are read there is no draft yet, and less of the cache.
    ((2, 6, 3), (9200, 0), {}, 9200 - 60 * 4 // 6 - 48),
    ((2, 6, 3), (0, 9200), {}, 9200 - 48),
    ((6, 6, 3), (9200, 0), {}, 9200 - 48),
    # What is 9,000 bytes was estimated as 600.
    ((2, 6, 3), (0, 9200), {50: 200}, 1200 * 15 + 24 - 48 + 100),
    ((2, 6, 3), (0, 9200), {30: 300}, 1800 * 15 + 36 - 48),
    ((2, 6, 3), (0, 100), {50: 9999}, 20 * 12 * 5 + 200 + 100),
  ],
)
def test_what_a_device_holds_by_hand(
  widths, reading, reads, activations, monkeypatch
):
  """A target, a draft x for which y drafts, and z with tokens of its own."""
  made, (batch, rows, nodes) = types.SimpleNamespace, widths
  reads, sizes, asked = {100: 100, 30: 1, 50: 1} | reads, iter(reading), []

  def model(parameters, cache, place, empty=None, other=None):
    config = made(vocab_size=5, encoder=None)
    slots = 256 if other else 128
    model = made(config=config, empty=empty, cache=cache, rest=(place, slots))
    return made(parameters=parameters, model=model, other=other, place=place)

  def drafter(name, remembered, *others):
    levels = [made(name=n) for n in (name, *others)]
    return made(levels=lambda: levels, remembered=lambda config: remembered)

  whole = made(for_draft='split')
  widths_of = memory.Widths(batch, rows, 128, 384, nodes)
  described = {
    'target': model(100, 60, whole), 'draft x': model(30, 18, 'split', len),
    'draft z': model(50, 24, 'split', other=made(tables='tables')),
  }  # fmt: skip
  dtypes = {n: 'bfloat16' for n in described} | {'draft x': 'float32'}
  planned = made(
    target='there', mesh=Mesh(), together=False, form='form',
    dtypes=lambda described: dtypes,
    drafters={'x': drafter('x', 2, 'y'), 'z': drafter('z', 0)},
  )  # fmt: skip

  def cache(model, place, rows_of, slots, sources, dtype):
    assert (model.rest, rows_of, sources) == ((place, slots), rows, 384)
    return model.cache

  def read(*given):
    asked.append(given)
    return next(sizes, 0)

  spelled = made(slots=lambda n: 2 * n)
  for where, name, value in (
    (jax, 'default_backend', lambda: 'cpu'),
    (jax, 'device_count', lambda: 1),
    (memory, 'of_process', lambda: 38),
    (memory.meshes, 'plan_placement', lambda mesh: whole),
    (memory, 'widths_of', lambda *_: widths_of),
    (memory, '_forms', lambda *_: {'a': ('one', 1), 'b': ('other', 2)}),
    (memory, '_copied', lambda forms: 7),
    (memory, 'held_by', lambda x, place, *_: x.parameters * (place == x.place)),
    (memory, 'of_cache', cache),
    (memory, '_of_file', lambda level, host: 13 * (host.path == 'there')),
    (memory, '_reading', read),
    (memory._Model, 'reads', lambda x, rows: rows * reads[x.parameters]),
    (memory.sampling_stages, 'bytes_of', lambda plan, n: 11 * (n == rows)),
    (memory.reading, 'sizes_of', lambda tables: spelled),
  ):
    monkeypatch.setattr(where, name, value)
  weights, most = 30 + 13 + 50, 2 * rows + 2 * 18
  load = memory.Load(100, 60 + 11, weights + most, 7 + weights, process=38)
  found = memory.predict(planned, described, 20, 10)
  assert found == dataclasses.replace(load, activations=activations)
  first = ('other', 2, batch, 128, 384)
  assert asked == [first, ('one', 1, rows, 128, 384)][: 1 + (rows > batch)]
  assert memory.predict(planned, described, 20, 10, compiles=False) == load
  planned.mesh = Mesh(model=2)
  for count, process in ((1, 38), (4, 19)):  # Devices share a host.
    monkeypatch.setattr(jax, 'local_device_count', lambda n=count: n)
    found = memory.predict(planned, described, 20, 10, compiles=False)
    assert found == dataclasses.replace(load, process=process)
  # Drafters that look on together remember all of it, and only a CPU widens.
  planned.together = True
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax, 'device_count', lambda: 2)
  found = memory.predict(planned, described, 20, 10)
  assert (found.drafts, found.process) == (load.drafts + 24, 0)
  step = 20 * max(2 * rows, batch * (nodes + 1)) * 5
  x, z = (rows * reads[n] - 2 * rows for n in (30, 50))
  assert found.activations == max(step, x - 24, z - 36)


def test_bytes_of_a_process_are_those_that_it_has():
  before = memory.of_process()
  taken = np.ones(1 << 27, np.uint8)
  assert 0.9 * taken.nbytes < memory.of_process() - before < 1.1 * taken.nbytes


@pytest.mark.skipif(
  platform.libc_ver()[0] != 'glibc', reason='only glibc keeps what is freed'
)
def test_freed_memory_is_given_back():
  """Pieces of which the last one stays are kept otherwise."""
  pieces = [np.ones(2000, np.uint8) for _ in range(1 << 16)]
  whole = memory.of_process()
  pieces = pieces[-1:]
  memory.give_back()
  assert whole - memory.of_process() > 1e8


def test_bytes_of_weights_by_hand(monkeypatch, tmp_path):
  """Floats of ours on a mesh by their sizes, others as they are described.

  Heads by their file.
  """
  made = types.SimpleNamespace
  size = sum(x.size for x in jax.tree.leaves(models.target_weights()))
  few, three = parameters.WeightForm('int8'), np.zeros(3, np.int8)
  for config, form, devices, held in (
    (models.TARGET.config, parameters.FLOATS, 2, 2 * size),
    (models.TARGET.config, parameters.FLOATS, 1, 3),
    (models.TARGET.config, few, 2, 3),
    (Sizes(11, 8, 2, 1, 4, 64), parameters.FLOATS, 2, 3),
  ):
    place = Placement(sharding.plan_mesh(devices, 1))
    one = made(model=made(config=config), shapes=lambda *_: three)
    assert memory.held_by(one, place, 'bfloat16', form) == held

  def describe(target):
    if target == 'damaged':
      raise CheckpointError
    return made(parameters=5)

  def read(path, of_head):
    return {'a': np.zeros((2, 3)), 'b': np.zeros(1 + of_head)}

  monkeypatch.setattr(memory, 'open_tensors', read)
  one = made(beside={'describe_head': describe}.get, path=str(tmp_path))
  assert memory._of_file(one, 'whole') == 4 * 5
  assert memory._of_file(one, 'damaged') == 4 * (2 * 3 + 2)
  one.path = 'nowhere'
  assert memory._of_file(one, 'damaged') == 0


def test_bytes_of_caches_by_hand():
  """Two layers of keys and values of four entries; three rows a device."""
  sizes, slot = (Placement(sharding.plan_mesh(2, 1)), 6, 128), 2 * 2 * 4
  found = memory.of_cache(models.TARGET, *sizes, 256, 'bfloat16')
  assert found == 3 * 128 * slot * 2
  # What an encoder reads has slots of its own, and a length in each layer.
  config = dataclasses.replace(models.TARGET.config, encoder=Encoder(1))
  found = memory.of_cache(models.TARGET._replace(config=config), *sizes, 256)
  assert found == 3 * ((128 + 256) * slot * 4 + 2 * 4)
  # A model of other code opens its own: 32 entries, and two numbers a row.
  own = own_models.adapted()._replace(init=lambda _: own_models.weights())
  found = memory.of_cache(own, *sizes, 0)
  assert found == 3 * (128 * 2 * 2 * 32 * 4 + 2 * 4)


def test_memory_of_a_device(monkeypatch):
  """Devices of a CPU share what there is, and what is unknown is no limit."""
  stats, device = {'bytes_limit': 7}, types.SimpleNamespace(platform='gpu')
  device.memory_stats = lambda: stats
  monkeypatch.setattr(jax, 'local_devices', lambda: [device])
  monkeypatch.setattr(jax, 'local_device_count', lambda: 4)
  monkeypatch.setattr(
    memory.os, 'sysconf', {'SC_PHYS_PAGES': 12, 'SC_PAGE_SIZE': 10}.__getitem__
  )
  assert memory.available(3) == 7
  stats = None
  assert memory.available(3) is None
  device.platform = 'cpu'
  assert [memory.available(n) for n in (1, 3, 4, 8)] == [120, 40, 30, 30]


@pytest.mark.parametrize(
  ('ways', 'target', 'drafts', 'split'),
  [
    (2, 29.0, [(4, 10)], True),
    (2, 30.0, [(4, 10)], False),
    (1, 29.0, [(4, 10)], False),
    (3, 29.0, [(4, 10)], False),
    (2, 29.0, [(4, 2), (2, 10)], True),
    (2, 29.0, [(4, 10), (3, 2)], False),
  ],
)
def test_a_draft_is_split_where_passes_read_more(ways, target, drafts, split):
  """Three passes of ten bytes."""
  assert memory.splits_draft(ways, 3, target, drafts) is split


def test_layouts_that_are_equal_are_held_once():
  def shapes(*sizes):
    return [jax.ShapeDtypeStruct(size, 'float16') for size in sizes]

  first = shapes((2, 3), (4,))
  forms = {'a': (None, first), 'b': (None, shapes((3, 2), (4,)))}
  assert memory._copied(forms) == 2 * 6
  assert memory._copied(forms | {'c': (None, shapes((6,), (2, 2)))}) == 2 * 16


@pytest.mark.parametrize(
  ('tokens', 'read'), [(0.25, 0.5), (1, 2), (2, 4), (3, 5), (9, 5)]
)
def test_a_step_reads_the_experts_of_its_tokens(tokens, read):
  """Two of five for each token; and the router in any case."""
  config = dataclasses.replace(models.TARGET.config, experts=Experts(5, 2, 16))
  model = transformer.build(config)
  params = jax.eval_shape(model.init, jax.random.key(0))
  each = 4 * config.num_layers * 3 * config.width * 16
  all_of_them, cache = memory.bytes_per_token(model, params, 9, 99)
  found = memory.bytes_per_token(model, params, 9, tokens)
  assert found == (all_of_them - int((5 - read) * each), cache)
  known = [read] * config.num_layers
  assert memory.bytes_per_token(model, params, 9, 99, known) == found


# New tokens, where nobody says how many.


@pytest.mark.parametrize(
  ('length', 'prompt', 'sizes', 'new'),
  [
    (16, '', [(48, 5, None)], 24),
    (None, '', [(128, 5, None)], 64),
    (113, '', [(128, 5, None)], 64),
    (100, 'a', [(128, 5, None)], 64),
    (16, '', [(2, 5, None), None], 1),
    (20, '', [(128, 5, None), (40, 5, None)], 20),
    # Two tokens of a draft for one of the target.
    (4, '', [(128, 5, None), (90, 6, None)], 22),
    # An encoder reads the prompt.
    (240, '', [(512, 5, None), (256, 5, 'encoder')], 128),
    (240, '', [(512, 5, None), (256, 5, None)], 16),
    (200, '', [None], 56),
  ],
)
def test_new_tokens_are_at_most_half(length, prompt, sizes, new, monkeypatch):
  """A model that cannot be described counts for nothing here."""
  made = types.SimpleNamespace
  names = 'max_positions', 'vocab_size', 'encoder'

  def describe(path, of=0):
    if (one := sizes[of or path]) is None:
      raise CheckpointError('damaged')
    config = made(**dict(zip(names, one, strict=True)))
    return made(model=made(config=config))

  monkeypatch.setattr(plan.checkpoints, 'describe', describe)
  drafters = [
    made(describe=describe, path='', options={'of': i})
    for i in range(1, len(sizes))
  ]
  drafters += [made(describe=None)]
  x = made(prompt=prompt, prompts=made(length=length))
  located = made(target=0, levels=lambda: drafters)
  assert plan._new_tokens(x, located) == new
