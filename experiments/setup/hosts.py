"""Several processes that work as one, each on a host of its own.

Every process runs the same program and computes; process 0 alone writes and
prints. They find each other through `jax.distributed`. Its own time-out ends a
process without a word about who is missing, so they meet here first.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.errors import UserError
from experiments.settings import Mesh

_WORD = 64  # bytes of a process's number, at most


def check(mesh: Mesh) -> None:
  """Checks how processes find each other.

  Raises:
    UserError: names the field and the remedy.
  """
  if mesh.processes < 0:
    raise UserError(
      f'mesh.processes must be at least 0 (0: what the cluster says), got '
      f'{mesh.processes}'
    )
  if mesh.timeout < 1:
    raise UserError(f'mesh.timeout must be at least 1, got {mesh.timeout}')
  if mesh.processes < 2:
    return
  if not 0 <= mesh.process < mesh.processes:
    raise UserError(
      f'mesh.process must be from 0 to {mesh.processes - 1}, got {mesh.process}'
    )
  host, _, port = mesh.coordinator.rpartition(':')
  if not host or not port.isdigit() or not 0 < int(port) < 2**16:
    raise UserError(
      f'mesh.coordinator must be the host and port of process 0, such as '
      f'10.0.0.1:8476, got {mesh.coordinator!r}'
    )


def join(mesh: Mesh) -> None:
  """Makes this process one of several; before anything is computed.

  Raises:
    UserError: a value is wrong, or a process did not join in time: names it.
  """
  check(mesh)
  if mesh.processes == 1:
    return
  if mesh.processes == 0:
    try:
      jax.distributed.initialize(initialization_timeout=mesh.timeout)
    except ValueError as error:
      raise UserError(
        f'mesh.processes is 0, but this is no cluster that is known ({error}): '
        'give mesh.processes, mesh.process and mesh.coordinator'
      ) from error
    return
  meet(mesh)
  jax.distributed.initialize(
    mesh.coordinator,
    mesh.processes,
    mesh.process,
    cluster_detection_method='deactivate',
    initialization_timeout=mesh.timeout,
  )


def meet(mesh: Mesh) -> None:
  """Waits until every process is there, at the coordinator's own address.

  Each says its number to process 0, which answers all of them at once: nobody
  is missing, or who is.

  Raises:
    UserError: a process is missing; names it.
  """
  deadline = time.monotonic() + mesh.timeout
  host, _, port = mesh.coordinator.rpartition(':')
  if mesh.process:
    missing = _report(mesh, (host.strip('[]'), int(port)), deadline)
  else:
    missing = _collect(mesh, int(port), deadline)
  if missing:
    several = 'processes' if ', ' in missing else 'process'
    raise UserError(
      f'mesh.timeout: {several} {missing} did not join in {mesh.timeout} s; '
      'start it with the same mesh.processes and mesh.coordinator and its own '
      'mesh.process, or raise mesh.timeout'
    )


def _collect(mesh: Mesh, port: int, deadline: float) -> str:
  """Process 0: waits for the numbers of the others; returns the missing."""
  absent, lines = {*range(1, mesh.processes)}, []
  try:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(
      ('', port), family=family, dualstack_ipv6=dual
    )
  except OSError as error:
    raise UserError(
      f'mesh.coordinator: port {port} cannot be opened ({error}); choose '
      'another one'
    ) from error
  with server:
    while absent and (left := deadline - time.monotonic()) > 0:
      server.settimeout(left)
      try:
        line, _ = server.accept()
        line.settimeout(min(left, 5))
        absent.discard(int(line.recv(_WORD)))
        lines.append(line)
      except (OSError, ValueError):
        continue  # The time is over, or a stranger called.
    missing = ', '.join(map(str, sorted(absent)))
    for line in lines:
      with line, contextlib.suppress(OSError):  # It may be gone again.
        line.sendall((missing or 'none').encode())
  return missing


def _report(mesh: Mesh, address: tuple[str, int], deadline: float) -> str:
  """Any other process: says its number; returns who is missing."""
  while (left := deadline - time.monotonic()) > 0:
    try:
      with socket.create_connection(address, timeout=left) as line:
        line.sendall(str(mesh.process).encode())
        # Process 0 may have begun to wait later.
        line.settimeout(left + mesh.timeout)
        answer = line.recv(_WORD * mesh.processes).decode()
      if answer:
        return '' if answer == 'none' else answer
    except OSError:
      pass
    time.sleep(0.1)
  return f'0 (the coordinator at {mesh.coordinator})'


def leads() -> bool:
  """Whether this process writes and prints."""
  return jax.process_index() == 0


def voice() -> TextIO:
  """Where this process prints: nowhere, unless it leads."""
  return sys.stdout if leads() else open(os.devnull, 'w')


def share(value: Any) -> Any:
  """What process 0 has, in every process; JSON knows its kind."""
  if jax.process_count() == 1:
    return value
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
  text = np.resize(text, size)  # Of the same length everywhere.
  return json.loads(multihost_utils.broadcast_one_to_all(text).tobytes())


def alone(call: Callable[[], Any]) -> Any:
  """What a call of process 0 returns; None in the others.

  Raises:
    UserError: it did; in every process.
  """
  found = error = None
  if leads():
    try:
      found = call()
    except ValueError as reason:
      error = str(reason)
  error = share(error)
  if error:
    raise UserError(error)
  return found
