"""Plain decoding against what reading its bytes takes, and transformers.

The limit is the bytes of the weights and of the cache in use over the
bandwidth that the fastest of some readers has in the same minutes (medians
of turns, see `bandwidth.Reader`). A small model's weights may stay in a
processor's caches, and its limit is then below that of the memory.
"""

import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import peers
from experiments.bandwidth import Reader
from experiments.stepping import Loop, Timed, milliseconds, take_turns
from experiments.sweeps import Bench, seconds
from specjax import checkpoints, verify
from specjax.bench.memory import bytes_per_token
from specjax.drafters import plain as no_draft
from specjax.errors import UserError
from specjax.models import cache as caches
from specjax.models import layouts
from specjax.models.transformer import Model
from specjax.types import Params, Spec


def _targets(bench: Bench) -> dict[str, tuple[Model, Any]]:
  """The random target and the checkpoint's, as one row is decoded."""
  x = bench.x
  model, params, _ = bench.models(x.target.vocab_size).fastest
  targets = {'random': (model, params.target)}
  if x.path:
    made = checkpoints.load(x.path, x.dtype)
    if model.config.native:
      made = layouts.to_native(*made) or made
    targets['checkpoint'] = made
  return targets


def plain(bench: Bench) -> list[dict]:
  """A plain step at each maximum over its limit."""
  x = bench.x
  bench.bar.set_description('compiling plain steps')
  targets = _targets(bench)
  loops = {
    (name, slots): Loop(
      Spec(model, no_draft.make(), verify.token),
      Params(params, None),
      used=x.used,
      slots=slots,
      steps=x.steps,
    )
    for name, (model, params) in targets.items()
    for slots in map(caches.round_slots, x.maxima)
  }
  reader = Reader(x.megabytes << 20, jnp.dtype(x.dtype))
  ways: dict[Any, Any] = {key: loop.run for key, loop in loops.items()}
  bench.bar.set_description('measuring plain steps')
  turns = take_turns(ways | {'read': reader.read}, x.repeats, bench.bar)
  bandwidth = np.median(turns['read'], 0).max()
  rows = []
  for name, slots in loops:
    model, params = targets[name]
    weights, kv = bytes_per_token(model, params, x.used)
    step = seconds(turns[name, slots])
    rows.append(
      {
        'sweep': 'limit',
        'model': name,
        'parameters': sum(p.size for p in jax.tree.leaves(params)),
        'size': slots,
        **milliseconds(turns[name, slots]),
        'weight_bytes': weights,
        'cache_bytes_in_use': kv,
        'bandwidth_gb_per_second': bandwidth / 1e9,
        'limit_ratio': step * bandwidth / (weights + kv),
      }
    )
  return rows


def _peer(path: str, used: int, count: int):
  """transformers on a checkpoint: seconds of `count` tokens but the first.

  The difference of two calls, so that reading the prompt is not in it.
  """
  torch, _ = peers.libraries()
  model = peers.load(path)
  ids = torch.ones((1, used), dtype=torch.long, device=model.device)

  def take(new: int) -> float:
    begin = time.perf_counter()
    out = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      max_new_tokens=new,
      do_sample=False,
    )
    out.tolist()  # A GPU may be still at work.
    return time.perf_counter() - begin

  take(2)
  return lambda: Timed((take(count + 1) - take(1)) / count, 1)


def transformers(bench: Bench) -> list[dict]:
  """Our plain step and that of transformers' `generate`, on one checkpoint.

  The random target is saved in float32 and loaded by torch; greedy, eager
  caches as the library has them by default, all cores for either side.

  Raises:
    UserError: torch is missing, or weights are not in float32.
  """
  x = bench.x
  if x.dtype != 'float32':
    raise UserError(f'dtype must be float32 for this, got {x.dtype}')
  peers.libraries()
  models = bench.models(x.target.vocab_size)
  with tempfile.TemporaryDirectory() as folder:
    bench.bar.set_description('saving for transformers')
    path = f'{folder}/target'
    checkpoints.save(path, models.target, models.weights, dtype=jnp.float32)
    ways = {'transformers': _peer(path, x.used, x.steps)}
    ways['specjax'] = bench.loop().run
    bench.bar.set_description('measuring transformers')
    turns = take_turns(ways, x.repeats, bench.bar)
  ratio = seconds(turns['transformers']) / seconds(turns['specjax'])
  return [
    {
      'sweep': 'transformers',
      'way': name,
      'size': x.used,
      **milliseconds(turns[name]),
      'ratio': ratio,
    }
    for name in ways
  ]
