"""Adapters of the samplers of other systems, for `specjax certify --foreign`.

Each calls the function of an installed package with coins of ours. Nothing of
these packages is part of this repository. docs/foreign.md has the verdicts, and
how each package was installed.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from unittest import mock


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Makes modules of packages, whose names are mocks."""

  def __init__(self, packages: tuple[str, ...]):
    self.packages = packages

  def find_spec(self, name, path=None, target=None):
    del path, target  # Unused.
    if f'{name}.'.startswith(tuple(f'{x}.' for x in self.packages)):
      return importlib.machinery.ModuleSpec(name, self, is_package=True)
    return None

  def exec_module(self, module):
    module.__getattr__ = lambda name: mock.MagicMock(name=name)


def stub(*packages: str) -> None:
  """Puts mocks in the place of packages that a tried function does not call."""
  sys.meta_path.insert(0, _Stubs(packages))


def folder(package: str) -> pathlib.Path:
  """Returns the folder of an installed package, which is not imported."""
  found = importlib.util.find_spec(package)
  if found is None:
    raise ImportError(f'{package} is not installed')
  return pathlib.Path(found.submodule_search_locations[0])


def load(path: pathlib.Path):
  """Returns one module of a package, without the package."""
  spec = importlib.util.spec_from_file_location(f'foreign_{path.stem}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
