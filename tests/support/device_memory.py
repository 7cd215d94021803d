"""Bytes that arrays and programs take on a device, as XLA accounts for them.

A CPU device counts nothing itself. Here every program of the loop is compiled
by hand where it is called, and runs as compiled: its peak is what lives
elsewhere, and its arguments, results and temporary memory.
"""

import functools

import jax

from specjax.loop import generate

_PROGRAMS = 'read_prompts', '_begin', 'loop'


def living() -> int:
  """Bytes of all arrays, each buffer once."""
  sizes = {}
  for x in jax.live_arrays():
    if not x.is_deleted():
      for shard in x.addressable_shards:
        data = shard.data
        if jax.dtypes.issubdtype(data.dtype, jax.dtypes.prng_key):
          data = jax.random.key_data(data)
        sizes[data.unsafe_buffer_pointer()] = data.nbytes
  return sum(sizes.values())


class _Program:
  """A jitted function that notes what each call takes."""

  def __init__(self, name: str, jitted, peaks: dict):
    self.name, self.jitted, self.peaks = name, jitted, peaks
    self.lower = jitted.lower
    self.compiled: dict = {}

  def _cache_size(self) -> int:
    return len(self.compiled)

  def __call__(self, *args, **static):
    shapes = [
      (x.shape, str(x.dtype), x.sharding) for x in jax.tree.leaves(args)
    ]
    key = (
      str(jax.tree.structure(args)),
      str(shapes),
      *sorted((name, id(value)) for name, value in static.items()),
    )
    if key not in self.compiled:
      self.compiled[key] = self.jitted.lower(*args, **static).compile(), static
    compiled, _ = self.compiled[key]
    found = compiled.memory_analysis()
    new = found.output_size_in_bytes - found.alias_size_in_bytes
    peak = living() + new + found.temp_size_in_bytes
    entry = (peak, living(), new, found.temp_size_in_bytes)
    self.peaks[self.name] = max(self.peaks.get(self.name, (0,)), entry)
    return compiled(*args)


def watch(monkeypatch) -> dict[str, tuple[int, ...]]:
  """A dict that gets the peak of each program of the loop by name.

  Each is (peak, living before, new, temporary).
  """
  peaks: dict = {}
  for name in _PROGRAMS:
    jitted = getattr(generate, name)
    monkeypatch.setattr(
      generate, name, functools.wraps(jitted)(_Program(name, jitted, peaks))
    )
  return peaks
