"""How often tokens occur: a drafter by itself, and what a small head keeps.

The shipped config `counts`, which `specjax` finds by name.
"""

from specjax.configs.counts import get_config as get_config
