"""Lowers the programs of the loop for devices that are not there.

Everything is abstract: no weight is made, and nothing runs. The programs are
those that `specjax.loop.generate` runs:

  plain    the loop with no draft
  chain    the loop with a draft model and the rule `token`
  tree     the loop with a static tree of that model and the rule `recursive`
  pool     the step of `specjax.requests.pool`, whose rows come and go
  prefill  reads the prompts
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from specjax import trees, verify
from specjax.bench import memory, sampling_stages
from specjax.bench.config import SamplingValues
from specjax.drafters import lm, plain
from specjax.loop import generate
from specjax.models import devices as layout
from specjax.models import linear, sharding, transformer, variants
from specjax.models.config import TransformerConfig
from specjax.models.devices import DeviceForm
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.stats.roofline import Chip, Pass, Step
from specjax.types import Drafter, Params, Rule, Spec

NAMES = 'plain', 'chain', 'tree', 'pool', 'prefill'
DRAFTING = 'chain', 'tree', 'pool'
FLOATS = 16  # bits
READ_AT_ONCE = 512  # tokens of a prompt


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Everything that decides a program, but its name and its depth.

  Attributes:
    target: sizes of the target.
    draft: sizes of the draft.
    placement: on a mesh of devices, of one or more.
    dtype: of weights and caches.
    bits: of a value of a matrix: 16, 8 or 4.
    temperature: of all rows.
    sampling: the other stages.
    gamma: drafted tokens of a chain.
    widths: of the tree, children of a node of depth 0, 1, ...
    batch: rows.
    slots: of a cache.
    used: slots in use.
    form: what differs by the platform.
  """

  target: TransformerConfig
  draft: TransformerConfig
  placement: Placement
  dtype: str
  bits: int
  temperature: float
  sampling: SamplingValues
  gamma: int
  widths: tuple[int, ...]
  batch: int
  slots: int
  used: int
  form: DeviceForm

  def at_depth(self, layers: Sequence[int]) -> 'Shapes':
    """Returns the shapes with the first layers of target and draft alone."""
    target, draft = map(_first, (self.target, self.draft), layers)
    return dataclasses.replace(self, target=target, draft=draft)

  def passes(self, name: str) -> int:
    """Returns the passes of the draft in a step of a program."""
    depth = len(self.widths) if name == 'tree' else self.gamma
    return depth if name in DRAFTING else 0

  @property
  def models(self) -> tuple[tuple[Model, Placement], ...]:
    """Target and draft without a mesh, and the place of each."""
    target, draft = (
      variants.for_device(transformer.build(config), self.form)
      for config in (self.target, self.draft)
    )
    draft = variants.resize_head(draft, self.target.vocab_size)
    return (target, self.placement), (draft, self.placement.for_draft)

  def weights(self, model: Model) -> Any:
    """Shapes of a model's parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    shapes = jax.tree.map(
      lambda s: jax.ShapeDtypeStruct(s.shape, self.dtype), shapes
    )
    if self.bits == FLOATS:
      return shapes
    tied = model.config.tied_embeddings
    return jax.eval_shape(lambda w: linear.quantize(w, tied, self.bits), shapes)

  def pass_of(self, place: int, tokens: float) -> Pass:
    """Returns a pass of the target (0) or the draft (1) on each device.

    Args:
      place: in `models`.
      tokens: of each row that are fed.
    """
    model, placement = self.models[place]
    shapes = self.weights(model)
    weights, cache = memory.bytes_per_token(model, shapes, self.used)
    mesh = placement.mesh.shape
    ways = mesh['model'] if placement.split else 1
    heads = ways if model.config.num_kv_heads % ways == 0 else 1
    rows = self.batch // mesh['data']
    numbers = weights * 8 / self.bits
    return Pass(
      weights / ways + rows * cache / heads, numbers / ways, rows * tokens
    )

  def least(self, name: str, chip: Chip) -> Step:
    """Returns the least time of a step that a chip could take."""
    passes, nodes = self.passes(name), self.gamma
    if name == 'tree':
      nodes = len(trees.branching(self.widths))
    fed = READ_AT_ONCE if name == 'prefill' else nodes * bool(passes) + 1
    drafted = max(1, nodes / passes) if passes else 0
    draft = passes and passes * self.pass_of(1, drafted).seconds(chip)
    return Step(draft, self.pass_of(0, fed).seconds(chip))

  def held(self) -> tuple[int, ...]:
    """Bytes of weights and caches that a device holds, of target and draft."""
    found = []
    for model, place in self.models:
      shapes = self.weights(model)
      size = sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(shapes))
      if self.bits == FLOATS:
        where = transformer.shardings(model.config, place)
        size = sharding.bytes_per_device(shapes, where)
      cache = memory.of_cache(
        model.config, place, self.batch, self.slots, 0, self.dtype
      )
      found.append(size + cache)
    return tuple(found)


def _first(config: TransformerConfig, layers: int) -> TransformerConfig:
  windows = config.windows[:layers]
  return dataclasses.replace(config, num_layers=layers, windows=windows)


def small_depths(config: TransformerConfig) -> tuple[int, int]:
  """Returns two depths that give the cost of every further layer.

  Kinds of layers repeat: two depths differ by whole periods of them. Both are
  the whole depth of a model that is no deeper.
  """
  count = config.num_layers
  kinds = [(config.reach(i), config.is_sparse(i)) for i in range(count)]
  periods = (n for n in range(1, count) if kinds[n:] == kinds[:-n])
  period = next(periods, count)
  step = 2 if period == 1 else period
  return min(step, count), min(2 * step, count)


class Lowered(NamedTuple):
  """A program that can be compiled.

  Attributes:
    program: as `jax.jit` lowers it.
    params: shapes of the weights, with their places.
  """

  program: Any
  params: Params


def _drafting(x: Shapes, name: str, draft: Model) -> tuple[Drafter, Rule]:
  if name == 'tree':
    return lm.make_tree(draft, trees.branching(x.widths)), verify.recursive
  if name in DRAFTING:
    return lm.make(draft, x.gamma), verify.token
  return plain.make(), verify.token


def lower(x: Shapes, name: str) -> Lowered:
  """Lowers one of `NAMES`."""
  whole = NamedSharding(x.placement.mesh, PartitionSpec())
  split = x.placement.mesh.size > 1

  def put(shapes: Any, places: Any = None) -> Any:
    if places is None or not split:
      places = jax.tree.map(lambda _: whole, shapes)
    return jax.tree.map(
      lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place),
      shapes,
      places,
    )

  bare = [model for model, _ in x.models]
  models = bare
  if split:
    models = [transformer.place(model, place) for model, place in x.models]
  held = [
    layout.lay_weights(
      x.form, put(x.weights(model), transformer.shardings(model.config, place))
    )
    for model, place in x.models
  ]
  params = Params(held[0], held[1] if name in DRAFTING else None)
  drafter, rule = _drafting(x, name, models[1])
  spec = Spec(models[0], drafter, rule)
  # A placed target would put prompts onto devices that are not there.
  begun = dataclasses.replace(spec, target=bare[0])
  state = jax.eval_shape(lambda params: _begin(x, name, begun, params), params)
  state = put(state, x.placement.of_state(state))
  state = layout.lay_caches(x.form, state)
  if name == 'prefill':
    rows = state.tokens, state.length
    program = generate._prefill.lower(
      params.target, *rows, None, target=models[0], taps=()
    )
  else:
    steps = put(jax.ShapeDtypeStruct((), jnp.int32))
    end = generate.StopWhen(steps, steps) if name == 'pool' else steps
    loop = generate.loop_for(spec, state)
    program = loop.lower(params, state, end, spec=spec)
  return Lowered(program, params)


def _begin(x: Shapes, name: str, spec: Spec, params: Params) -> Any:
  """The state of rows behind prompts of one token."""
  stages = x.sampling
  if name == 'pool':  # Every request may ask for these.
    top_k, top_p = stages.top_k or 0, stages.top_p or 1.0
    stages = dataclasses.replace(stages, top_k=top_k, top_p=top_p)
  return generate.start(
    params,
    [[0]] * x.batch,
    spec=spec,
    new_tokens=1,
    key=generate.row_keys(0, range(x.batch)),
    values=sampling_stages.values(stages, spec, x.batch, x.temperature),
    slots=x.slots,
  )
