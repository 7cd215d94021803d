"""Listening at an address, and ending in time."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specjax.errors import UserError
from specjax.serving.service import Service

_LATER = 2.0  # seconds that errors may take to be sent


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
  """Of the API at a socket."""
  host, port = made.getsockname()[:2]
  return (
    f'http://[{host}]:{port}/v1' if ':' in host else f'http://{host}:{port}/v1'
  )


class Server(uvicorn.Server):
  """Ends answers that take too long after it was told to stop."""

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
  """Drops whoever sends half a request, or leaves an answer unread."""

  patience = 60.0
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
  app,
  service: Service,
  grace: float,
  ready: Callable[[], None],
  patience: float = 60.0,
) -> Server:
  """What serves an application.

  Args:
    app: of `app.make`.
    service: that it is for.
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
    lifespan='on',
    http=impatient,
    timeout_graceful_shutdown=int(grace + _LATER),
  )
  return Server(config, service, grace, ready)


@contextlib.contextmanager
def quiet_signals() -> Iterator[None]:
  """Signals that uvicorn ends with, and raises again, end nothing else."""
  kinds = signal.SIGINT, signal.SIGTERM
  before = [signal.signal(kind, lambda *_: None) for kind in kinds]
  try:
    yield
  finally:
    for kind, handler in zip(kinds, before, strict=True):
      signal.signal(kind, handler)
