"""Describes a pair of models, and lists what would be refused, before loading.

The same as `specjax inspect`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('inspect')
