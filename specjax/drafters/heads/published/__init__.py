"""Heads as others publish them: read by what a directory holds.

`find` recognises a directory by the names of its tensors, and says what of our
own heads it is: the configuration that such a head would have in its own
config.json, and the tensors that each parameter is made of. `read` makes the
parameters. A family of formats is a module, and listed by `table.formats`.

Nothing in a published head tells which weights it was trained for: see
`pairing`.
"""

from specjax.drafters.heads.published.formats import Found as Found
from specjax.drafters.heads.published.formats import read as read
from specjax.drafters.heads.published.pairing import UNVERIFIED as UNVERIFIED
from specjax.drafters.heads.published.pairing import (
  PairingWarning as PairingWarning,
)
from specjax.drafters.heads.published.pairing import check as check
from specjax.drafters.heads.published.table import find as find
from specjax.drafters.heads.published.table import look as look
