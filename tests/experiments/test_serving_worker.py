"""The thread that owns the pool: what it tells, when, and how it ends."""

import asyncio
import dataclasses
import threading
import time
import types

import numpy as np
import pytest

import specjax
from specjax import verify
from specjax.bench.config import SamplingValues
from specjax.drafters import lm
from specjax.errors import UserError
from specjax.loop import generate
from specjax.loop.token_records import Logprob, Recording
from specjax.models import table
from specjax.programs import serve
from specjax.requests import pool, request_sampling
from specjax.sampling import predictions
from specjax.serving import config, service, worker
from specjax.serving.requests import Asked, Limits, Refused
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


class Told:
  """A text, and what was told of it with the number of the turn."""

  def __init__(self, number=0, **options):
    given = {'new_tokens': 20, 'stop': (), 'streams': False} | options
    request = pool.Request(
      [1, 2], given['new_tokens'], generate.row_keys(number, [0]), VALUES
    )
    self.pieces, self.ended = [], threading.Event()

    def tell(piece):
      self.pieces.append(piece)
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
  params = Params(models.weights(MODEL, 1), models.near(MODEL, 1))
  held = pool.Pool(params, spec=SPEC, values=VALUES, rows=2, slots=128)
  return worker.Worker([held], Counters('tiny', 2), steps=3)


def submit(made, texts):
  made.submit(texts, made.pools[0])


def numbers(counters):
  """The numbers of the page, by the names that they have there."""
  lines = counters.page()[0].decode().splitlines()
  lines = [x.rpartition(' ') for x in lines if not x.startswith('#')]
  return {name: float(x) for name, _, x in lines if '_created' not in name}


def ended(made):
  """How many texts ended for each reason."""
  found = numbers(made._counters)
  name = 'vllm:request_success_total{finished_reason="%s",model_name="tiny"}'
  return [found[name % reason] for reason in ('stop', 'length', 'error')]


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
    Told(n, new_tokens=30, streams=n == 1) for n in range(3)
  )
  assert made.idle
  submit(made, [quiet.text])
  assert not made.idle
  assert not made.pools[0].waiting  # Its thread alone may call it.
  turn(made, 2)
  submit(made, [reads.text])
  turn(made)
  submit(made, [waits.text])
  turn(made)
  page = numbers(made._counters)
  for name, number in (
    ('num_requests_running', 2), ('num_requests_waiting', 1),
    ('prompt_tokens_total', 6),
  ):  # fmt: skip
    assert page[f'vllm:{name}{{model_name="tiny"}}'] == number
  made.cancel([reads.text])
  turn(made)
  assert seen == [3, 3, 1, 1, 3]
  made.cancel([quiet.text, waits.text])
  turn(made)
  assert made.idle


def test_a_stop_string_frees_the_row_at_once(made):
  whole = Told(5)
  submit(made, [whole.text])
  while not made.idle:
    turn(made)
  stop = whole.shown[6:8]
  found = Told(5, stop=(stop,), new_tokens=90, streams=True)
  submit(made, [found.text])
  while not found.ended.is_set():
    turn(made)
  assert made.idle
  place = whole.shown.index(stop)
  assert found.shown == whole.shown[:place]
  assert found.pieces[-1].finish == 'stop'
  # Those of the stop string count, and none that was decoded behind it.
  assert sum(piece.tokens for piece in found.pieces) == place + len(stop)


def progress(*tokens, done=False):
  said = [Logprob(-0.5 * token, []) for token in tokens]
  origins = [f'of {token}' for token in tokens]
  return pool.Progress(0, [*tokens], origins, said, [], 'counts', done, True)


def piece(texts, *tokens, finish=''):
  """The piece of tokens, of which 9 ends a text."""
  one, counts = progress(*tokens), 'counts' if finish else None
  said = [x for x in zip(tokens, one.logprobs, strict=True) if x[0] != 9]
  told = tuple(said), tuple(zip(texts, one.origins, strict=True))
  return worker.Piece(''.join(texts), len(tokens), finish, counts, None, *told)


def test_a_piece_has_the_tokens_up_to_the_end_of_its_text():
  def begin(**options):
    asked = Asked(False, [], {}, logprobs=0, origins=True, **options)
    target = Target(MODEL, tokenizer=Digits(), eos=(9,))
    return worker.Text(None, None, target, asked, 0.0)

  text = begin(stream=True, stop=('34',))
  assert text.push(progress(1, 2, 3)) == piece(['1', '2', ''], 1, 2, 3)
  assert text.push(progress(4, 5)) == piece([''], 4, finish='stop')
  text = begin()
  assert text.push(progress(1, 2)) == worker.Piece()
  whole = piece(['1', '2', '3', ''], 1, 2, 3, 9, finish='stop')
  assert text.push(progress(3, 9, done=True)) == whole
  last = piece(['1'], 1, finish='length')
  assert begin().push(progress(1, done=True)) == last
  given = {}, {'stop': ('a',)}, {'stream': True}
  assert [begin(**x).watched for x in given] == [False, True, True]


@pytest.mark.parametrize('busy', ['live', 'waiting'])
def test_it_is_idle_where_no_pool_has_anything_to_do(busy):
  first, other = (types.SimpleNamespace(live=0, waiting=0) for _ in range(2))
  made = worker.Worker([first, other], Counters('tiny', 2), 1)
  assert made.idle
  setattr(first, busy, 1)
  assert not made.idle


def test_whatever_goes_on_ends_with_an_error_when_it_is_closed(made):
  one, other, late, last = (Told(n, new_tokens=100) for n in range(4))
  assert (made._thread.name, made._thread.daemon) == ('pool', True)
  made.start()
  submit(made, [one.text])
  made.abort()
  assert one.ended.wait(10)
  submit(made, [other.text])
  made.close()
  assert not made._thread.is_alive()
  submit(made, [late.text, last.text])
  for told in (one, other, late, last):
    assert told.ended.is_set()
    assert told.pieces[-1].error.status == 503
  assert made.idle
  assert made.failure is None
  assert ended(made) == [0, 0, 2]


def test_the_thread_sleeps_while_there_is_nothing_to_do(made):
  thread = threading.Thread(target=made._take, daemon=True)
  thread.start()
  thread.join(0.2)
  assert thread.is_alive()
  made.abort()
  thread.join(10)
  assert not thread.is_alive()


def test_a_bug_ends_all_texts_and_is_kept(made):
  broken = ZeroDivisionError('a bug')

  def turn(steps):
    raise broken

  one, late = Told(), Told()
  made.failed = lambda: submit(made, [late.text])
  made.pools[0].turn = turn
  made.start()
  submit(made, [one.text])
  assert late.ended.wait(10)
  made.close()
  assert made.failure is broken
  assert [x.error.status for x in one.pieces + late.pieces] == [503, 503]


def test_numbers_that_are_none_are_an_error(made):
  one, long = Told(), Told(new_tokens=999)
  submit(made, [long.text, one.text])
  turns = made.pools[0].turn
  made.pools[0].turn = lambda steps: [
    x._replace(finite=False, done=True) for x in turns(steps)
  ]
  turn(made)
  assert 'NaN or infinite logits' in str(one.pieces[0].error)
  statuses = [told.pieces[0].error.status for told in (one, long)]
  assert statuses == [500, 400]
  assert made.idle
  assert ended(made) == [0, 0, 1]


def test_every_number_is_shown_from_the_beginning():
  found = [*numbers(Counters('tiny', 2))]
  # Eight alone, three reasons of an end, two places, and two histograms.
  assert len(found) == 8 + 3 + 2 + 2 * 16
  ends = [
    x.split('"')[1] for x in found if x.startswith('vllm:e2e') and 'le=' in x
  ]
  assert [*map(float, ends)] == [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, np.inf
  ]  # fmt: skip


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
  least = {'queue': 0, 'predictions': 0, 'draft_lengths': (0, 1)}
  assert serve.check(serving.settings(None, **least)) == ''
  monkeypatch.setattr(serve, '_NEEDED', ('starlette', 'no_such_thing'))
  with pytest.raises(UserError, match='needs no_such_thing'):
    serve.check(serving.settings(None))


def test_a_service_by_default():
  made = {
    field.name: field.default for field in dataclasses.fields(config.Serving)
  }
  assert made.items() >= {
    'port': 8000, 'ignore_tools': False, 'rows': 4, 'queue': 64, 'logprobs': 5,
    'constraint': (1024, 256), 'predictions': 1, 'prediction_tokens': 1024,
    'prediction_gamma': 8, 'plain': True, 'body': 1048576, 'grace': 3.0,
  }.items()  # fmt: skip
  assert config.LENGTH == 2048


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
  pair.room = 20  # and 12 new ones
  assert service.open_pools(x, pair, 'tiny').limits.length == 32


def test_pools_are_those_of_the_settings(folder, monkeypatch):
  asked, prepare = [], service.api.prepare

  def record(target, drafter, prompts, request, **options):
    asked.append((len(prompts), request))
    return prepare(target, drafter, prompts, request, **options)

  monkeypatch.setattr(service.api, 'prepare', record)
  given = {'draft_lengths': (0, 3), 'sampling': SamplingValues(top_p=0.5)}
  x, pair = serving.load(folder, **given)
  made = service.open_pools(x, pair, 'tiny')
  ((rows, request),) = asked
  assert (rows, request.gamma, request.new_tokens) == (3, 3, 12)
  assert (request.slots, request.rule) == (128, pair.rule)
  stages = config.STAGES
  assert made.limits == Limits(
    'tiny', 2048, 96, False, 3, 12, 12, stages, 5, 64, True
  )
  assert made.defaults == {'top_p': 0.5}
  assert made.kinds.constraint == (64, 64)
  assert made.predicting.prediction == 64 + predictions.BEFORE
  assert made.held._policy.lengths == (0, 3)
  assert [held.rows for held in made.pools] == [3, 2, 3]
  assert [held.spec.drafter.depth for held in made.pools] == [3, 4, 0]
  for held in made.pools:
    assert held._recording == Recording(True, 5)
    assert (*held.reads,) == pool.read_sizes(held.slots)
    assert held.source_slots is None
  x, pair = serving.load(folder, length=5, predictions=0, plain=False)
  made = service.open_pools(x, pair, 'tiny')
  assert made.pools == (made.held,)
  assert made.limits[-3:] == (0, False, False)
  assert asked[1][1].new_tokens == 4


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
  x, pair = serving.load(folder, predictions=0)
  rules = pair.planned.rules
  rules |= dict.fromkeys(rules, verify.recursive)
  own = pair.target.model._replace(empty=lambda *_: None)
  pair.target = dataclasses.replace(pair.target, model=own)
  make = pair.drafter.make
  pair.drafter = dataclasses.replace(
    pair.drafter, model=own, make=lambda depth: make(depth)._replace(nodes=9)
  )
  for x.length, slots in ((118, 128), (119, 256)):
    made = service.open_pools(x, pair, 'tiny')
    assert made.held.slots == slots
    assert made.held.spec.rule is verify.recursive
    assert made.plain.spec.rule is verify.token


def test_a_request_may_take_the_whole_length_and_no_more_than_it(folder):
  x, pair = serving.load(folder, length=125, stages=('min_new_tokens',))
  made = service.Service(service.open_pools(x, pair, 'tiny'), 4)
  values = {'temperature': 1.0, 'min_new_tokens': 25}
  whole = Asked(False, [[1] * 100], values, new_tokens=25)
  for asked in (whole, whole._replace(plain=True)):
    (request,) = made._prepare(asked, None, 0)
    assert len(request.prompt) + request.new_tokens == 125
  for new in (24, 26):
    with pytest.raises(Refused) as error:
      made._prepare(whole._replace(new_tokens=new), None, 0)
    assert error.value.param == 'max_tokens'
  for size, new in ((100, 12), (120, 5)):  # where it does not say
    asked = Asked(False, [[1] * size], {'temperature': 1.0})
    (request,) = made._prepare(asked, None, 0)
    assert request.new_tokens == new
  made.close()


def test_requests_are_taken_while_there_is_room(folder):
  x, pair = serving.load(folder, length=125, stages=('min_new_tokens',))
  made = service.Service(service.open_pools(x, pair, 'tiny'), 4)
  asked = Asked(False, [[1] * 100, [2] * 3], {'temperature': 1.0}, n=2)

  async def wait(_):
    await asyncio.Event().wait()

  async def clients():
    runs = [await made.open(asked) for _ in range(3)]
    assert made.taken == 12
    with pytest.raises(Refused) as error:
      await made.open(asked._replace(n=1))
    assert error.value.status == 429
    for run in runs:
      run.close()
    # Nor does anybody wait for a schema when the service ends.
    made._schemas = types.SimpleNamespace(of=wait)
    asks = asked._replace(schema='{}')
    leaves, stays = (asyncio.create_task(made.open(asks)) for _ in range(2))
    await asyncio.sleep(0.01)
    leaves.cancel()
    await asyncio.wait([leaves])
    assert leaves.cancelled()
    assert (made.taken, len(made._compiling)) == (4, 1)
    made.draining = True
    made.abort()
    with pytest.raises(Refused, match='is stopping'):
      await stays
    assert made.taken == len(made._compiling) == 0

  asyncio.run(clients())
  turns = threading.Barrier(2, timeout=9)
  goes = made._thread.submit(lambda: (turns.wait(), turns.wait()))
  turns.wait()
  waits, made.draining = made._thread.submit(int), False
  made.close()
  assert (made.draining, goes.done(), waits.cancelled()) == (True, False, True)
  turns.wait()


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
    (('constraint', 'logit_bias'), (2,), ([0, 0, 1], [[0, 1], [-1, 1]])),
    (('constraint',), (), None),
    ((), (2,), None),
  ],
)
def test_constraints_are_compiled_where_they_are_taken(stages, eos, takes):
  prepared, spec = [], types.SimpleNamespace(eos=eos)
  held = types.SimpleNamespace(
    spec=spec, warm_up=lambda: prepared.append('warm')
  )
  made = types.SimpleNamespace(
    _opened=types.SimpleNamespace(pools=(held,), held=held),
    limits=types.SimpleNamespace(stages=stages, vocab_size=3),
    worker=types.SimpleNamespace(start=lambda: prepared.append('started')),
    _prepare=lambda *given: prepared.append(given),
  )
  service.Service.start(made)
  warm, (asked, free, _), started = prepared
  assert (free and (free.classes.tolist(), free.next.tolist())) == takes
  assert (warm, started) == ('warm', 'started')
  values = {'logit_bias': {0: 1.0}} if 'logit_bias' in stages else {}
  values['temperature'] = 1.0
  assert asked == Asked(False, [[0]], values, new_tokens=1)


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_draft_lengths_are_chosen_by_load(folder):
  x, pair = serving.load(folder, draft_lengths=(0, 3), predictions=0)
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
