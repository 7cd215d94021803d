"""Ways to draft, a file or a folder each; each `load` is a loader of `types`.

A drafter is imported when it is first named: `specjax.drafters.ngram`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from specjax.drafters import assistant as assistant
  from specjax.drafters import cascade as cascade
  from specjax.drafters import counts as counts
  from specjax.drafters import dflash as dflash
  from specjax.drafters import eagle as eagle
  from specjax.drafters import early_exit as early_exit
  from specjax.drafters import forced as forced
  from specjax.drafters import lm as lm
  from specjax.drafters import medusa as medusa
  from specjax.drafters import mtp as mtp
  from specjax.drafters import ngram as ngram
  from specjax.drafters import quantized as quantized
  from specjax.drafters import recycling as recycling
  from specjax.drafters import skip as skip
  from specjax.drafters import suffix as suffix
  from specjax.drafters import windowed as windowed

DRAFTERS = (
  'assistant', 'cascade', 'counts', 'dflash', 'eagle', 'early_exit', 'forced',
  'lm', 'medusa', 'mtp', 'ngram', 'quantized', 'recycling', 'skip', 'suffix',
  'windowed',
)  # fmt: skip


def __getattr__(name: str) -> Any:
  if name not in DRAFTERS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return importlib.import_module(f'{__name__}.{name}')


def __dir__() -> list[str]:
  return [*globals(), *DRAFTERS]
