"""Your own target, with your own draft or none.

The installed `specjax/configs/pair.py`.
"""

from specjax.configs.pair import get_config as get_config
