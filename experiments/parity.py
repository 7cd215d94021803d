"""Explains where greedy texts part: at a tie of the logits, or by a bug.

The same as `specjax parity`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('parity')
