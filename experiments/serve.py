"""A service for clients of the OpenAI API: chats and completions.

The same as `specjax serve`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('serve')
