"""Work that compiles, two at a time."""

import threading
import types

import jax
import pytest

from specjax.bench import measure


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch):
  monkeypatch.setattr(measure.jax, 'default_backend', lambda: 'cpu')


def spec(placement=None):
  return types.SimpleNamespace(
    target=types.SimpleNamespace(placement=placement)
  )


def test_results_come_in_the_order_of_their_items():
  """Two are in work at once, and the second of each pair ends first."""
  both, second = threading.Barrier(2, timeout=60), threading.Event()

  def work(item):
    both.wait()
    if item % 2:
      second.set()
    else:
      second.wait(60)
    return item

  assert [*measure.side_by_side(work, range(4), [spec()])] == [0, 1, 2, 3]


def test_an_error_is_raised_in_the_place_of_its_result():
  def work(item):
    if item == 1:
      raise measure.NotFinite('not finite')
    return item

  results = measure.side_by_side(work, range(4))
  assert next(results) == 0
  with pytest.raises(measure.NotFinite):
    next(results)


def test_programs_of_a_mesh_reach_its_devices_one_after_the_other():
  threads = set()

  def work(item):
    threads.add(threading.current_thread())
    return item

  mixed = [spec(), spec(placement='a mesh')]
  assert [*measure.side_by_side(work, range(4), mixed)] == [0, 1, 2, 3]
  assert threads == {threading.current_thread()}


def test_programs_are_forgotten_before_they_are_too_many(monkeypatch):
  assert 0 < measure.maps_used() < 0.5
  double = jax.jit(lambda x: 2 * x)
  for used, kept in ((0.5, 1), (0.51, 0)):
    monkeypatch.setattr(measure, 'maps_used', lambda used=used: used)
    double(3)
    measure.make_room()
    assert double._cache_size() == kept
