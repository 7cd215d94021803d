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
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from specjax import trees, verify
from specjax.bench import memory, sampling_stages
from specjax.bench.config import Compiled
from specjax.checkpoints.parameters import BITS_OF, FLOAT
from specjax.drafters import lm, plain
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import devices as layout
from specjax.models import linear, transformer, uniform, variants
from specjax.models.config import TransformerConfig
from specjax.models.devices import DeviceForm
from specjax.models.sharding import Placement
from specjax.models.transformer import Model
from specjax.stats.roofline import Chip, Pass, Step
from specjax.types import Drafter, Params, Rule, Spec

DRAFTING = 'chain', 'tree', 'pool'
READ_AT_ONCE = 512  # tokens of a prompt


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Everything that decides a program, but its name and its depth.

  Attributes:
    asked: the settings; slots are as many as a cache has.
    target: sizes of the target.
    draft: sizes of the draft.
    placement: on a mesh of devices, of one or more.
    form: what differs by the platform.
  """

  asked: Compiled
  target: TransformerConfig
  draft: TransformerConfig
  placement: Placement
  form: DeviceForm

  def asking(self, **changes) -> 'Shapes':
    """Returns the shapes of other settings."""
    asked = dataclasses.replace(self.asked, **changes)
    return dataclasses.replace(self, asked=asked)

  def at_depth(self, layers: Sequence[int]) -> 'Shapes':
    """Returns the shapes with the first layers of target and draft alone."""
    target, draft = map(_first, (self.target, self.draft), layers)
    return dataclasses.replace(self, target=target, draft=draft)

  def unwindowed(self) -> 'Shapes':
    """Returns the shapes where every layer reads all slots of its cache."""
    target, draft = (
      dataclasses.replace(config, windows=(), narrowed=None)
      for config in (self.target, self.draft)
    )
    whole = self.asking(used=self.asked.slots)
    return dataclasses.replace(whole, target=target, draft=draft)

  def passes(self, name: str) -> int:
    """Returns the passes of the draft in a step of a program."""
    depth = len(self.asked.widths) if name == 'tree' else self.asked.gamma
    return depth if name in DRAFTING else 0

  def widest(self, name: str) -> int:
    """Returns the most children that a node of a program's draft has."""
    return max(self.asked.widths) if name == 'tree' else 1

  @property
  def pair(self) -> tuple[tuple[TransformerConfig, Placement], ...]:
    """Sizes and place of the target, and of the draft."""
    draft = self.draft, self.placement.for_draft
    return (self.target, self.placement), draft

  def weights(self, model: Model) -> Any:
    """Shapes of a model's parameters."""
    shapes = memory.shapes_of(model, self.asked.dtype)
    if self.asked.weights == FLOAT:
      return shapes
    tied, bits = model.config.tied_embeddings, BITS_OF[self.asked.weights]
    return jax.eval_shape(lambda w: linear.quantize(w, tied, bits), shapes)

  def pass_of(self, place: int, tokens: float) -> Pass:
    """Returns a pass of the target (0) or the draft (1) on each device.

    Args:
      place: in `pair`.
      tokens: of each row that are fed.
    """
    config, placement = self.pair[place]
    asked = self.asked

    def reads(config: TransformerConfig) -> np.ndarray:
      model = transformer.build(config)
      shapes = self.weights(model)
      fed = rows * tokens
      read = memory.bytes_per_token(model, shapes, asked.used, fed)
      # A token is multiplied with the experts that it chose alone.
      own, _ = memory.bytes_per_token(model, shapes, asked.used)
      return np.array([*read, own])

    mesh = placement.mesh.shape
    rows = asked.batch // mesh['data']
    weights, cache, own = map(float, deepened(config, reads))
    ways = mesh['model'] if placement.split else 1
    heads = ways if config.num_kv_heads % ways == 0 else 1
    bits = BITS_OF.get(asked.weights, 8 * jnp.dtype(asked.dtype).itemsize)
    numbers = own * 8 / bits
    return Pass(
      weights / ways + rows * cache / heads, numbers / ways, rows * tokens
    )

  def least(self, name: str, chip: Chip) -> Step:
    """Returns the least time of a step that a chip could take."""
    passes, nodes = self.passes(name), self.asked.gamma
    if name == 'tree':
      nodes = len(trees.branching(self.asked.widths))
    fed = READ_AT_ONCE if name == 'prefill' else nodes * bool(passes) + 1
    drafted = max(1, nodes / passes) if passes else 0
    draft = passes and passes * self.pass_of(1, drafted).seconds(chip)
    return Step(draft, self.pass_of(0, fed).seconds(chip))

  def held(self) -> tuple[float, ...]:
    """Bytes of weights and caches that a device holds, of target and draft."""
    asked = self.asked

    def size(config: TransformerConfig, place: Placement) -> int:
      model = transformer.build(config)
      cache = memory.of_cache(
        model, place, asked.batch, asked.slots, 0, asked.dtype
      )
      if asked.weights == FLOAT:
        return cache + memory.of_parameters(config, place, asked.dtype)
      return cache + memory.size_of(self.weights(model))

    return tuple(
      deepened(config, functools.partial(size, place=place))
      for config, place in self.pair
    )


def _first(config: TransformerConfig, layers: int) -> TransformerConfig:
  windows = config.windows[:layers]
  return dataclasses.replace(config, num_layers=layers, windows=windows)


def small_depths(config: TransformerConfig) -> tuple[int, int]:
  """Returns two depths that give the cost of every further layer.

  Kinds of layers repeat: two depths differ by whole periods of them. Both are
  the whole depth of a model that is no deeper.
  """
  count = config.num_layers
  kinds = [
    (
      config.reach(i),
      config.is_sparse(i),
      config.turns(i),
      config.has_state(i),
      caches.heads(config, i),
      config.at(i).mlp_width,
    )
    for i in range(count)
  ]
  periods = (n for n in range(1, count) if kinds[n:] == kinds[:-n])
  period = next(periods, count)
  step = 2 if period == 1 else period
  return min(step, count), min(2 * step, count)


def deepened(config: TransformerConfig, measure: Callable) -> Any:
  """Returns a measure of a model that grows by the same with each layer.

  Args:
    config: sizes of the model.
    measure: takes the sizes of a model that is less deep.
  """
  near, far = small_depths(config)
  first = measure(_first(config, near))
  if far == near:
    return first
  more = (config.num_layers - near) / (far - near)
  return first + (measure(_first(config, far)) - first) * more


def _drafting(x: Shapes, name: str, draft: Model) -> tuple[Drafter, Rule]:
  if name == 'tree':
    return lm.make_tree(
      draft, trees.branching(x.asked.widths)
    ), verify.recursive
  if name in DRAFTING:
    return lm.make(draft, x.asked.gamma), verify.token
  return plain.make(), verify.token


def lower(x: Shapes, name: str) -> Any:
  """Returns a program as `jax.jit` lowers it; its name is one above."""
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

  bare = [
    variants.for_device(transformer.build(config), x.form)
    for config, _ in x.pair
  ]
  if x.asked.exact == 'bits':
    bare[0] = uniform.uniform(bare[0])
  bare[1] = variants.resize_head(bare[1], x.target.vocab_size)
  models = bare
  if split:
    places = [place for _, place in x.pair]
    models = [*map(variants.place, bare, places)]
  held = [
    layout.lay_weights(
      x.form, put(x.weights(model), transformer.shardings(config, place))
    )
    for model, (config, place) in zip(bare, x.pair, strict=True)
  ]
  params = Params(held[0], held[1] if name in DRAFTING else None)
  drafter, rule = _drafting(x, name, models[1])
  spec = Spec(models[0], drafter, rule)
  # A placed target would put prompts onto devices that are not there.
  begun = dataclasses.replace(spec, target=bare[0])
  state = jax.eval_shape(lambda params: _begin(x, name, begun, params), params)
  state = put(state, x.placement.of_state(state))
  if not split:
    state = layout.lay_caches(x.form, state)
  if name == 'prefill':
    rows = state.tokens, state.length
    return generate.read_prompts.lower(
      params.target, *rows, None, target=models[0], taps=()
    )
  steps = put(jax.ShapeDtypeStruct((), jnp.int32))
  end = generate.StopWhen(steps, steps) if name == 'pool' else steps
  loop = generate.loop_for(spec, state)
  return loop.lower(params, state, end, spec=spec)


def _begin(x: Shapes, name: str, spec: Spec, params: Params) -> Any:
  """The state of rows behind prompts of one token."""
  stages = x.asked.sampling
  if name == 'pool':  # Every request may ask for these.
    top_k, top_p = stages.top_k or 0, stages.top_p or 1.0
    stages = dataclasses.replace(stages, top_k=top_k, top_p=top_p)
  return generate.start(
    params,
    [[0]] * x.asked.batch,
    spec=spec,
    new_tokens=1,
    key=generate.row_keys(0, range(x.asked.batch)),
    values=sampling_stages.values(
      stages, spec, x.asked.batch, x.asked.temperature
    ),
    slots=x.asked.slots,
  )
