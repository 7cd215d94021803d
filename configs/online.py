"""A draft that was never distilled learns while it drafts.

The shipped config `online`, which `specjax` finds by name.
"""

from specjax.configs.online import get_config as get_config
