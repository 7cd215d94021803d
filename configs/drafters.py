"""Every drafter beside every other, on the embedded target.

The shipped config `drafters`, which `specjax` finds by name.
"""

from specjax.configs.drafters import get_config as get_config
