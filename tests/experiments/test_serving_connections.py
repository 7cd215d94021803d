"""Who sends half a request or never reads, and what is left at the end."""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import time
import types

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specjax.errors import UserError
from specjax.serving import app as serving_app
from specjax.serving.requests import Limits, Refused
from specjax.serving.service import Service
from specjax.serving.worker import Counters
from tests.support import processes

PATIENCE = 0.4
HALF = (
  b'',
  b'POST / HTTP/1.1\r\nHost: a\r\n',
  b'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc',
)
WHOLE = b'GET / HTTP/1.1\r\nHost: a\r\n\r\n'


class Answers:
  """An application that answers at once, or at /endless without an end."""

  def __init__(self):
    self.begun, self.left = threading.Event(), threading.Event()
    self.app = Starlette(
      routes=[
        Route('/', self._answer, methods=['POST', 'GET']),
        Route('/endless', self._endless),
      ]
    )

  async def _answer(self, request):
    await request.body()
    self.begun.set()
    return Response(b'whole')

  async def _endless(self, request):
    del request  # Unused.
    self.begun.set()
    return StreamingResponse(self._parts())

  async def _parts(self):
    try:
      while True:
        yield b'x' * 2**16
        await asyncio.sleep(0)
    finally:
      self.left.set()


@contextlib.contextmanager
def listens(app, patience=PATIENCE):
  aborted = threading.Event()
  service = types.SimpleNamespace(draining=False, abort=aborted.set)
  made, ready = serving_app.listen('127.0.0.1', 0), threading.Event()
  server = serving_app.server(app.app, service, 0.0, ready.set, patience)
  thread = threading.Thread(target=server.run, args=([made],))
  thread.start()
  assert ready.wait(30)
  try:
    yield made.getsockname()
  finally:
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
  assert service.draining
  assert aborted.is_set()


@pytest.mark.parametrize('half', HALF)
def test_a_request_that_does_not_come_is_dropped(half):
  app = Answers()
  with listens(app) as where, socket.create_connection(where) as one:
    one.sendall(half)
    one.settimeout(20)
    begin = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
      assert one.recv(1) == b''
    assert time.monotonic() - begin >= PATIENCE / 2
    assert not app.begun.is_set()


def test_who_sends_slowly_but_in_time_is_answered():
  with (
    listens(Answers(), 10.0) as where,
    socket.create_connection(where) as one,
  ):
    for byte in WHOLE:
      one.sendall(bytes([byte]))
    one.settimeout(20)
    assert one.recv(12) == b'HTTP/1.1 200'


def test_who_never_reads_is_dropped():
  app = Answers()
  with listens(app) as where, socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(where)
    one.sendall(WHOLE.replace(b' / ', b' /endless '))
    assert app.begun.wait(20)
    assert app.left.wait(20)


def test_who_reads_is_not_dropped():
  app = Answers()
  with listens(app) as where, socket.create_connection(where) as one:
    one.sendall(WHOLE.replace(b' / ', b' /endless '))
    end, count = time.monotonic() + 3 * PATIENCE, 0
    while time.monotonic() < end:
      count += len(one.recv(2**20))
      assert not app.left.is_set()
    assert count > 2**20


GIVEN = (
  ({}, False),
  ({'Authorization': 'a key'}, False),
  ({'Authorization': 'Basic a key'}, False),
  ({'Authorization': 'Bearer another'}, False),
  ({'Authorization': 'Bearer a key'}, True),
  ({'Authorization': 'bearer  a key'}, True),
)
STATUS = {  # with the key, and without it
  '/': (200, 200),
  '/v1/chat/completions': (400, 401),
  '/v1/completions': (400, 401),
  '/v1/responses': (404, 404),
  '/v1/models': (200, 401),
  '/v1/models/{name:path}': (200, 401),
  '/health': (200, 200),
  '/metrics': (200, 200),
}


def stand_in(**changes):
  """A service that answers nothing."""
  given = {'limits': Limits('tiny', 9, 9, False, 1, 1, 1, ()), 'described': {}}
  given |= {'check': lambda: None, 'counters': Counters('tiny', 2)}
  return types.SimpleNamespace(**given | changes)


@pytest.mark.parametrize(('headers', 'known'), GIVEN)
def test_all_that_is_of_the_model_needs_the_key(headers, known):
  made = serving_app.make(stand_in(), 'a key')
  client, found = TestClient(made, headers=headers), {}
  for route in made.routes:
    method = 'POST' if 'POST' in route.methods else 'GET'
    path = route.path.replace('{name:path}', 'tiny')
    found[route.path] = client.request(method, path).status_code
  assert found == {path: status[not known] for path, status in STATUS.items()}


def test_whoever_asks_for_what_there_is_not_is_told_so():
  closed = []
  service = stand_in(close=lambda: closed.append(True))
  with TestClient(serving_app.make(service)) as client:
    paths = {'models': 200, 'models/other': 404, 'nothing': 404}
    paths |= dict.fromkeys(
      ['completions', 'chat/completions', 'responses'], 405
    )
    for path, status in paths.items():
      assert client.get(f'/v1/{path}').status_code == status
    assert client.post('/v1/models').status_code == 405
    assert 'POST /v1/nothing' in client.post('/v1/nothing').text
    for path, content, param in (
      *(('', b'{}', 'prompt'), ('chat/', b'{}', 'messages')),
      ('', b'{"prompt": "\xff"}', None),
    ):
      sent = client.post(f'/v1/{path}completions', content=content)
      assert (sent.status_code, sent.json()['error']['param']) == (400, param)
    for size, status in ((2**20, 400), (2**20 + 1, 413)):
      sent = client.post('/v1/completions', content=b' ' * size)
      assert sent.status_code == status
    assert 'more than 1048576 bytes' in sent.json()['error']['message']
    shown = client.get('/metrics')
    assert shown.headers['Content-Type'].startswith('text/plain')
    name = 'specjax:request_refused_total{model_name="tiny",status="405"} 4.0'
    assert name in shown.text.splitlines()
  assert closed == [True]


@pytest.mark.parametrize(
  ('status', 'names'),
  [(400, []), (413, ['Connection']), (429, ['Retry-After'])],
)
def test_refusals_have_the_headers_of_their_status(status, names):
  def check():
    raise Refused('no', status=status)

  sent = TestClient(serving_app.make(stand_in(check=check))).get('/health')
  assert sent.status_code == status
  assert [
    x for x in ('Connection', 'Retry-After') if x in sent.headers
  ] == names


def test_nobody_on_the_way_keeps_a_stream():
  made = serving_app._Stream(None, iter(()))
  assert made.headers['Content-Type'].startswith('text/event-stream')
  assert made.headers['Cache-Control'] == 'no-cache'
  assert made.headers['X-Accel-Buffering'] == 'no'


PROGRAM = '''
import pathlib, threading, time
from specjax.constraints import bytewise

told = pathlib.Path({path!r})
bytewise._PROGRAM = """
import os, time
open({path!r}, 'w').write(str(os.getpid()))
time.sleep(60)
"""
run = lambda: bytewise.build('it', 'a')
threading.Thread(target=run, daemon=True).start()
while not (told.exists() and told.read_text()):
  time.sleep(0.05)
'''


@pytest.mark.skipif(sys.platform == 'win32', reason='processes of Unix')
def test_compiling_ends_with_the_program(tmp_path):
  path = tmp_path / 'child'
  process = processes.start('-c', PROGRAM.format(path=str(path)))
  assert process.wait(60) == 0
  process.communicate()
  child, deadline = int(path.read_text()), time.monotonic() + 10
  while time.monotonic() < deadline:
    try:
      os.kill(child, 0)
    except ProcessLookupError:
      return
    time.sleep(0.05)
  pytest.fail('the compiler is still there')


def test_signals_do_nothing_inside_and_the_same_as_before_behind():
  kinds = signal.SIGINT, signal.SIGTERM
  before = [signal.getsignal(kind) for kind in kinds]
  one, other = socket.socketpair()
  other.setblocking(False)
  signal.set_wakeup_fd(other.fileno())
  with one, other, serving_app.quiet_signals():
    assert signal.set_wakeup_fd(-1) == -1
    for kind in kinds:
      signal.raise_signal(kind)
  assert [signal.getsignal(kind) for kind in kinds] == before


def test_work_for_a_client_that_left_is_cancelled():
  async def receive():
    return {'type': 'http.disconnect'}

  async def ask():
    request = types.SimpleNamespace(receive=receive)
    work = asyncio.create_task(asyncio.Event().wait())

    async def wait():
      await work

    assert await serving_app._unless_gone(request, wait()) is None
    await asyncio.wait([work], timeout=1)
    assert work.cancelled()
    # Nor does anybody wait for one whose answer is there.
    work, request.receive = asyncio.create_task(asyncio.Event().wait()), wait
    found = await serving_app._unless_gone(request, asyncio.sleep(0, 'it'))
    await asyncio.wait([work], timeout=1)
    assert (found, work.cancelled()) == ('it', True)

  asyncio.run(ask())


@pytest.mark.parametrize(
  ('failure', 'draining', 'status'),
  [(None, False, 200), (None, True, 503), (ZeroDivisionError(), False, 503)],
)
def test_a_service_that_takes_no_requests_is_not_healthy(
  failure, draining, status
):
  worker = types.SimpleNamespace(failure=failure)
  service = stand_in(draining=draining, worker=worker)
  service.check = functools.partial(Service.check, service)
  client = TestClient(serving_app.make(service))
  assert client.get('/health').status_code == status
  sent = client.post('/v1/completions', content=b'{')
  assert sent.status_code == (400 if status == 200 else 503)


@pytest.mark.parametrize(
  ('host', 'shown'), [('127.0.0.1', '127.0.0.1'), ('::1', '[::1]')]
)
def test_the_address_of_a_host(host, shown):
  if ':' in host:
    try:
      socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
      pytest.skip('this machine has no IPv6')
  with serving_app.listen(host, 0) as made:
    port = made.getsockname()[1]
    assert serving_app.address(made) == f'http://{shown}:{port}/v1'
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    socket.create_connection((host, port), 9).close()
    with pytest.raises(UserError) as error:
      serving_app.listen(host, port)
    assert error.traceback[-1].frame.f_locals['made'].fileno() == -1


@pytest.mark.parametrize('grace', [0.0, 8.0])
def test_errors_have_time_to_be_sent_behind_the_last_answer(grace):
  made = serving_app.server(Starlette(), Answers(), grace, lambda: None, 60.0)
  assert made.config.timeout_graceful_shutdown == grace + 2
  assert (made.config.log_level, made.config.access_log) == ('warning', False)
