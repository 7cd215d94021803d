"""Exactness of every rule, drafter kind and pipeline setting, as a table.

The shipped config `certify`, which `specjax` finds by name.
"""

from specjax.configs.certify import get_config as get_config
