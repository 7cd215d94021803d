"""Runs the command of `specjax` that this module is found as."""

from specjax.cli import main

if __name__ == '__main__':
  main(__spec__.name.rpartition('.')[2])
