"""Heads as others publish them: read by what a directory holds.

`find` recognises a directory by the names of its tensors, and says what of our
own heads it is: the configuration that such a head would have in its own
config.json, and the tensors that each parameter is made of. `read` makes the
parameters. A family of formats is a module, and a row of `table.FORMATS`.
`write_speculators` writes heads that were trained here for other engines.

Nothing in a published head tells which weights it was trained for: see
`pairing`.
"""

from specjax.published.formats import Found as Found
from specjax.published.formats import read as read
from specjax.published.pairing import UNVERIFIED as UNVERIFIED
from specjax.published.pairing import PairingWarning as PairingWarning
from specjax.published.pairing import check as check
from specjax.published.table import find as find
from specjax.published.table import look as look
from specjax.published.writing import write_speculators as write_speculators
