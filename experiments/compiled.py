"""Estimates the speed of a pair on a device that is not there.

The same as `specjax compiled`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('compiled')
