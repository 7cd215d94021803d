"""Distillation of the embedded draft of width 128: divergences and data.

The shipped config `distill`, which `specjax` finds by name.
"""

from specjax.configs.distill import get_config as get_config
