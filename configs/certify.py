"""Exactness of every rule, drafter kind and pipeline setting, as a table.

The installed `specjax/configs/certify.py`.
"""

from specjax.configs.certify import get_config as get_config
