"""What a pair of models is, and what would be refused, before it is loaded.

The same as `specjax inspect`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('inspect')
