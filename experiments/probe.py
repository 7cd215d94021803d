"""Is this head loaded as it was trained? Its near alternatives say so.

The same as `specjax probe`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('probe')
