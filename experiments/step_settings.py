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
class Speed:
  """What a step costs, on random weights: nothing here looks at a text.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    target: its sizes.
    draft: of the draft, over the same vocabulary.
    sweeps: functions of `benchmarks.sweeps`, or others by their full names.
    path: a checkpoint; `benchmarks.limits.plain` measures its plain step too.
    dtype: of weights and cache.
    used: tokens in use, where they are not swept.
    gamma: drafted tokens, likewise.
    gammas: draft lengths swept.
    batches: rows swept.
    contexts: tokens in use swept.
    vocabularies: entries of the logits swept.
    rates: simulated acceptance swept.
    maxima: cache slots that are compared at the same tokens in use.
    megabytes: of the array that bandwidth is measured with.
    steps: timed at once, fewer where the cache has no room for them.
    repeats: of each measurement, in turns; medians are taken.
    seed: of weights and sampling.
    results: folder for rows and summary.
    compilation_cache: as that of an experiment.
    quick: toy sizes, to see that it runs.
  """

  name: str
  target: TargetSize
  draft: Size
  sweeps: tuple[str, ...]
  path: str = ''
  dtype: str = 'float32'
  used: int = 300
  gamma: int = 4
  gammas: tuple[int, ...] = (1, 2, 4, 8, 16)
  batches: tuple[int, ...] = (1, 4, 16, 64)
  contexts: tuple[int, ...] = (128, 512, 2048, 8192)
  vocabularies: tuple[int, ...] = (2048, 8192, 32768, 131072)
  rates: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
  maxima: tuple[int, ...] = (512, 8192)
  megabytes: int = 256
  steps: int = 16
  repeats: int = 9
  seed: int = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False


@dataclasses.dataclass
class Narrow(Speed):
  """Steps with weights in eight bits.

  Attributes:
    paths: checkpoints, each measured in floats and in eight bits.
  """

  paths: tuple[str, ...] = ()
