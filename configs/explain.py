"""Why the embedded pair is as fast as it is: draft-128 at gamma 1 to 8.

The shipped config `explain`, which `specjax` finds by name.
"""

from specjax.configs.explain import get_config as get_config
