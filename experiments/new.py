"""Begins a drafter, a rule or a policy of your own.

The same as `specjax new`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('new')
