"""Trains what a recipe describes.

The same as `specjax train`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('train')
