"""Which seconds of plain decoding the loops of a method are compared with."""

import types

import numpy as np

from specjax.bench import costs
from specjax.bench.measure import Decoding
from specjax.types import Params


def test_a_few_methods_share_the_plain_seconds_before_them(monkeypatch):
  """Loops take as many seconds as were timed before: 0, 1, 2, ..."""
  timed = []

  def take(way, job, steps=None):
    timed.append((way, steps))
    counts = types.SimpleNamespace(target_calls=np.array([5, 7]))
    return float(len(timed) - 1), types.SimpleNamespace(counts=counts)

  monkeypatch.setattr(costs, '_time', take)
  monkeypatch.setattr(costs, '_pace', lambda run, drafter: 1.5)
  monkeypatch.setattr(costs, 'known_text', lambda *_: len(timed))
  monkeypatch.setattr(
    costs, 'ways', lambda full, replayed, known: {'scored': (replayed, known)}
  )
  spec = types.SimpleNamespace(
    target=types.SimpleNamespace(config=None),
    drafter=types.SimpleNamespace(depth=2),
  )
  base = Decoding(spec, Params(None, None))
  methods = {name: (Decoding(spec, name), name) for name in 'abcde'}
  timer = costs.Timer(base, methods)
  timer.turn('job')
  timer.turn('job')
  plain = [timer.costs(name).plain.tolist() for name in 'abcde']
  assert plain == [[0, 12]] * 3 + [[7, 19]] * 2
  assert timer.costs('b').whole.tolist() == [3, 15]
  assert timer.costs('d').scored.tolist() == [9, 21]
  # The replay is of the text that plain decoding wrote last, in as many steps.
  assert timed[:3] == [
    (base, None),
    (methods['a'][0], None),
    (('a', (1, 1.5)), 7),
  ]
  assert timed[9] == (('d', (8, 1.5)), 7)
