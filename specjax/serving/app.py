"""The addresses of a service, listening at a socket, and ending in time."""

import asyncio
import contextlib
import hmac
import pathlib
import signal
import socket
import time
import urllib.parse
import uuid
from collections.abc import (
  AsyncIterator,
  Callable,
  Coroutine,
  Iterator,
  Sequence,
)
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
  HTMLResponse,
  JSONResponse,
  Response,
  StreamingResponse,
)
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from specjax.errors import UserError
from specjax.serving import replies, requests
from specjax.serving.requests import Refused
from specjax.serving.service import Run, Service

_GONE = 499  # as nginx writes of a client that closed the connection
_LATER = 2.0  # seconds that errors may take to be sent
_PAGE = pathlib.Path(__file__).with_name('page.html')
_PAGE_MAY = (
  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
  "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class _Stream(StreamingResponse):
  """Server-sent events of a request, which is closed whatever happens."""

  def __init__(self, run: Run, events: AsyncIterator[bytes]):
    super().__init__(
      events,
      media_type='text/event-stream',
      headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'},
    )
    self._run = run

  async def __call__(self, scope, receive, send) -> None:
    try:
      await super().__call__(scope, receive, send)
    finally:
      self._run.close()


async def _body(request: Request, most: int) -> bytes:
  """The body of a request.

  Raises:
    Refused: it is too large.
  """
  parts, size = [], 0
  async for part in request.stream():
    size += len(part)
    if size > most:
      raise Refused(f'the body has more than {most} bytes', status=413)
    parts.append(part)
  return b''.join(parts)


async def _unless_gone(request: Request, work: Coroutine) -> Any:
  """The result of work; None if the client closes the connection before."""

  async def leave() -> None:
    while (await request.receive())['type'] != 'http.disconnect':
      pass

  made, gone = (asyncio.create_task(x) for x in (work, leave()))
  try:
    await asyncio.wait({made, gone}, return_when=asyncio.FIRST_COMPLETED)
    return await made if made.done() else None
  finally:
    made.cancel()
    gone.cancel()


async def _events(run: Run, answer: replies.Answer) -> AsyncIterator[bytes]:
  try:
    for part in answer.begin():
      yield part
    async for place, piece in run.pieces():
      answer.add(place, piece)
      for part in answer.part(place, piece):
        yield part
    for part in answer.end():
      yield part
  except Refused as error:
    yield replies.event(error.body)
    yield replies.DONE


async def _whole(
  request: Request, run: Run, answer: replies.Answer
) -> Response:
  async def collect():
    async for place, piece in run.pieces():
      answer.add(place, piece)
    return JSONResponse(answer.whole())

  try:
    return await _unless_gone(request, collect()) or Response(status_code=_GONE)
  finally:
    run.close()


def make(
  service: Service,
  key: str = '',
  body: int = 2**20,
  allowed: Sequence[str] = (),
) -> Starlette:
  """The application.

  Args:
    service: that answers; it is closed with the application.
    key: that clients have to give; empty: none.
    body: bytes that a request may have.
    allowed: origins of web pages that may ask, besides its own; *: all.
  """

  def check_key(request: Request) -> None:
    kind, _, given = request.headers.get('Authorization', '').partition(' ')
    known = hmac.compare_digest(given.strip().encode(), key.encode())
    if key and not (known and kind.lower() == 'bearer'):
      raise Refused(
        'the key is missing or wrong: give it as Authorization: Bearer KEY',
        status=401,
        code='invalid_api_key',
      )

  def check_origin(request: Request) -> None:
    """Refuses web pages of others, which a browser lets ask anybody."""
    origin = request.headers.get('Origin')
    own = request.headers.get('Host')
    if origin is None or '*' in allowed or origin in allowed:
      return
    if urllib.parse.urlsplit(origin).netloc != own:
      raise Refused(
        f'pages of {origin[:100]} may not ask: start the service with '
        'allowed_origins that has it',
        status=403,
      )

  def answers(chat: bool):
    async def endpoint(request: Request) -> Response:
      check_key(request)
      check_origin(request)
      service.check()
      sent = await _body(request, body)
      asked = requests.read(sent, chat, service.limits)
      run = await _unless_gone(request, service.open(asked))
      if run is None:
        return Response(status_code=_GONE)
      answer = replies.Answer(run, uuid.uuid4().hex, service)
      if run.asked.stream:
        return _Stream(run, _events(run, answer))
      return await _whole(request, run, answer)

    return endpoint

  began = int(time.time())
  described = {
    'id': service.limits.model,
    'object': 'model',
    'created': began,
    'owned_by': 'specjax',
    'max_model_len': service.limits.length,
    'specjax': service.described,
  }

  async def models(request: Request) -> Response:
    check_key(request)
    return JSONResponse({'object': 'list', 'data': [described]})

  async def model(request: Request) -> Response:
    check_key(request)
    if request.path_params['name'] != service.limits.model:
      raise Refused('there is no such model', 'model', 404, 'model_not_found')
    return JSONResponse(described)

  async def page(request: Request) -> Response:
    headers = {'Content-Security-Policy': _PAGE_MAY}
    return HTMLResponse(_PAGE.read_bytes(), headers=headers)

  async def health(request: Request) -> Response:
    service.check()
    return JSONResponse({'status': 'ok'})

  async def metrics(request: Request) -> Response:
    page, kind = service.counters.page()
    return Response(page, headers={'Content-Type': kind})

  async def responses(request: Request) -> Response:
    raise Refused(
      'the API of responses is not served: send messages to '
      '/v1/chat/completions, or a prompt to /v1/completions',
      status=404,
    )

  async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    service.counters.add('specjax:request_refused', 1, error.status)
    headers = {'Retry-After': '1'} if error.status == 429 else None
    # Whatever is left of a body that nobody read would be the next request.
    if error.status == 413:
      headers = {'Connection': 'close'}
    return JSONResponse(error.body, error.status, headers)

  async def refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    message = f'{method} {path[:100]}: {error.detail}'
    return await refuse(request, Refused(message, status=error.status_code))

  async def leave(request: Request, error: Exception) -> Response:
    del request, error  # Nobody listens any more.
    return Response(status_code=_GONE)

  @contextlib.asynccontextmanager
  async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await asyncio.to_thread(service.close)

  return Starlette(
    routes=[
      Route('/', page),
      Route('/v1/chat/completions', answers(True), methods=['POST']),
      Route('/v1/completions', answers(False), methods=['POST']),
      Route('/v1/responses', responses, methods=['POST']),
      Route('/v1/models', models),
      Route('/v1/models/{name:path}', model),
      Route('/health', health),
      Route('/metrics', metrics),
    ],
    exception_handlers={
      Refused: refuse,
      HTTPException: refuse_http,
      ClientDisconnect: leave,
    },
    lifespan=lifespan,
    middleware=[
      Middleware(
        CORSMiddleware,
        allow_origins=allowed,
        allow_methods=('GET', 'POST'),
        allow_headers=('*',),
      )
    ]
    if allowed
    else (),
  )


def listen(host: str, port: int) -> socket.socket:
  """A socket at an address: who connects waits until he is answered.

  Raises:
    UserError: it is in use, or is none of this machine.
  """
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  made = socket.socket(family)
  try:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    made.listen()  # Before, another one could be bound to it, too.
  except (OSError, OverflowError) as error:
    made.close()
    raise UserError(
      f'port {port} of host {host} cannot be opened '
      f'({getattr(error, "strerror", None) or error}): choose another one with '
      '--port, or 0 for any that is free'
    ) from error
  return made


def address(made: socket.socket) -> str:
  """Returns the address of the API at a socket."""
  host, port = made.getsockname()[:2]
  host = f'[{host}]' if ':' in host else host
  return f'http://{host}:{port}/v1'


class Server(uvicorn.Server):
  """A server that ends answers which take too long after a signal."""

  def __init__(
    self,
    config: uvicorn.Config,
    service: Service,
    grace: float,
    ready: Callable,
  ):
    super().__init__(config)
    self._service, self._grace, self._ready = service, grace, ready

  async def startup(self, sockets=None) -> None:
    await super().startup(sockets)
    if self.started:
      self._ready()

  async def shutdown(self, sockets=None) -> None:
    self._service.draining = True
    loop = asyncio.get_running_loop()
    loop.call_later(self._grace, self._service.abort)
    await super().shutdown(sockets)


class _Impatient(H11Protocol):
  """Drops clients that send half a request, or leave an answer unread."""

  patience: float
  _coming: asyncio.TimerHandle | None = None
  _unread: asyncio.TimerHandle | None = None

  def connection_made(self, transport) -> None:  # type: ignore[override]
    super().connection_made(transport)
    self._coming = self._drop_later()

  def data_received(self, data: bytes) -> None:
    super().data_received(data)
    whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
    if whole and self._coming is not None:
      self._coming.cancel()
      self._coming = None
    if not whole and self._coming is None:
      self._coming = self._drop_later()

  def pause_writing(self) -> None:
    super().pause_writing()
    self._unread = self._drop_later()

  def resume_writing(self) -> None:
    super().resume_writing()
    if self._unread is not None:
      self._unread.cancel()

  def connection_lost(self, exc: Exception | None) -> None:
    super().connection_lost(exc)
    for timer in (self._coming, self._unread):
      if timer is not None:
        timer.cancel()

  def _drop_later(self) -> asyncio.TimerHandle:
    return self.loop.call_later(self.patience, self.transport.abort)


def server(
  app: Starlette,
  service: Service,
  grace: float,
  ready: Callable[[], None],
  patience: float,
) -> Server:
  """The server of an application of `make`.

  Args:
    app: that answers.
    service: behind it.
    grace: seconds that answers may go on after the signal to end.
    ready: is called when requests are taken.
    patience: seconds that a request may take to come, and that an answer may
      lie unread.
  """
  impatient = type('Impatient', (_Impatient,), {'patience': patience})
  config = uvicorn.Config(
    app,
    log_level='warning',
    access_log=False,
    http=impatient,
    timeout_graceful_shutdown=int(grace + _LATER),
  )
  return Server(config, service, grace, ready)


@contextlib.contextmanager
def quiet_signals() -> Iterator[None]:
  """Signals that uvicorn ends with, and raises again, end nothing else."""
  before = {
    kind: signal.signal(kind, lambda *_: None)
    for kind in (signal.SIGINT, signal.SIGTERM)
  }
  signal.set_wakeup_fd(-1)
  try:
    yield
  finally:
    for kind, handler in before.items():
      signal.signal(kind, handler)
