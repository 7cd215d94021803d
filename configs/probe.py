"""Are the shipped heads read as they were trained?

The shipped config `probe`, which `specjax` finds by name.
"""

from specjax.configs.probe import get_config as get_config
