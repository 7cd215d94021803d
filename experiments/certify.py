"""Proves or refutes that the output has the target's distribution.

The same as `specjax certify`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('certify')
