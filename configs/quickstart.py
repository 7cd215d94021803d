"""The main job: the embedded pair on held-out text, every drafter.

The shipped config `quickstart`, which `specjax` finds by name.
"""

from specjax.configs.quickstart import get_config as get_config
