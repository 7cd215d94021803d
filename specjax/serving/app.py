"""The addresses of a service, as a Starlette application."""

import asyncio
import contextlib
import hmac
import time
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specjax.serving import fields, replies
from specjax.serving.refusals import Refused
from specjax.serving.service import Run, Service

_GONE = 499  # as nginx writes of a client that closed the connection


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


async def _gone(request: Request) -> None:
  """Returns when the client closes the connection."""
  while (await request.receive())['type'] != 'http.disconnect':
    pass


async def _unless_gone(request: Request, work: Coroutine) -> Any:
  """What work gives; None where the client closed the connection before."""
  made, gone = (asyncio.create_task(x) for x in (work, _gone(request)))
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

    return True

  try:
    if await _unless_gone(request, collect()) is None:
      return Response(status_code=_GONE)
    return JSONResponse(answer.whole())
  finally:
    run.close()


def make(service: Service, key: str = '', body: int = 2**20) -> Starlette:
  """The application.

  Args:
    service: that answers; it is closed with the application.
    key: that clients have to give; empty: none.
    body: bytes that a request may have.
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
    if origin is not None and urllib.parse.urlsplit(origin).netloc != own:
      raise Refused(f'pages of {origin[:100]} may not ask', status=403)

  def answers(chat: bool):
    async def endpoint(request: Request) -> Response:
      check_key(request)
      check_origin(request)
      service.check()
      read = await _body(request, body)
      asked = fields.read(read, chat, service.limits)
      run = await _unless_gone(request, service.open(asked))
      if run is None:
        return Response(status_code=_GONE)
      name = uuid.uuid4().hex
      answer = replies.Answer(run, name, service)
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
  }

  async def models(request: Request) -> Response:
    check_key(request)
    return JSONResponse({'object': 'list', 'data': [described]})

  async def model(request: Request) -> Response:
    check_key(request)
    if request.path_params['name'] != service.limits.model:
      raise Refused('there is no such model', 'model', 404, 'model_not_found')
    return JSONResponse(described)

  async def health(request: Request) -> Response:
    del request  # Unused.
    service.check()
    return JSONResponse({'status': 'ok'})

  async def metrics(request: Request) -> Response:
    del request  # Unused.
    page, kind = service.counters.page()
    return Response(page, headers={'Content-Type': kind})

  async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    service.counters.refuse(error.status)
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
    del app  # Unused.
    yield
    await asyncio.to_thread(service.close)

  return Starlette(
    routes=[
      Route('/v1/chat/completions', answers(True), methods=['POST']),
      Route('/v1/completions', answers(False), methods=['POST']),
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
  )
