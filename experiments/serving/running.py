"""Listening at an address, and ending in time."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from experiments.errors import UserError
from experiments.serving.service import Service

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
      '--config.port, or 0 for any that is free'
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


def server(
  app, service: Service, grace: float, ready: Callable[[], None]
) -> Server:
  """What serves an application.

  Args:
    app: of `app.make`.
    service: that it is for.
    grace: seconds that answers may go on after the signal to end.
    ready: is called when requests are taken.
  """
  config = uvicorn.Config(
    app,
    log_level='warning',
    access_log=False,
    lifespan='on',
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
