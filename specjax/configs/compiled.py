"""A target of 8B parameters with a draft of 1B, compiled for an H100.

  specjax compiled --device=v5e:2x2 --mesh.model=4

Two or three minutes on one core, and nothing is read: `--target.path` and
`--draft.path` name other models, of which `config.json` is enough.
"""

from specjax.bench.config import Compiled


def get_config() -> Compiled:
  return Compiled()
