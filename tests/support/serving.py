"""A service of the tiny pair that listens, and what its texts have to be."""

import contextlib
import dataclasses
import pathlib
import threading
import time

import httpx
import jax
import openai

from specjax.bench import single_model
from specjax.bench.plan import plan
from specjax.loop import generate
from specjax.requests import pool
from specjax.serving import app, service
from specjax.serving.config import Serving
from tests.support import models, tiny

KEY = 'a-secret'


def settings(folder, **changes) -> Serving:
  """Of a service with small tables, of a pair in a folder or of none."""
  made = tiny.experiment(folder or pathlib.Path())
  fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
  mine = {'rows': 3, 'queue': 9, 'length': 96, 'constraint': (64, 64)}
  mine['allowed_origins'] = ('http://friend.example',)
  mine |= {'predictions': 2, 'prediction_tokens': 64, 'prediction_gamma': 4}
  return Serving(**fields | mine | changes)


def load(folder, **changes) -> tuple[Serving, single_model.Pair]:
  """Settings, and the pair in float64: rounding decides no ties."""
  x = settings(folder, **changes)
  single_model.choose(x, 'a service')
  pair = single_model.load(plan(x))
  for name in ('target', 'drafter'):
    one = getattr(pair, name)
    double = dataclasses.replace(one, params=models.double(one.params))
    setattr(pair, name, double)
  return x, pair


@dataclasses.dataclass
class Served:
  """A service that listens."""

  url: str
  service: service.Service
  pair: single_model.Pair
  plain: httpx.Client

  @property
  def worker(self):
    return self.service.worker

  def client(self, **options) -> openai.OpenAI:
    mine = {'api_key': KEY, 'base_url': self.url, 'max_retries': 0}
    return openai.OpenAI(**mine | options)

  def post(self, path, **options) -> httpx.Response:
    return self.plain.post(f'{self.url}{path}', **options)

  def alone(self, prompts, new_tokens, **given) -> list[str]:
    """Texts of prompts, each of which is alone in a pool of the same size."""
    target = self.pair.target
    shown = [
      [token for token in one.tokens if token not in target.eos]
      for one in self._alone(prompts, new_tokens, **given)
    ]
    return [target.tokenizer.decode(one) for one in shown]

  def logprobs(self, prompt, new_tokens, count) -> list:
    """What is said of the tokens of one, with so many alternatives."""
    (one,) = self._alone([prompt], new_tokens)
    return [x._replace(top=x.top[:count]) for x in one.logprobs]

  def _alone(self, prompts, new_tokens, **given) -> list[pool.Progress]:
    opened = self.service._opened
    held, found = opened.held, []
    same = ('spec', 'rows', 'slots', 'reads')
    other = pool.Pool(
      held.params,
      values=held._values,
      recording=held._recording,
      **{name: getattr(held, name) for name in same},
    )
    given = {'temperature': 0.9, 'seed': 3} | given
    seed = given.pop('seed')
    for row, prompt in enumerate(prompts):
      ids = self.pair.target.tokenizer.encode(prompt)
      key, values = generate.row_keys(seed, [row]), opened.kinds.values(**given)
      other.submit(pool.Request(ids, new_tokens, key, values))
      found += other.turn(new_tokens)
    return found

  def rest(self, seconds=10.0) -> bool:
    """Whether nothing is left to do, now or soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      if self.worker.idle and not self.service.taken:
        return True
      time.sleep(0.01)
    return False


@contextlib.contextmanager
def nothing_compiles(caplog):
  """Nothing is compiled inside, in any thread."""
  jax.config.update('jax_log_compiles', True)
  try:
    yield
  finally:
    jax.config.update('jax_log_compiles', False)
  assert 'Compiling' not in caplog.text


@contextlib.contextmanager
def serve(folder, **changes):
  """Everything inside is computed in float64, in all threads."""
  before = jax.config.jax_enable_x64  # Of a service that runs already.
  jax.config.update('jax_enable_x64', True)
  try:
    x, pair = load(folder, **changes)
    made = service.Service(service.open_pools(x, pair, 'tiny'), x.steps)
    made.start()
    socket, ready = app.listen(x.host, 0), threading.Event()
    listens = app.make(made, KEY, x.body, x.allowed_origins)
    server = app.server(listens, made, x.grace, ready.set, x.patience)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    assert ready.wait(30)
    try:
      headers = {'Authorization': f'Bearer {KEY}'}
      with httpx.Client(headers=headers, timeout=60, verify=False) as plain:
        yield Served(app.address(socket), made, pair, plain)
    finally:
      server.should_exit = True
      thread.join(30)
    assert not thread.is_alive()
  finally:
    jax.config.update('jax_enable_x64', before)
