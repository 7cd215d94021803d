"""The thread that owns the pool: what it tells, when, and how it ends."""

import dataclasses
import functools
import threading
import time
import types

import pytest

import specjax
from specjax import verify
from specjax.drafters import lm
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import table
from specjax.programs import serve
from specjax.requests import pool, request_sampling
from specjax.serving import service, worker
from specjax.serving.requests import Asked, Refused
from specjax.serving.worker import Counters
from specjax.types import Params, Spec, Target
from tests.support import models, serving, tiny

MODEL = table.build(models.VOCAB)
SPEC = Spec(MODEL, lm.make(MODEL, 2), verify.token, ())
VALUES = request_sampling.of(SPEC).values(1.0)


class Digits:
  """A tokenizer of one character a token."""

  def decode(self, tokens):
    return ''.join(str(token % 10) for token in tokens)


@functools.cache
def params():
  return Params(models.weights(MODEL, 1), models.near(MODEL, 1))


class Told:
  """A text, and what was told of it with the number of the turn."""

  def __init__(self, made, number=0, **options):
    given = {'new_tokens': 20, 'stop': (), 'streams': False} | options
    request = pool.Request(
      [1, 2], given['new_tokens'], generate.row_keys(number, [0]), VALUES
    )
    self.pieces, self.turns, self.ended = [], [], threading.Event()

    def tell(piece):
      self.pieces.append(piece)
      self.turns.append(made.turns)
      if piece.finish or piece.error:
        self.ended.set()

    target = Target(MODEL, tokenizer=Digits())
    asked = Asked(False, [], {}, stop=given['stop'], stream=given['streams'])
    self.text = worker.Text(request, tell, target, asked, time.monotonic())

  @property
  def shown(self):
    return ''.join(piece.text for piece in self.pieces)


@pytest.fixture
def made():
  """A worker whose turns the test takes, with two rows."""
  held = pool.Pool(params(), spec=SPEC, values=VALUES, rows=2, slots=128)
  return worker.Worker([held], Counters('tiny', 2), steps=3)


def submit(made, texts):
  made.submit(texts, made.pools[0])


def turn(made, count=1):
  for _ in range(count):
    made._obey()
    made._turn()


def test_turns_are_of_one_step_while_somebody_reads_along(made):
  """Whoever waits is served by the pool: a turn ends where a row has."""
  seen, steps = [], made.pools[0].turn

  def record(count):
    seen.append(count)
    return steps(count)

  made.pools[0].turn = record
  quiet, reads, waits = (
    Told(made, n, new_tokens=30, streams=n == 1) for n in range(3)
  )
  submit(made, [quiet.text])
  turn(made, 2)
  submit(made, [reads.text])
  turn(made)
  submit(made, [waits.text])
  turn(made)
  page = made._counters.page()[0].decode().splitlines()
  for name, number in (('running', 2.0), ('waiting', 1.0)):
    assert f'vllm:num_requests_{name}{{model_name="tiny"}} {number}' in page
  made.cancel([reads.text])
  turn(made)
  assert seen == [3, 3, 1, 1, 3]
  made.cancel([quiet.text, waits.text])
  turn(made)
  assert made.idle


def test_a_stop_string_frees_the_row_at_once(made):
  whole = Told(made, 5)
  submit(made, [whole.text])
  while not made.idle:
    turn(made)
  stop = whole.shown[6:8]
  found = Told(made, 5, stop=(stop,), new_tokens=90, streams=True)
  submit(made, [found.text])
  while not found.ended.is_set():
    turn(made)
  assert made.idle
  place = whole.shown.index(stop)
  assert found.shown == whole.shown[:place]
  assert found.pieces[-1].finish == 'stop'
  # Those of the stop string count, and none that was decoded behind it.
  assert sum(piece.tokens for piece in found.pieces) == place + len(stop)


def test_whatever_goes_on_ends_with_an_error_when_it_is_closed(made):
  one, other, late = (Told(made, n, new_tokens=100) for n in range(3))
  made.start()
  submit(made, [one.text])
  made.abort()
  assert one.ended.wait(10)
  submit(made, [other.text])
  made.close()
  submit(made, [late.text])
  for told in (one, other, late):
    assert told.ended.is_set()
    assert told.pieces[-1].error.status == 503
  assert made.idle
  assert made.failure is None


def test_the_thread_sleeps_while_there_is_nothing_to_do(made):
  thread = threading.Thread(target=made._take, daemon=True)
  thread.start()
  thread.join(0.2)
  assert thread.is_alive()
  made.abort()
  thread.join(10)
  assert not thread.is_alive()


def test_a_bug_ends_all_texts_and_is_kept(made):
  broken, failed = ZeroDivisionError('a bug'), threading.Event()

  def turn(steps):
    raise broken

  made.failed, made.pools[0].turn = failed.set, turn
  one = Told(made)
  made.start()
  submit(made, [one.text])
  assert failed.wait(10)
  made.close()
  assert made.failure is broken
  assert [piece.error.status for piece in one.pieces] == [503]


def test_numbers_that_are_none_are_an_error(made):
  one = Told(made)
  submit(made, [one.text])
  turns = made.pools[0].turn
  made.pools[0].turn = lambda steps: [
    x._replace(finite=False, done=True) for x in turns(steps)
  ]
  turn(made)
  assert 'NaN or infinite logits' in str(one.pieces[0].error)
  assert made.idle


def test_every_number_of_the_page_has_a_name_of_its_own():
  page, _ = Counters('tiny', 2).page()
  names = [line.rpartition(b' ')[0] for line in page.splitlines()]
  assert len({*names}) == len(names)


# The program


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('rows', 0), ('queue', -1), ('length', 1), ('port', 65536),
    ('prediction_gamma', 96), ('prediction_tokens', 2**20 + 1),
    ('draft_lengths', (0,)), ('host', ' '),
    ('allowed_origins', ('localhost:3000',)),
    ('allowed_origins', ('http://localhost:3000/',)), ('grace', -1.0),
    ('stages', ('foo',)), ('constraint', (0, 64)), ('logprobs', 21),
    ('key', 'NO_SUCH_NAME'),
  ],
)  # fmt: skip
def test_settings_are_checked_before_anything_is_read(field, value):
  with pytest.raises(UserError, match=f'^{field}') as error:
    serve.check(serving.settings(None, **{field: value}))
  assert 'NO_SUCH_NAME' not in str(error.value)  # It may be the key itself.


def test_a_key_is_read_from_its_variable(monkeypatch):
  monkeypatch.setenv('MY_KEY', 'secret')
  assert serve.check(serving.settings(None, key='MY_KEY')) == 'secret'
  assert serve.check(serving.settings(None)) == ''
  monkeypatch.setattr(serve, '_NEEDED', ('starlette', 'no_such_thing'))
  with pytest.raises(UserError, match='needs no_such_thing'):
    serve.check(serving.settings(None))


@pytest.mark.parametrize('most', [48, 128])
def test_a_length_beyond_the_positions_is_refused_and_the_default_is_not(
  most, tmp_path
):
  tiny.write_pair(tmp_path, max_positions=most)
  x, pair = serving.load(tmp_path)
  x.length = most + 1
  with pytest.raises(UserError, match=rf'^length .* at most {most},'):
    service.open_pools(x, pair, 'tiny')
  for given in (most, None):
    x.length = given
    assert service.open_pools(x, pair, 'tiny').limits.length == most


@pytest.mark.parametrize(
  ('length', 'slots'),
  [
    (123, [128, 128, 128]),
    (124, [128, 256, 128]),
    (125, [128, 256, 128]),
    (126, [256, 256, 128]),
    (127, [256, 256, 128]),
    (128, [256, 256, 256]),
  ],
)
def test_slots_hold_a_whole_text_and_a_step(folder, length, slots):
  """Drafts of 2 and 4 tokens and of none, and the token behind them."""
  x, pair = serving.load(folder, length=length)
  opened = service.open_pools(x, pair, 'tiny')
  assert [held.slots for held in opened.pools] == slots


def test_a_model_that_owns_its_cache_has_slots_for_every_node(folder):
  x, pair = serving.load(folder, predictions=0, plain=False)
  rules = pair.planned.rules
  rules |= dict.fromkeys(rules, verify.recursive)
  own = pair.target.model._replace(empty=lambda *_: None)
  pair.target = dataclasses.replace(pair.target, model=own)
  make = pair.drafter.make
  pair.drafter = dataclasses.replace(
    pair.drafter, model=own, make=lambda depth: make(depth)._replace(nodes=9)
  )
  for x.length, slots in ((118, 128), (119, 256)):
    assert service.open_pools(x, pair, 'tiny').held.slots == slots


def test_a_request_may_take_the_whole_length_and_no_more_than_it(folder):
  x, pair = serving.load(folder, length=125, stages=('min_new_tokens',))
  made = service.Service(service.open_pools(x, pair, 'tiny'))
  values = {'temperature': 1.0, 'min_new_tokens': 25}
  whole = Asked(False, [[1] * 100], values, new_tokens=25)
  for asked in (whole, whole._replace(plain=True)):
    (request,) = made._prepare(asked, None, 0)
    assert len(request.prompt) + request.new_tokens == 125
  for new in (24, 26):
    with pytest.raises(Refused) as error:
      made._prepare(whole._replace(new_tokens=new), None, 0)
    assert error.value.param == 'max_tokens'
  made.close()


@pytest.mark.parametrize('chat', [False, True])
@pytest.mark.parametrize('stages', [(), ('constraint',)])
@pytest.mark.parametrize('plain', [False, True])
def test_clients_are_told_what_is_taken(chat, stages, plain):
  limits = types.SimpleNamespace(plain=plain, stages=stages, rows=3)
  pair = types.SimpleNamespace(form=types.SimpleNamespace(chat=chat))
  opened = types.SimpleNamespace(pair=pair)
  made = types.SimpleNamespace(limits=limits, _opened=opened)
  assert service.Service.described.fget(made) == {
    'chat': chat, 'plain': plain, 'json_schema': bool(stages), 'rows': 3
  }  # fmt: skip


@pytest.mark.parametrize(
  ('stages', 'eos', 'takes'),
  [
    (('constraint',), (2,), [0, 0, 1]),
    (('constraint',), (), None),
    ((), (2,), None),
  ],
)
def test_constraints_are_compiled_where_they_are_taken(stages, eos, takes):
  prepared = []
  made = types.SimpleNamespace(
    _opened=types.SimpleNamespace(
      pools=(), held=types.SimpleNamespace(spec=types.SimpleNamespace(eos=eos))
    ),
    limits=types.SimpleNamespace(stages=stages, vocab_size=3),
    worker=types.SimpleNamespace(start=lambda: prepared.append('started')),
    _prepare=lambda asked, constraint, seed: prepared.append(constraint),
  )
  service.Service.start(made)
  free, started = prepared
  assert (free and free.classes.tolist()) == takes
  assert started == 'started'


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_draft_lengths_are_chosen_by_load(tmp_path):
  tiny.write_pair(tmp_path)
  x, pair = serving.load(tmp_path, draft_lengths=(0, 3), predictions=0)
  opened = service.open_pools(x, pair, 'tiny')
  held = opened.held
  held.warm_up()
  asked = ([5, 6, 7], [8, 9], [1, 2, 3, 4])
  for prompt in asked:
    values = opened.kinds.values(0.0, **opened.defaults)
    key = generate.row_keys(0, [0])
    held.submit(pool.Request(prompt, 20, key, values))
  texts = models.texts_of(held)
  plain = specjax.decode(pair.target, None, asked, new_tokens=20)
  assert [texts[n] for n in range(3)] == plain.tokens
