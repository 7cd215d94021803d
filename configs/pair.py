"""Your own target, with your own draft or none.

The shipped config `pair`, which `specjax` finds by name.
"""

from specjax.configs.pair import get_config as get_config
