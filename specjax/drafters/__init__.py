"""Ways to draft, one file each; each `load` is a loader of `types`."""

from specjax.drafters import cascade as cascade
from specjax.drafters import counts as counts
from specjax.drafters import dflash as dflash
from specjax.drafters import eagle as eagle
from specjax.drafters import early_exit as early_exit
from specjax.drafters import forced as forced
from specjax.drafters import lm as lm
from specjax.drafters import medusa as medusa
from specjax.drafters import ngram as ngram
from specjax.drafters import quantized as quantized
from specjax.drafters import recycling as recycling
from specjax.drafters import skip as skip
from specjax.drafters import suffix as suffix
from specjax.drafters import windowed as windowed
