"""Rows of the rotary positions, whose attributes moved between versions.

transformers 4 wrote the base beside `rope_scaling`; 5 writes all of it inside
`rope_parameters`. Readers know one place or the other, and fall back silently
to a default where they find nothing: so saving writes both.
"""

import math
from typing import Any

from specjax.checkpoints.families.table import Row
from specjax.checkpoints.families.values import (
  flag,
  number,
  numbers,
  size,
  take,
)
from specjax.models import rotary


def _original(inner, longest):
  return take(inner, _NAMES['original'], size, longest)


def _read_llama3(inner, longest):
  numbers_of = (
    take(inner, _NAMES[n], number) for n in ('factor', 'low', 'high')
  )
  return rotary.Llama3(*numbers_of, _original(inner, longest))


def _read_yarn(inner, longest):
  original = _original(inner, longest)
  factor = take(inner, 'factor', number, longest / original)
  scales = [
    take(inner, name, number, 0.0) for name in ('mscale', 'mscale_all_dim')
  ]

  def grow(scale):
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

  usual = grow(scales[0]) / grow(scales[1]) if all(scales) else grow(1.0)
  return rotary.Yarn(
    factor,
    original,
    take(inner, 'beta_fast', number, 32.0),
    take(inner, 'beta_slow', number, 1.0),
    take(inner, 'attention_factor', number, usual),
    take(inner, 'truncate', flag, True),
  )


def _read_long(inner, longest):
  original = _original(inner, longest)
  factor = take(inner, 'factor', number, longest / original)
  usual = 1.0
  if factor > 1:
    usual = math.sqrt(1 + math.log(factor) / math.log(original))
  return rotary.LongRope(
    take(inner, 'short_factor', numbers),
    take(inner, 'long_factor', numbers),
    original,
    longest,
    take(inner, 'attention_factor', number, usual),
  )


# Attributes, by the fields of scalings that they set; saving writes them.
_NAMES = {
  'factor': 'factor',
  'low': 'low_freq_factor',
  'high': 'high_freq_factor',
  'original': 'original_max_position_embeddings',
  'fast': 'beta_fast',
  'slow': 'beta_slow',
  'amplitude': 'attention_factor',
  'truncate': 'truncate',
  'short': 'short_factor',
  'long': 'long_factor',
  'part': 'partial_rotary_factor',
}
# The class of each type, and how it is read from the parameters and the longest
# sequence of the checkpoint.
SCALINGS = {
  'default': (type(None), lambda inner, longest: None),
  'linear': (
    rotary.Linear,
    lambda inner, _: rotary.Linear(take(inner, 'factor', number)),
  ),
  'dynamic': (
    rotary.Dynamic,
    lambda inner, longest: rotary.Dynamic(
      take(inner, 'factor', number), longest
    ),
  ),
  'llama3': (rotary.Llama3, _read_llama3),
  'yarn': (rotary.Yarn, _read_yarn),
  'longrope': (rotary.LongRope, _read_long),
  'su': (rotary.LongRope, _read_long),  # In the first files of Phi-3.
  'proportional': (
    rotary.Proportional,
    lambda inner, _: rotary.Proportional(
      take(inner, 'partial_rotary_factor', number, 1.0),
      take(inner, 'factor', number, 1.0),
    ),
  ),
  # Several axes, on which a text has the same positions.
  'mrope': (type(None), lambda inner, longest: None),
}
OF_TEXTS = tuple(x for x in SCALINGS if x not in ('mrope', 'proportional'))


def write_scaling(scaling: rotary.Scaling | None) -> dict[str, Any]:
  """Parameters of a scaling, its type among them."""
  kinds = [k for k, (own, _) in SCALINGS.items() if type(scaling) is own]
  if not kinds:
    raise ValueError(f'rope_scaling {scaling} has no name in a checkpoint')
  fields = {} if scaling is None else vars(scaling)
  return {'rope_type': kinds[0]} | {
    _NAMES[name]: list(x) if isinstance(x, tuple) else x
    for name, x in fields.items()
    if name in _NAMES
  }


def read_scaling(
  inner: dict[str, Any],
  longest: int,
  allowed: tuple[str, ...],
  theta: float,
  dim: int,
) -> rotary.Scaling | None:
  """Takes a scaling out of its parameters.

  Args:
    inner: what is left of them.
    longest: sequence of the checkpoint.
    allowed: types.
    theta: the base.
    dim: entries of a head that are turned.

  Raises:
    ValueError: the type is not allowed, or there are no such frequencies.
  """
  given = [inner.pop(name, None) for name in ('rope_type', 'type')]
  kinds = sorted({str(x) for x in given if x is not None}) or ['default']
  if kinds == ['default', 'mrope']:
    kinds = ['mrope']
  if 'mrope' in allowed:
    for name in ('mrope_section', 'mrope_interleaved'):
      inner.pop(name, None)
  if len(kinds) > 1 or kinds[0] not in allowed:
    listed = ' and '.join(map(repr, kinds))
    raise ValueError(
      f'unsupported config attribute rope_type = {listed}; expected one of '
      f'{", ".join(allowed)}'
    )
  (kind,) = kinds
  try:
    scaling = SCALINGS[kind][1](inner, longest)
    if scaling is not None:
      scaling(theta, dim, longest)
  except (ValueError, ArithmeticError) as error:
    raise ValueError(f'rope_type = {kind!r}: {error}') from None
  return scaling


def merge(rest: dict[str, Any], outer: tuple[str, ...]) -> dict[str, Any]:
  """Takes all rotary attributes out of `rest`, as one dictionary.

  Args:
    rest: attributes that are left.
    outer: those that may also stand beside the inner ones.

  Raises:
    ValueError: two places say different things.
  """
  merged: dict[str, Any] = {}
  for place in (None, 'rope_scaling', 'rope_parameters'):
    if place is None:
      attributes = {name: rest.pop(name, None) for name in outer}
    else:
      attributes = rest.pop(place, None)
      if attributes is None:
        continue
    if not isinstance(attributes, dict):
      raise ValueError(f'{place} = {attributes!r} must be an object or null')
    for name, value in attributes.items():
      known = merged.get(name)
      if known is not None and value is not None and known != value:
        raise ValueError(f'{name} = {known!r} but {place}.{name} = {value!r}')
      merged[name] = known if value is None else value
  return {name: value for name, value in merged.items() if value is not None}


def refuse(inner: dict[str, Any]) -> None:
  """Raises a ValueError if rotary attributes are left, which are unknown."""
  if inner:
    listed = ', '.join(f'{name} = {inner[name]!r}' for name in sorted(inner))
    raise ValueError(f'unsupported config attribute rope_parameters: {listed}')


def rope_row(
  base: float = 1e4,
  allowed: tuple[str, ...] = OF_TEXTS,
  part: float | None = None,
  original: int | None = None,
  old_names: tuple[str, str] = ('rope_theta', 'partial_rotary_factor'),
) -> Row:
  """Row of the rotary positions.

  Args:
    base: its default.
    allowed: types of scaling.
    part: default of the share of a head that is turned; None: it is all, and
      no attribute.
    original: default of `original_max_position_embeddings` where the family
      has it beside `max_position_embeddings`.
    old_names: of the base and the share outside of `rope_parameters`.
  """
  beside = ('original_max_position_embeddings',) if original else ()

  def read(rest, known):
    names = 'rope_theta', 'partial_rotary_factor'
    renamed = dict(zip(old_names, names, strict=True))
    for old, name in renamed.items():
      if old != name and old in rest:
        rest[name] = rest.pop(old)
    inner = merge(rest, (*renamed.values(), *beside))
    longest = known['max_positions']
    theta = take(inner, 'rope_theta', number, base)
    share = take(inner, 'partial_rotary_factor', number, part or 1.0)
    turned = int(known['head_dim'] * share)
    if share > 1 or turned < 1 or (part is None and share != 1):
      raise ValueError(
        f'unsupported config attribute partial_rotary_factor = {share!r}; '
        f'expected {"1" if part is None else "a number up to 1"}'
      )
    if original:
      inner.setdefault('original_max_position_embeddings', original)
    scaling = read_scaling(inner, longest, allowed, theta, turned)
    if scaling is None and original:
      inner.pop('original_max_position_embeddings')
    refuse(inner)
    return {
      'rope_theta': theta,
      'rope_scaling': scaling,
      'rotary_dim': None if share == 1 else turned,
    }

  return read


def two_bases_row(
  base: float,
  local_base: float,
  local_name: str | None = None,
  allowed: tuple[str, ...] = OF_TEXTS,
) -> Row:
  """Row of layers with a window that have a base of their own, unscaled.

  Args:
    base: its default.
    local_base: default of the base in layers with a window.
    local_name: of this base outside of `rope_parameters`.
    allowed: types of scaling.
  """

  def read(rest, known):
    nested = rest.pop('rope_parameters', None) or {}
    if not isinstance(nested, dict):
      raise ValueError(
        f'rope_parameters = {nested!r} must be an object or null'
      )
    outer = {
      'rope_theta': rest.pop('rope_theta', None),
      'rope_scaling': rest.pop('rope_scaling', None),
      'rope_parameters': nested.get('full_attention'),
    }
    local = {'rope_parameters': nested.get('sliding_attention')}
    if local_name is not None:
      local['rope_theta'] = rest.pop(local_name, None)
    wide, near = (merge(x, ('rope_theta',)) for x in (outer, local))
    theta = take(wide, 'rope_theta', number, base)
    local_theta = take(near, 'rope_theta', number, local_base)
    longest, dim = known['max_positions'], known['head_dim']
    fields = {
      'rope_theta': theta,
      'local_rope_theta': local_theta,
      'rope_scaling': read_scaling(wide, longest, allowed, theta, dim),
    }
    read_scaling(near, longest, ('default',), local_theta, dim)
    others = {'full_attention', 'sliding_attention'}
    refuse(wide | near | {k: nested[k] for k in nested.keys() - others})
    return fields

  return read
