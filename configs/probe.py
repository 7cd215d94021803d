"""Are the shipped heads read as they were trained?

The installed `specjax/configs/probe.py`.
"""

from specjax.configs.probe import get_config as get_config
