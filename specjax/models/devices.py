"""Forms that a model and its arrays take on each platform of devices.

A form changes results by rounding only. docs/devices.md has the estimates that
these forms were chosen by.
"""

import dataclasses
from collections.abc import Mapping

from specjax.models import cache_attention
from specjax.models.attention import CacheAttention


@dataclasses.dataclass(frozen=True)
class DeviceForm:
  """What differs by the platform that a program is compiled for.

  Attributes:
    rows: fewest rows of a product. A TPU multiplies fewer rows on its vector
      unit, and reads the weights several times as slowly.
    attention: how a cache is read.
  """

  rows: int = 1
  attention: CacheAttention = cache_attention.blocked


CPU = DeviceForm()

# By `jax.Device.platform`. A program that is compiled for a device that is not
# there takes its form from here, too: the host's platform is another one.
FORMS: Mapping[str, DeviceForm] = {
  'cpu': CPU,
  'gpu': CPU,
  'tpu': DeviceForm(rows=8, attention=cache_attention.few(8192)),
}
