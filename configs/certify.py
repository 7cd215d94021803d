"""Exactness of every rule, drafter kind and pipeline setting, as a table.

  python -m experiments.certify --config configs/certify.py

Nothing is downloaded or read; `--config.quick` runs fewer compiled loops and
every enumeration all the same.
"""

from experiments.settings import Certificate


def get_config() -> Certificate:
  return Certificate()
