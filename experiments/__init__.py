"""The questions of this repository, and every program of `specjax`.

`python -m experiments.run` is `specjax run`, and so for every other command.
"""

import importlib.abc
import importlib.util
import os
import pathlib
import sys

from specjax.cli import COMMANDS

# Without torch transformers says at its import that models are missing; only
# its tokenizers are used.
os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')


class _Commands(importlib.abc.MetaPathFinder):
  """Finds one file for all commands, each of which runs by its own name."""

  def find_spec(self, name, path=None, target=None):
    del path, target  # Unused.
    package, _, command = name.rpartition('.')
    if package != __name__ or command not in COMMANDS:
      return None
    file = pathlib.Path(__file__).with_name('commands.py')
    return importlib.util.spec_from_file_location(name, file)


sys.meta_path.append(_Commands())
