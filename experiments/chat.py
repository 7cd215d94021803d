"""A conversation in the terminal, with where every token came from.

The same as `specjax chat`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('chat')
