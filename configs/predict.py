"""Which draft of the embedded pair, and how long it should draft.

The installed `specjax/configs/predict.py`.
"""

from specjax.configs.predict import get_config as get_config
