"""Compares two runs: which cells differ beyond chance.

The same as `specjax compare`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('compare')
