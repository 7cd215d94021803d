"""Continues a prompt and shows where every token came from.

The same as `specjax generate`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('generate')
