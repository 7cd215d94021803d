"""Methods of 2024 and 2025 beside those they are compared with.

The shipped config `methods`, which `specjax` finds by name.
"""

from specjax.configs.methods import get_config as get_config
