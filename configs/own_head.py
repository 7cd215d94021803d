"""A head for a target of your own, trained on conversations of your own.

The shipped config `own_head`, which `specjax` finds by name.
"""

from specjax.configs.own_head import get_config as get_config
