"""One loop on many meshes: run with eight devices by `test_many_devices`.

  python -m tests.support.many_devices FOLDER

The last line is one JSON object: what each way to run gave.
"""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp

from specjax import checkpoints, sampling, verify
from specjax.bench import memory, meshes
from specjax.bench.compiled import hlo
from specjax.bench.config import Mesh
from specjax.drafters import lm, ngram
from specjax.loop import generate
from specjax.models import sharding, transformer
from specjax.types import Params, Spec
from tests.support import automata, models, tiny

SIZES = dict(num_heads=8, num_kv_heads=4, head_dim=4, max_positions=512)
PROMPTS = [[1], [2, 3], [4, 5, 6, 4, 5, 6, 4], [7] * 9] * 2
TEMPERATURES = [0.0, 1.0] * 4
NEW = 12
ENDS = (31,)
# Of two rows in three; the others are free.
LANGUAGES = [
  automata.drawn(32, 9, i, ENDS) if i % 3 else None for i in range(8)
]


def write(folder: pathlib.Path) -> None:
  """The pair, whose draft is the target's first layer, as directories."""
  target, draft = (tiny.model(16, n, 32, **SIZES) for n in (2, 1))
  params = jax.jit(target.init)(jax.random.key(3))
  params['unembedding'] *= 3
  checkpoints.save(folder / 'target', target, params, dtype=jnp.float32)
  first = {name: params[name] for name in params if name != 'layer1'}
  checkpoints.save(folder / 'draft', draft, first, dtype=jnp.float32)


def on_one(tree) -> set[int]:
  """Bytes that devices hold of a tree."""
  held: dict = {}
  for x in jax.tree.leaves(tree):
    for shard in x.addressable_shards:
      held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
  return set(held.values())


def lies_as(tree, places) -> bool:
  """Whether every array lies where it should."""
  return all(
    x.sharding.is_equivalent_to(place, x.ndim)
    for x, place in zip(
      jax.tree.leaves(tree), jax.tree.leaves(places), strict=True
    )
  )


def check_bytes(config, placement, mesh: Mesh, params, cache) -> dict:
  """What is held, beside what is predicted, which is of float32."""
  wide = jax.tree.leaves(params)[0].dtype.itemsize // 4
  plan = meshes.plan_placement(mesh)
  plan = plan if placement.split else plan.for_draft
  rows, _, slots, _ = cache[0].v.shape
  return {
    'parameters': sorted(on_one(params)),
    'predicted_parameters': [wide * memory.of_parameters(config, plan)],
    'cache': sorted(on_one(cache)),
    'predicted_cache': [
      wide * memory.of_cache(transformer.build(config), plan, rows, slots, 0)
    ],
    'declared': lies_as(params, transformer.shardings(config, placement)),
  }


def run(folder, mesh: Mesh, drafter: str, dtype: str) -> dict:
  """Texts of one way to run, in chunks of three steps of one program."""
  placement = meshes.make_placement(mesh)
  target, weights = checkpoints.load(
    folder / 'target', dtype, placement=placement
  )
  own = None
  made = ngram.make(2)
  if drafter == 'lm':
    draft, own = checkpoints.load(
      folder / 'draft', dtype, placement=placement and placement.for_draft
    )
    made = lm.make(draft, 2)
  spec, params = Spec(target, made, verify.token, ENDS), Params(weights, own)
  state = generate.start(
    params, PROMPTS, spec=spec, new_tokens=NEW,
    key=generate.row_keys(0, range(len(PROMPTS))),
    values=sampling.make(
      len(PROMPTS), TEMPERATURES, vocab_size=target.config.vocab_size, eos=ENDS,
      constraint=LANGUAGES,
    ),
  )  # fmt: skip
  three = jnp.int32(3)
  found: dict = {}
  if placement is not None:
    three = placement.put_whole(three)
    found['target'] = check_bytes(
      target.config, placement, mesh, weights, state.cache
    )
    if own is not None:
      found['draft'] = check_bytes(
        draft.config, placement.for_draft, mesh, own, state.drafter.state.cache
      )
    found['placed'] = lies_as(state, placement.of_state(state))
  # A compiled program takes arrays that lie as it was made for, or none.
  program = generate.loop.lower(params, state, three, spec=spec).compile()
  deleted = True
  while not state.done.all():
    before, state = state, program(params, state, three)
    deleted &= before.cache[0].k.is_deleted() and before.tokens.is_deleted()
  found['donated'] = bool(deleted)
  if placement is not None:
    found['kept'] = lies_as(state, placement.of_state(state))
    found['collectives'] = hlo.loop_collectives(program.as_text())
  seen = sharding.fetch(state._replace(cache=(), drafter=(), key=None))
  found['texts'] = models.new_tokens(seen)
  found['accepted'] = int(seen.counts.accepted.sum())
  return found


def main(folder: pathlib.Path) -> None:
  write(folder)
  jax.config.update('jax_enable_x64', True)
  found = {
    f'{drafter} {mesh.data}x{mesh.model} {bool(mesh.split_draft)}': run(
      folder, mesh, drafter, 'float64'
    )
    for drafter, mesh in (
      ('lm', Mesh(1, 1)),
      ('ngram', Mesh(1, 1)),
      ('ngram', Mesh(8, 1)),
      ('lm', Mesh(2, 4, split_draft=True)),
      ('lm', Mesh(1, 8)),
    )
  }
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
