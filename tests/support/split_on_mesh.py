"""A pass by the kernels of GPUs on a mesh of four devices, and on one.

  python -m tests.support.split_on_mesh

Prints the largest difference between the two outputs, and the largest output.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models import cache as caches
from specjax.models import devices, sharding, transformer, variants
from tests.support import tiny

B, T, SLOTS = 2, 3, 256


def main() -> None:
  """Windows, so that rows of a batch see slots of their own, and sinks."""
  sizes = {'num_heads': 4, 'num_kv_heads': 2, 'windows': (100, None)}
  bare = tiny.model(32, 2, 64, sink_logits=True, **sizes)
  model = variants.for_device(bare, devices.FORMS['gpu'])
  draw = np.random.default_rng(0)
  weights = model.init(jax.random.key(0))
  for name in ('layer0', 'layer1'):
    weights[name]['sinks'] = draw.normal(size=(2, 2)).astype(np.float32)
  cache = jax.tree.map(
    lambda x: draw.normal(size=x.shape).astype(x.dtype),
    caches.empty(model.config, B, SLOTS, jnp.float32),
  )
  length = np.array([40, 250], np.int32)
  mask, place = transformer.causal(B, T)
  given = draw.integers(0, 64, (B, T)), place + length[:, None], cache, length

  def run(model, weights, *given):
    return jax.jit(model.forward)(weights, *given, mask).hidden

  placement = sharding.Placement(sharding.make_mesh(2, 2))
  where = transformer.shardings(model.config, placement)
  on_mesh = jax.device_put(weights, where), *placement.put_rows(given)
  placed = variants.place(model, placement)
  assert placed.config.attention.fits is model.config.attention.fits
  found = run(placed, *on_mesh)
  assert len(found.sharding.device_set) == 4
  want = run(model, weights, *given)
  print(float(abs(np.asarray(found) - want).max()), float(abs(want).max()))


if __name__ == '__main__':
  main()
