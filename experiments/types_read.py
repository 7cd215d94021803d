"""Types of transformers whose default configuration is read.

  python -m experiments.types_read

Takes every type with a class for causal language models, and those that see
images and have a text, each with the configuration that transformers makes
without arguments. Needs the extra `parity`; no weights are made.

The last line is one JSON document: the version, the count, and the types that
are read.
"""

import json

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto import modeling_auto

from specjax.checkpoints.families import FAMILIES, conversion, wrappers


def reads(kind: str) -> bool:
  """Returns true if the default configuration of a type is read."""
  try:
    attributes = transformers.CONFIG_MAPPING[kind]().to_dict()
    conversion.read_attributes(FAMILIES, attributes)
  except (ValueError, StrictDataclassError):  # One has no default that holds.
    return False
  return True


def main() -> None:
  """Prints the types that are read, and their count."""
  decoders = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
  types = sorted(decoders | set(wrappers.WRAPPERS))
  read = [kind for kind in types if reads(kind)]
  print(f'{len(read)} of {len(types)}: {", ".join(read)}')
  found = {
    'transformers': transformers.__version__,
    'types': len(types),
    'read': read,
  }
  print(json.dumps(found))


if __name__ == '__main__':
  main()
