"""Lets the target answer prompts: what a drafter of its own is trained on.

The same as `specjax answers`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('answers')
