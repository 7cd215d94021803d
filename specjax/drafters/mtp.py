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
import functools
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from specjax import checkpoints
from specjax.arguments import check_target
from specjax.checkpoints import loading, precision, quantization
from specjax.checkpoints.families import conversion
from specjax.checkpoints.families.table import LINEAR, Family, Tensors, scale
from specjax.checkpoints.files import CONFIG, CheckpointError, read_json
from specjax.drafters import eagle
from specjax.drafters.eagle.module import Head, Sizes, near, sizes_of
from specjax.drafters.heads import files, formats, modules, overrides
from specjax.drafters.heads.formats import Found
from specjax.drafters.heads.modules import Read
from specjax.drafters.shapes import shape
from specjax.models.config import TransformerConfig, narrowed_to
from specjax.models.transformer import Model
from specjax.types import LoadedDrafter, Target

KIND = 'mtp'
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


def _table(layout: Layout, head: Head, family: Family) -> formats.Table:
  """Returns where the parameters of a head are."""
  layer = formats.rename(
    family.table(head.config),
    lambda name: layout.layer + name.removeprefix('model.layers.{}.'),
  )
  return {
    **layer,
    **scale(layout.token, 'norm_token'),
    **scale(layout.feature, 'norm_feature'),
    **scale(layout.last, 'norm'),
    'join/w': Tensors(LINEAR, (f'{layout.join}.weight',)),
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


def _open(target: Target, weights: bool) -> tuple[Found, Head]:
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
  family, _ = conversion.read_attributes(attributes)
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
  found = Found(
    f'next-token layer of {layout.name}',
    dataclasses.asdict(head.sizes),
    _table(layout, head, family.of(own)),
    model.config.width,
    model.config.vocab_size,
    unused=(*family.ignored, *(layout.layer + name for name in _COPIES)),
    directory=directory,
  )
  return formats.match(found, own, head), head


def describe_head(target: Target) -> files.Description:
  """Describes the next-token layer of a target, without its weights.

  Raises:
    CheckpointError: the target has none, or it is damaged.
  """
  found, head = _open(target, weights=False)
  return files.Description(
    KIND, found.format, *found.measure(), head.sizes.taps
  )


def _read(
  target: Target,
  path: str,
  read_as: Mapping[str, Any] = overrides.AS_STORED,
  dtype: str = '',
) -> Read:
  del path  # It is the target's.
  overrides.check(read_as, _OPTIONS)
  dtype = precision.check_dtype(dtype or target.dtype)
  found, head = _open(target, weights=True)

  def make(config: Mapping[str, Any]) -> Head:
    return dataclasses.replace(head, sizes=sizes_of(config))

  params = formats.read(found, dtype)
  return modules.interpret(make, found.config, params, '', read_as)


def load(
  target: Target,
  path: Literal[''] = '',
  *,
  window: int = 0,
  sinks: int = 0,
  **options: Any,
) -> LoadedDrafter:
  """The drafter of the next-token layer of a target.

  Args:
    target: what is drafted for; the layer is in its directory.
    path: none.
    window: pairs that it sees of a text at most; 0: all. See
      `models.config.Narrowed`.
    sinks: first pairs that it sees besides.
    **options: of `heads.modules.Options`, `heads.frequencies.Reduction` and
      `shapes.shape.Shape`; `read_as` has values of `norms`, `feature_first`,
      `final_norm` or `taps` of `eagle.module.Sizes`.

  Raises:
    ValueError: the target has no next-token layer, or it is damaged, or there
      is no such window.
  """
  check_target(target)
  narrowed = narrowed_to(window, sinks, target.model.config.max_positions)
  read, options = modules.load_head(_read, target, path, options)
  head = dataclasses.replace(read.head, narrowed=narrowed)
  return shape.load(target, eagle.walk(head), options, read.params)


alternatives = functools.partial(
  modules.alternatives,
  _read,
  lambda read, target: near(
    read.head.sizes, read.stored.sizes, target.num_layers
  ),
)
