"""Heads for the embedded target: the recipes of those that ship, and others.

The shipped config `heads`, which `specjax` finds by name.
"""

from specjax.configs.heads import get_config as get_config
