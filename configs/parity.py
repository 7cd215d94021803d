"""Greedy texts of the embedded pair beside those of plain decoding.

The shipped config `parity`, which `specjax` finds by name.
"""

from specjax.configs.parity import get_config as get_config
