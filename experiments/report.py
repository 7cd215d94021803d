"""Makes the page of a run's results again.

The same as `specjax report`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('report')
