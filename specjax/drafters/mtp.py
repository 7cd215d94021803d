"""Next-token layers: one more layer, in the target's own checkpoint.

Trained with the target as multi-token prediction, MTP (Gloeckle et al.,
arXiv:2404.19737; DeepSeek-V3, arXiv:2412.19437, section 2.2). At place i it
reads the target's last feature of token i and token i + 1:

  norm(layer(join[norm(token), norm(feature)]))

What it says is read by the target's head. It stands for the target's feature
while more is drafted. So it is an EAGLE head of version 1 with more norms,
whose layer is one of the target's that attends.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

import flax.traverse_util

from specjax import checkpoints
from specjax.arguments import check_target
from specjax.checkpoints import loading, parameters, precision, quantization
from specjax.checkpoints.families import FAMILIES, conversion
from specjax.checkpoints.families.table import KEEP, LINEAR, Family, Tensors
from specjax.checkpoints.files import CONFIG, CheckpointError, read_json
from specjax.drafters import eagle
from specjax.drafters.eagle.module import Head, Sizes, near, sizes_of
from specjax.drafters.heads import files, formats, modules, overrides
from specjax.drafters.heads.files import Loaded
from specjax.drafters.heads.formats import Found
from specjax.drafters.heads.frequencies import Reduction
from specjax.drafters.heads.modules import Read
from specjax.drafters.shapes import shape
from specjax.models.config import TransformerConfig, narrowed_to
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

KIND = 'mtp'
_LAYER = 'model.layers.0.'  # before names of the first layer, in every family
_OPTIONS = ('norms', 'feature_first', 'final_norm', 'taps')


class Layout(NamedTuple):
  """Where a checkpoint has its next-token layer.

  Names are without `.weight`; {} in them is the number of the target's layers.

  Attributes:
    name: of the families that have it.
    prefix: before the names of all of its tensors.
    layer: before the names of its decoder layer's tensors.
    token: the norm of the token's embedding.
    feature: the norm of the target's feature.
    join: the map of both.
    last: the norm of what the layer says.
    feature_first: whether the feature comes before the token in `join`.
    carried: whether what stands for the target's feature is normed.
  """

  name: str
  prefix: str
  layer: str
  token: str
  feature: str
  join: str
  last: str
  feature_first: bool = False
  carried: bool = True

  def of(self, layers: int) -> 'Layout':
    """Returns the layout of a target with so many layers."""
    names: dict[str, Any] = {
      name: x.format(layers)
      for name, x in self._asdict().items()
      if isinstance(x, str)
    }
    return self._replace(**names)


LAYOUTS = (
  Layout(
    'Qwen3-Next and Qwen3.5',
    prefix='mtp.',
    layer='mtp.layers.0.',
    token='mtp.pre_fc_norm_embedding',
    feature='mtp.pre_fc_norm_hidden',
    join='mtp.fc',
    last='mtp.norm',
  ),
  Layout(
    'MiMo',
    prefix='model.mtp_layers.',
    layer='model.mtp_layers.0.',
    token='model.mtp_layers.0.token_layernorm',
    feature='model.mtp_layers.0.hidden_layernorm',
    join='model.mtp_layers.0.input_proj',
    last='model.mtp_layers.0.final_layernorm',
    feature_first=True,
  ),
  Layout(
    'DeepSeek V3 and GLM-4.5',
    prefix='model.layers.{}.',
    layer='model.layers.{}.',
    token='model.layers.{}.enorm',
    feature='model.layers.{}.hnorm',
    join='model.layers.{}.eh_proj',
    last='model.layers.{}.shared_head.norm',
    carried=False,
  ),
)
# Copies of the target's own, which some files have beside the layer.
_COPIES = 'embed_tokens.weight', 'shared_head.head.weight'


def head_of(
  target: Model, sparse: bool = True, layout: Layout = LAYOUTS[0]
) -> Head:
  """Returns the head that a next-token layer of a target is.

  Args:
    target: the target. The layer is as its layers that attend to a whole text.
    sparse: whether the layer has the target's experts, if there are any.
    layout: how the layer is joined.
  """
  config, experts = target.config, target.config.experts
  if experts is not None:
    experts = dataclasses.replace(experts, dense=()) if sparse else None
  layer = dataclasses.replace(
    config,
    num_layers=1,
    windows=(),
    unturned=(),
    recurrent=None,
    experts=experts,
  )
  norms = 'token', 'feature', 'layer', 'last', *['carried'] * layout.carried
  sizes = Sizes(
    1,
    (config.num_layers - 1,),
    config.width,
    feature_first=layout.feature_first,
    norms=norms,
    projects=False,
  )
  return Head(target, sizes, layer=layer)


def _shapes(head: Head) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(head.shapes(), sep='/')


def _sources(layout: Layout, head: Head, family: Family) -> dict[str, Tensors]:
  """Returns the tensors of every parameter of a head."""
  layer = {
    path.replace('layer/', 'layer0/', 1): x
    for path, x in _shapes(head).items()
    if path.startswith('layer/')
  }
  made = {}
  for path, source in conversion.list_sources(
    family, head.config, layer
  ).items():
    names = (layout.layer + x.removeprefix(_LAYER) for x in source.names)
    key = path.replace('layer0/', 'layer/', 1)
    made[key] = source._replace(names=tuple(names))
  own = {
    'norm_token/scale': (KEEP, layout.token),
    'norm_feature/scale': (KEEP, layout.feature),
    'join/w': (LINEAR, layout.join),
    'norm/scale': (KEEP, layout.last),
  }
  return made | {
    key: Tensors(split, (f'{name}.weight',))
    for key, (split, name) in own.items()
  }


def _layout(target: Target, names: Collection[str]) -> Layout:
  layers = target.model.config.num_layers
  for layout in (x.of(layers) for x in LAYOUTS):
    if f'{layout.join}.weight' in names:
      return layout
  known = ', '.join(x.name for x in LAYOUTS)
  raise CheckpointError(
    f'target {target.path or "of other code"} has no next-token layer, as '
    f'{known} have: choose another drafter than mtp, such as lm or ngram'
  )


class _Files(NamedTuple):
  """The next-token layer of a target: what it is, and its open tensors."""

  found: Found
  head: Head
  sources: dict[str, Tensors]
  tensors: dict[str, Any]


def _open(target: Target, weights: bool) -> _Files:
  """Finds the next-token layer of a target.

  Args:
    target: the target.
    weights: fetch what is missing of a model of the Hub.

  Raises:
    CheckpointError: the target has none, or it is damaged.
  """
  model = target.model
  if not target.path or not isinstance(model.config, TransformerConfig):
    _layout(target, ())
  directory = checkpoints.locate(target.path, weights)
  attributes, _ = quantization.split(directory, read_json(directory / CONFIG))
  family, _ = conversion.read_attributes(FAMILIES, attributes)
  tensors = loading.open_named(directory)
  if tensors is None:
    raise CheckpointError(
      f'{directory} lacks the weights of the target, and the Hub cannot be '
      'reached: fetch them with a connection'
    )
  layout = _layout(target, tensors)
  own = {n: x for n, x in tensors.items() if n.startswith(layout.prefix)}
  sparse = f'{layout.layer}mlp.gate_proj.weight' not in own
  head = head_of(model, sparse, layout)
  sources = _sources(layout, head, family.of(own))
  found = Found(
    f'next-token layer of {layout.name}',
    KIND,
    dataclasses.asdict(head.sizes),
    sources,
    model.config.width,
    model.config.vocab_size,
    unused=(*family.ignored, *(layout.layer + name for name in _COPIES)),
    directory=directory,
  )
  formats.check_names(found, own)
  return _Files(formats.measure(found, own), head, sources, own)


def describe_head(target: Target) -> files.Description:
  """Describes the next-token layer of a target, without its weights.

  Raises:
    CheckpointError: the target has none, or it is damaged.
  """
  found, head, sources, tensors = _open(target, weights=False)
  parameters.check_tensors(sources, _shapes(head), tensors)
  return files.Description(
    KIND, found.format, found.parameters, found.dtype, head.sizes.taps
  )


def _read(target: Target, read_as: Mapping[str, Any], dtype: str = '') -> Read:
  overrides.check(read_as, _OPTIONS)
  dtype = precision.check_dtype(dtype or target.dtype)
  found, head, sources, tensors = _open(target, weights=True)
  flat = parameters.read_parameters(sources, _shapes(head), tensors, dtype)
  params = flax.traverse_util.unflatten_dict(flat, sep='/')

  def make(config: Mapping[str, Any]) -> Head:
    made = sizes_of(config)
    files.check_taps(target.model.config.num_layers, made.taps)
    return dataclasses.replace(head, sizes=made)

  changed = overrides.change(
    found.config, read_as, lambda config: make(config).shapes(), params
  )
  loaded = Loaded(found.config, params, '', changed)
  return Read(loaded, make(loaded.config), make(loaded.read_as))


def load(
  target: Target,
  path: Literal[''] = '',
  dtype: str = '',
  bits: int | None = None,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  vocabulary: int = 0,
  frequencies: str = '',
  window: int = 0,
  sinks: int = 0,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of the next-token layer of a target.

  Args:
    target: what is drafted for; the layer is in its directory.
    path: none.
    dtype: of its weights; by default the target's.
    bits: of a weight, 8 or 4, or 0 for floats; by default 8 where the target's
      weights are of few bits.
    read_as: other values of `norms`, `feature_first`, `final_norm` or `taps`
      of `eagle.module.Sizes`.
    vocabulary: tokens that get a logit, see `frequencies.Reduction`; 0: all.
    frequencies: how frequent they are, likewise.
    window: pairs that it sees of a text at most; 0: all. See
      `models.config.Narrowed`.
    sinks: first pairs that it sees besides.
    **options: of `shapes.shape.Shape`.

  Raises:
    ValueError: the target has no next-token layer, or it is damaged, or there
      is no such window.
  """
  del path
  shape.check(target, options)
  positions = target.model.config.max_positions
  narrowed = narrowed_to(window, sinks, positions)
  bits = modules.choose_bits(target, bits)
  kept = Reduction(vocabulary, frequencies).choose(target)
  read = modules.keep_tokens(_read(target, read_as, dtype), target, kept)
  head = dataclasses.replace(read.head, narrowed=narrowed)
  params = modules.lay(read.loaded.params, target, bits)
  return shape.load(target, eagle.walk(head), options, params)


def alternatives(
  target: Target,
  path: Literal[''] = '',
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  **options: Any,
) -> dict[str, dict[str, Any]]:
  """Other options for `load`, one mistake away, by what they change."""
  del path, options  # Unused: they are of the shape.
  check_target(target)
  _, stored, head = _read(target, read_as)
  layers = target.model.config.num_layers
  return overrides.options(near(head.sizes, stored.sizes, layers), read_as)
