"""Writes a trained EAGLE-3 head in the form that vLLM and SGLang serve.

The same as `specjax export`.
"""

from specjax.cli import main

if __name__ == '__main__':
  main('export')
