"""Whether greedy texts of the embedded pair are those of plain decoding.

The shipped config `parity`, which `specjax` finds by name.
"""

from specjax.configs.parity import get_config as get_config
