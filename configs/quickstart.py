"""The main job: the embedded pair on held-out text, every drafter.

The installed `specjax/configs/quickstart.py`.
"""

from specjax.configs.quickstart import get_config as get_config
