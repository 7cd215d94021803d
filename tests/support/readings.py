"""A drafter whose weights can be read in two ways: the path names both."""

import os

from specjax.drafters import lm


def load(target, path, member='draft', **options):
  """The language model of that name in a folder."""
  return lm.load(target, os.path.join(path, member), **options)


def alternatives(target, path, member='draft', **options):
  del target, path, options  # Unused.
  other = 'target' if member == 'draft' else 'draft'
  return {f'the weights of the {other}': {'member': other}}
