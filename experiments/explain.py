"""Why is it fast, or slow? Where a step's time goes, and what would help.

The same as `specjax explain`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('explain')
