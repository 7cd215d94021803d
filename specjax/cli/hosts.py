"""Joins several processes, which work as one on a host each.

Every process runs the same program and computes; process 0 alone writes and
prints. `jax.distributed` joins them and watches whether all are alive. Where
one is missing it aborts the others in C++ (LOG(FATAL), SIGABRT), past every
`except`, and its callback for that case ends in std::bad_cast (jax 0.10.2).
Hence a timer that is earlier than it while processes join, and a handler of
the signal from then on: each says in a sentence what has happened.
"""

import ctypes
import functools
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from specjax.bench.config import Mesh
from specjax.errors import UserError

_HEARTBEAT = 100  # seconds without a sign of life, at most
_LATER = 5  # seconds that jax gives up after the timer


def join(mesh: Mesh) -> None:
  """Makes this process one of several; call it before anything is computed.

  The process ends with a sentence if the others do not join in time, and later
  if jax misses one of them.

  Args:
    mesh: as `checks.check_mesh` lets it pass.

  Raises:
    UserError: the coordinator's port is not free, or there is no cluster.
  """
  if mesh.processes == 1:
    return
  if mesh.processes and mesh.process == 0:
    _check_port(mesh)
  known: dict[str, Any] = dict(
    coordinator_address=mesh.coordinator,
    num_processes=mesh.processes,
    process_id=mesh.process,
    cluster_detection_method='deactivate',
  )
  timer = threading.Timer(mesh.timeout, lambda: _end(_waited(mesh)))
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      **(known if mesh.processes else {}),
      initialization_timeout=mesh.timeout + _LATER,
      heartbeat_timeout_seconds=min(mesh.timeout, _HEARTBEAT),
      shutdown_timeout_seconds=mesh.timeout,
    )
  except ValueError as error:
    raise UserError(
      f'mesh.processes is 0, but this is no cluster that is known ({error}): '
      'give mesh.processes, mesh.process and mesh.coordinator'
    ) from error
  finally:
    timer.cancel()
  ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort(_name(mesh)))


def _check_port(mesh: Mesh) -> None:
  """Raises a UserError if the port is in use: jax may end in a segfault."""
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  port = int(mesh.coordinator.rpartition(':')[2])
  try:
    socket.create_server(('', port), family=family, dualstack_ipv6=dual).close()
  except OSError as error:
    raise UserError(
      f'mesh.coordinator: {_name(mesh)} cannot open port {port} ({error}); '
      'choose another one, the same for all processes'
    ) from error


def _name(mesh: Mesh) -> str:
  last = mesh.processes - 1
  return f'process {mesh.process} (of 0 to {last})' if last > 0 else 'a process'


def _waited(mesh: Mesh) -> str:
  """Returns the last words of a process that was not joined in time."""
  opening = f'{_name(mesh)} waited {mesh.timeout} s for'
  host, _, port = mesh.coordinator.rpartition(':')
  try:
    if mesh.process:
      socket.create_connection((host.strip('[]'), int(port)), 1).close()
  except OSError as error:
    return (
      f'mesh.coordinator: {opening} process 0, but nothing answers at '
      f'{mesh.coordinator} ({error}); start process 0 there, correct the '
      'address, or raise mesh.timeout'
    )
  return (
    f'mesh.timeout: {opening} all {mesh.processes or ""} to join at '
    f'{mesh.coordinator or "the coordinator of the cluster"}; start each with '
    'the same mesh.processes and mesh.coordinator and its own mesh.process, or '
    'raise mesh.timeout'
  )


def _end(message: str) -> NoReturn:
  """Ends the process at once, in whatever thread.

  At a regular end jax waits for the others, one of whom may be gone.
  """
  print(f'error: {message}', file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


@functools.cache  # C calls it: it must not be collected.
def _on_abort(name: str):
  lost = (
    f'{name} was ended by jax, which misses another process or met an error '
    '(see above); see what the others said, and start all of them again'
  )
  return ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: _end(lost))


def leave(error: Exception) -> NoReturn:
  """Ends this process of several because of an error that was not foreseen.

  The others are not waited for: they notice, and end as well.
  """
  if 'Gloo' not in str(error):  # CPU devices: a connection to another is lost.
    traceback.print_exception(error)
    _end('this process met a bug, see above, and does not wait for the others')
  _end(
    f'process {jax.process_index()} (of 0 to {jax.process_count() - 1}) lost '
    f'another one while they computed ({error}); see what the others said, '
    'and start all of them again'
  )


def is_primary() -> bool:
  """Returns whether this process writes and prints."""
  return jax.process_index() == 0


def tell(text: str) -> None:
  """Prints a line on stderr, in the process that prints."""
  if is_primary():
    print(text, file=sys.stderr)


def primary_stdout() -> TextIO:
  """Returns where this process prints: nowhere, unless it is the primary."""
  return sys.stdout if is_primary() else open(os.devnull, 'w')


def broadcast(value: Any) -> Any:
  """Returns the value of process 0 in every process; it must fit in JSON."""
  if jax.process_count() == 1:
    return value
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
  text = np.resize(text, size)  # Of the same length everywhere.
  return json.loads(multihost_utils.broadcast_one_to_all(text).tobytes())


def on_primary(call: Callable[[], Any]) -> Any:
  """Returns what a call returns in process 0, and None in the others.

  Raises:
    UserError: the call raised one; in every process.
  """
  result = error = None
  if is_primary():
    try:
      result = call()
    except ValueError as reason:
      error = str(reason)
  error = broadcast(error)
  if error:
    raise UserError(error)
  return result
