"""Types of transformers whose default configuration is read.

  python -m experiments.types_read

Takes every type with a class for causal language models, and those that see
images and have a text, each with the configuration that transformers makes
without arguments. Needs the extra `parity`; no weights are made.

The last line is one JSON document: the version, the number of types, and the
names of those that are read.
"""

import importlib.util
import json

import transformers
from huggingface_hub.errors import StrictDataclassError

from specjax.checkpoints.families import conversion, wrappers
from specjax.cli import command
from specjax.errors import install, need


def reads(kind: str) -> bool:
  """Returns true if the default configuration of a type is read."""
  try:
    attributes = transformers.CONFIG_MAPPING[kind]().to_dict()
    conversion.read_attributes(attributes)
  except (ValueError, StrictDataclassError):  # One has no default that holds.
    return False
  return True


def main() -> dict:
  """Returns the version of transformers, its types and those that are read."""
  from transformers.models.auto import modeling_auto  # Which imports torch.

  decoders = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
  types = sorted(decoders | set(wrappers.WRAPPERS))
  return {
    'transformers': transformers.__version__,
    'types': len(types),
    'read': [kind for kind in types if reads(kind)],
  }


def _from_command_line() -> None:
  command.Parser(__doc__).parse_args()
  need(
    importlib.util.find_spec('torch') is not None,
    f'transformers lists its types with torch alone: {install("parity")}',
  )
  found = main()
  print(f'{len(found["read"])} of {found["types"]} types are read')
  print(json.dumps(found))


if __name__ == '__main__':
  command.guard(_from_command_line)
