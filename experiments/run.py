"""The main job: acceptance and speed of drafters, as a table.

The same as `specjax run`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('run')
