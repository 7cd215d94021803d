"""Facts that are read of config files, stored when torch agreed with them.

`family_facts.json` has each tiny configuration by its name: the fields of its
file under '', and for each change of the file the fields that differ then, or
how an error begins. Changes that are JSON are put there by hand. `python -m
tests.support.family_facts` makes the rest anew: only once
`test_families_parity` has passed, which needs torch.
"""

import dataclasses
import hashlib
import json
import math
import pathlib

import numpy as np

from specjax.checkpoints.families import conversion, values
from specjax.models.config import TransformerConfig
from tests.support import tiny_families

FILE = pathlib.Path(__file__).with_suffix('.json')
KNOWN = json.loads(FILE.read_text())
USUAL = {x.name: x.default for x in dataclasses.fields(TransformerConfig)}
SCALED = {'factor': 2.0, 'rope_theta': 9.0}


def told(x):
  """Returns a value of a field as JSON has it."""
  if isinstance(x, tuple):
    return [*map(told, x)]
  if dataclasses.is_dataclass(x):
    return {type(x).__name__: {k: told(v) for k, v in vars(x).items()}}
  if isinstance(x, float):
    return float(f'{x:.12g}')
  return values.name_of(x) if callable(x) else x


def digest(family, config):
  """Returns a digest of all tensors, where parameters count their entries."""
  shapes, tensors, made = conversion.shape_params(config), {}, hashlib.sha256()
  sources = conversion.fill(family.table(config), shapes)
  for begin, (path, (split, names)) in enumerate(sorted(sources.items())):
    x = np.arange(math.prod(shapes[path].shape), dtype='<i4') + 4096 * begin
    cut = split.cut(x.reshape(shapes[path].shape), len(names))
    tensors |= zip(names, cut, strict=True)
  for name, x in sorted(tensors.items()):
    made.update(f'{name} {x.shape} '.encode() + x.tobytes())
  more = 'prefix', 'ignored', 'unread', 'copies', 'spare_head', 'harmless'
  return [made.hexdigest()[:16], *(told(getattr(family, x)) for x in more)]


def facts(name):
  """Returns what is read of an entry, and what each change of it changes."""
  plain = tiny_families.attributes(name)
  text = plain.get('text_config', plain)

  def put(new):
    return plain | {'text_config': new} if text is not plain else new

  given = {'': plain}
  for x in tiny_families.SWITCHES[name]:
    given[f'with {x}'] = tiny_families.attributes(name, **x)
  for kind in ('yarn', 'mrope'):
    given[kind] = put(text | {'rope_parameters': SCALED | {'rope_type': kind}})
  for x in text:
    given[f'no {x}'] = put({k: v for k, v in text.items() if k != x})
  for x in KNOWN.get(name, ()):
    if x[:1] == '{':
      given[x] = put(text | json.loads(x))
  known, made = USUAL, {}
  for change, attributes in given.items():
    try:
      family, config = conversion.read_attributes(attributes)
    except ValueError as error:
      made[change] = str(error)[:99]
      continue
    own = {k: told(x) for k, x in vars(config).items() if x != known[k]}
    if own or not change.startswith('no '):
      made[change] = own
    if not change:
      known, made['tensors'] = vars(config), digest(family, config)
  return json.loads(json.dumps(made))


if __name__ == '__main__':
  for name in tiny_families.OPTIONS:
    lines = (
      f'{json.dumps(k)}: {json.dumps(x)}' for k, x in facts(name).items()
    )
    KNOWN[name] = '{\n' + ',\n'.join(lines) + '\n}'
  content = ',\n'.join(f'"{name}": {x}' for name, x in KNOWN.items())
  FILE.write_text('{\n' + content + '\n}\n')
