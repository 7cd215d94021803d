"""Runs the console command: `python -m specjax run quickstart`."""

from specjax.cli import main

main()
