"""Many requests at once, and a service that is told to stop."""

import asyncio
import contextlib
import gc
import json
import random
import signal
import threading
import time

import httpx
import pytest

from specjax.bench import memory
from tests.support import processes, serving

pytestmark = pytest.mark.slow
PROMPTS = 'def fib(n):', 'import os', 'class Tree:', 'x = [1, 2, 3]\n'
SCHEMA = {'type': 'object', 'properties': {'a': {'type': 'boolean'}}}
FORMAT = {'type': 'json_schema', 'json_schema': {'schema': SCHEMA}}
SHORT = {'prompt': 'a', 'max_tokens': 40}
# Of every tenth request.
KINDS = {
  0: SHORT | {'response_format': {'type': 'json_object'}},
  3: {'n': 2},
  5: SHORT | {'response_format': FORMAT},
  6: {'stop': ['a', 'x']},
  7: {'seed': None},
}
STAGES = (
  {'temperature': 0},
  {'top_p': 0.8},
  {'temperature': 0.7, 'top_k': 7, 'frequency_penalty': 1.0},
  {'logit_bias': {'7': 39.5, '11': 40}},
  {'repetition_penalty': 1.2, 'min_p': 0.05},
)


@pytest.fixture(scope='module')
def served(folder):
  with serving.serve(folder, queue=80, constraint=(512, 128)) as one:
    yield one


def wanted(number):
  """One of many requests that differ in all that requests may differ in."""
  draw = random.Random(number)
  return {
    'prompt': PROMPTS[number % len(PROMPTS)] * draw.choice([1, 1, 3, 5]),
    'max_tokens': draw.randint(1, 30),
    'temperature': 0.9,
    'seed': number,
  } | STAGES[number % len(STAGES)]


def bytes_held():
  gc.collect()
  memory.give_back()
  return memory.of_process()


async def storm(served, numbers):
  """Asks for all; how many were answered, refused and left."""
  headers = {'Authorization': f'Bearer {serving.KEY}'}
  limits = asyncio.Semaphore(24)
  counts = {'answered': 0, 'refused': 0, 'left': 0}

  async def ask(client, number):
    given, url = wanted(number), f'{served.url}/completions'
    async with limits:
      if number % 10 == 1:
        body = random.Random(number).choice(
          [b'{', b'\xff', b'{"prompt": 3}', b'{"prompt": "a", "n": 99}']
        )
        sent = await client.post(url, content=body)
        assert sent.status_code == 400
        counts['refused'] += 1
      elif number % 10 == 2:
        given |= {'stream': True, 'max_tokens': 40}
        async with client.stream('POST', url, json=given) as got:
          if number % 20 == 2:
            await anext(got.aiter_lines())
        counts['left'] += 1
      else:
        given['stream'] = number % 2 == 0
        given |= KINDS.get(number % 10, {})
        sent = await client.post(url, json=given)
        assert sent.status_code == 200, sent.text
        assert '"finish_reason"' in sent.text
        assert not given['stream'] or sent.text.endswith('[DONE]\n\n')
        counts['answered'] += 1

  async with httpx.AsyncClient(headers=headers, timeout=120) as client:
    await asyncio.gather(*(ask(client, number) for number in numbers))
  return counts


def test_many_requests_compile_nothing_and_leave_nothing_behind(served, caplog):
  counts, sizes = [], []
  with serving.nothing_compiles(caplog):
    for begin in range(0, 160, 40):
      counts.append(asyncio.run(storm(served, range(begin, begin + 40))))
      assert served.rest(30)
      sizes.append(bytes_held())
  assert counts == [{'answered': 32, 'refused': 4, 'left': 4}] * 4
  assert all(x.live == x.waiting == 0 for x in served.worker.pools)
  assert sizes[-1] < 1.02 * sizes[1]


PROGRAM = """
import pathlib
from specjax.cli import command
from specjax.programs import serve
from tests.support import serving

def main():
  folder = pathlib.Path({folder!r})
  x = serving.settings(folder, grace={grace}, port=0, predictions=0)
  serve.main(x)

command.guard(main)
"""


@contextlib.contextmanager
def started(folder, grace, programs):
  """A process that serves, and its address; it keeps its compiled programs."""
  program = PROGRAM.format(folder=str(folder), grace=grace)
  process = processes.start(
    '-c', program, JAX_ENABLE_COMPILATION_CACHE='true',
    JAX_COMPILATION_CACHE_DIR=str(programs),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
  )  # fmt: skip
  try:
    lines = iter(process.stdout.readline, '')
    line = next(x for x in lines if ' answers at ' in x)
    yield process, line.split(' at ')[1].split(',')[0]
  finally:
    process.kill()
    process.communicate()


@pytest.fixture(scope='module')
def programs(tmp_path_factory):
  return tmp_path_factory.mktemp('programs')


@pytest.mark.parametrize(('grace', 'whole'), [(8.0, True), (0.0, False)])
def test_a_service_that_is_told_to_stop_ends_in_time(
  folder, programs, grace, whole
):
  with started(folder, grace, programs) as (process, url):
    bodies, began = [], threading.Event()

    def read():
      given = {'prompt': 'a', 'max_tokens': 90, 'n': 3, 'stream': True}
      with httpx.stream(
        'POST', f'{url}/completions', json=given, timeout=60
      ) as got:
        for line in got.iter_lines():
          bodies.append(line)
          began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(30)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert time.monotonic() - begin < 10
    reader.join(10)
    with pytest.raises(httpx.ConnectError):
      httpx.get(f'{url}/models')
    said = [json.loads(x[6:]) for x in bodies if x.startswith('data: {')]
    ends = [
      choice['finish_reason']
      for one in said
      for choice in one.get('choices', ())
      if choice['finish_reason']
    ]
    assert bodies[-2] == 'data: [DONE]'
    assert ('error' in said[-1]) != whole
    assert (len(ends) == 3) == whole
    assert process.stdout.read().endswith('stopped\n')
    assert not process.stderr.read().count('Traceback')
