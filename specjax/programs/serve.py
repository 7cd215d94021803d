"""A service for clients of the OpenAI API: chats and completions.

  specjax serve quickstart --port=8000

  curl http://127.0.0.1:8000/v1/completions \\
    -d '{"prompt": "def fib(n):", "max_tokens": 30}'

It takes any config of `specjax run`, such as `pair`, and answers
with its first drafter and rule. Needs starlette, uvicorn and prometheus-client,
which the extra `serve` brings. For experiments and editors of one's own, not
for the open internet: docs/serving.md. Ctrl-C and SIGTERM end it.
"""

import importlib.util
import os
import re

from specjax.bench import single_model
from specjax.bench.plan import plan
from specjax.cli import command, fields, progress
from specjax.errors import blame, install, need
from specjax.requests.request_sampling import Stages
from specjax.serving.config import LENGTH, Serving

_NEEDED = 'starlette', 'uvicorn', 'prometheus_client'


def check(x: Serving) -> str:
  """Checks what needs no files; the key of the clients, or nothing.

  Raises:
    UserError: names the field and the remedy.
  """
  missing = [x for x in _NEEDED if importlib.util.find_spec(x) is None]
  need(
    not missing, f'a service needs {" and ".join(missing)}: {install("serve")}'
  )
  fields.check_fields(x)
  length = x.length or LENGTH
  need(
    not x.predictions or x.prediction_gamma < length,
    f'prediction_gamma is {x.prediction_gamma}, but must be below length, '
    f'which is {length}: copy less at a time',
  )
  need(
    not x.predictions or x.prediction_tokens <= x.body,
    f'prediction_tokens is {x.prediction_tokens}, but a request has at most '
    f'the {x.body} bytes of body: choose less, or allow more bytes',
  )
  need(
    not x.draft_lengths or any(x.draft_lengths),
    f'draft_lengths is {x.draft_lengths}, which drafts nothing: add a length '
    'of at least 1, or leave it out',
  )
  with blame():
    Stages(tuple(x.stages), 1, constraint=tuple(x.constraint))
  need(
    x.host.strip(),
    'host is empty, which opens every address of this machine: name one, such '
    'as 127.0.0.1, or 0.0.0.0 for all',
  )
  for one in x.allowed_origins:
    need(
      one == '*' or re.fullmatch(r'https?://[^/*?#\s]+', one),
      f'allowed_origins has {one!r}, which is no origin: write it as a browser '
      'sends it, such as http://localhost:3000, or * for all',
    )
  key = os.environ.get(x.key, '') if x.key else ''
  need(
    bool(key) == bool(x.key),
    'key has to be the name of an environment variable that holds the key of '
    'the clients, and there is none of that name: set it, or leave key out',
  )
  return key


def main(x: Serving) -> None:
  key = check(x)
  from specjax.serving import app, service

  socket = app.listen(x.host, x.port)
  single_model.choose(x, 'a service')
  x.batch = x.rows * (1 + x.plain) + x.predictions
  planned = plan(x)
  longest = max(1, (x.length or LENGTH) - planned.max_new_tokens)
  pair = single_model.load(planned, longest)
  name = x.model or planned.target.rstrip('/').rpartition('/')[2]
  opened = service.open_pools(x, pair, name)
  made = service.Service(opened, x.steps)
  size = f'{x.rows} rows of {opened.limits.length} tokens'
  with progress.phase(f'compiling for {size}'):
    made.start()

  def ready():
    where = app.address(socket)
    print(f'{name} answers at {where}, drafts of {pair.planned.name}')
    print(f'a page to try it: {where.removesuffix("v1")}')
    print('Ctrl-C ends it', flush=True)

  answers = app.make(made, key, x.body, x.allowed_origins)
  server = app.server(answers, made, x.grace, ready, x.patience)
  made.worker.failed = lambda: setattr(server, 'should_exit', True)
  try:
    with app.quiet_signals():
      server.run([socket])
  finally:
    made.close()
  if made.worker.failure is not None:
    raise made.worker.failure
  print('stopped')


def start() -> None:
  command.run(main, Serving, extends=True)
