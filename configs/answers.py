"""Answers of a target, for a drafter of its own to learn from.

The shipped config `answers`, which `specjax` finds by name.
"""

from specjax.configs.answers import get_config as get_config
