"""A headless Chromium that is told what to do, through pipes and in JSON."""

import base64
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import pytest

_NAMES = 'chromium', 'chromium-browser', 'google-chrome'
_OPTIONS = (
  '--headless=new',
  '--no-sandbox',
  '--disable-gpu',
  '--remote-debugging-pipe',
)


class Page:
  """One page, `width` x 800 pixels large."""

  def __init__(self, send, receive, width: int):
    self._send, self._receive, self._count = send, receive, 0
    self._session: dict[str, str] = {}
    made = self._call('Target.createTarget', url='about:blank')
    target = made['targetId']
    made = self._call('Target.attachToTarget', targetId=target, flatten=True)
    self._session = {'sessionId': made['sessionId']}
    size = {'width': width, 'height': 800, 'deviceScaleFactor': 1}
    self._call('Emulation.setDeviceMetricsOverride', **size, mobile=width < 600)

  def _call(self, method: str, **params: Any) -> dict[str, Any]:
    self._count += 1
    said = {'id': self._count, 'method': method, 'params': params}
    self._send.write(json.dumps(said | self._session).encode() + b'\0')
    self._send.flush()
    while True:
      text = b''
      while not text.endswith(b'\0'):
        byte = self._receive.read(1)
        assert byte, 'the browser has ended'
        text += byte
      heard = json.loads(text[:-1])
      if heard.get('id') == self._count:
        assert 'error' not in heard, heard
        return heard['result']

  def open(self, url: str) -> None:
    self._call('Page.navigate', url=url)
    while self.run('location.href') != url or (
      self.run('document.readyState') != 'complete'
    ):
      pass

  def run(self, source: str) -> Any:
    """The value of an expression in the page, which may be a promise."""
    made = self._call(
      'Runtime.evaluate',
      expression=source,
      awaitPromise=True,
      returnByValue=True,
    )
    assert 'exceptionDetails' not in made, made
    return made['result'].get('value')

  def picture(self, path: pathlib.Path) -> None:
    made = self._call('Page.captureScreenshot')
    path.write_bytes(base64.b64decode(made['data']))


@contextlib.contextmanager
def page(folder: pathlib.Path, width: int):
  """A page of a browser that keeps its files in a folder, where there is one.

  The browser reads what it is told at 3, and answers at 4.
  """
  browser = next(filter(None, map(shutil.which, _NAMES)), None)
  if browser is None:
    pytest.skip(f'no browser: none of {", ".join(_NAMES)} is installed')
  pipes = (*os.pipe(), *os.pipe())
  # Above 4: none is lost where the others get their numbers.
  told, send, receive, answers = (
    fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in pipes
  )
  for one in pipes:
    os.close(one)
  process = subprocess.Popen(
    [
      *('bash', '-c', f'exec "$0" "$@" 3<&{told} 4>&{answers}', browser),
      *_OPTIONS,
      f'--user-data-dir={folder}',
    ],
    pass_fds=(told, answers),
    stderr=subprocess.DEVNULL,
  )
  os.close(told)
  os.close(answers)
  try:
    with os.fdopen(send, 'wb') as to, os.fdopen(receive, 'rb') as heard:
      yield Page(to, heard, width)
  finally:
    process.terminate()
    process.wait(30)
