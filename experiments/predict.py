"""Which draft should I use, and how long should it draft?

The same as `specjax predict`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('predict')
