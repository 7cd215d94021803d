"""Whether greedy texts of the embedded pair are those of plain decoding.

The installed `specjax/configs/parity.py`.
"""

from specjax.configs.parity import get_config as get_config
