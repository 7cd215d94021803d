"""Which draft of the embedded pair, and how long it should draft.

The shipped config `predict`, which `specjax` finds by name.
"""

from specjax.configs.predict import get_config as get_config
