"""Sizes of models, and the configurations of what a step of one costs."""

import dataclasses


@dataclasses.dataclass
class Size:
  """Sizes of one model of the embedded pair.

  Attributes:
    width: of the residual stream.
    num_layers: of the transformer.
    num_heads: of the queries.
    num_kv_heads: of keys and values; divides `num_heads`.
    head_dim: entries of a head.
    mlp_width: entries between the two products of an MLP.
  """

  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int


@dataclasses.dataclass
class TargetSize(Size):
  """Sizes of a target with random weights.

  Attributes:
    vocab_size: entries of its logits.
  """

  vocab_size: int = 32_000


@dataclasses.dataclass
class LongContexts:
  """What a step costs at long contexts, plain and with drafts.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    target: its sizes.
    draft: of a small draft over the same vocabulary, which reads the whole
      text.
    window: of the target's draft from its own cache; `sinks` likewise.
    sinks: see `specjax.models.config.Narrowed`.
    gamma: drafted tokens.
    contexts: tokens in use swept.
    batches: rows swept.
    rates: acceptance at which speed-ups are said.
    dtype: of weights and caches.
    megabytes: of the array that bandwidth is measured with.
    steps: timed at once.
    repeats: of each measurement, in turns; medians are taken.
    seed: of weights and sampling.
    results: folder for rows, figure and summary.
    compilation_cache: as that of an experiment.
    quick: toy sizes, to see that it runs.
  """

  name: str
  target: TargetSize
  draft: Size
  window: int = 512
  sinks: int = 4
  gamma: int = 3
  contexts: tuple[int, ...] = (512, 2048, 8192, 16_384, 32_768)
  batches: tuple[int, ...] = (1, 4)
  rates: tuple[float, ...] = (0.8, 0.95)
  dtype: str = 'float32'
  megabytes: int = 256
  steps: int = 4
  repeats: int = 5
  seed: int = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False
