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
class PaperModel(TargetSize):
  """Sizes of a model that is calculated with.

  Attributes:
    tied: whether its embeddings are its output layer, too.
  """

  tied: bool = False


@dataclasses.dataclass
class Accelerator:
  """What is published of a device; peaks, which no program reaches.

  Attributes:
    bandwidth: bytes a second of its memory.
    operations: products and sums a second, in bfloat16 without sparsity.
    exchange: bytes a second to the other devices, in one direction.
    memory: bytes.
  """

  bandwidth: float
  operations: float
  exchange: float
  memory: float


@dataclasses.dataclass
class Deployment:
  """A target on so many devices, over which everything is split.

  Attributes:
    target: its name among the models.
    accelerator: its name among them.
    devices: how many; a divisor of the heads.
  """

  target: str
  accelerator: str
  devices: int = 1


@dataclasses.dataclass
class PaperCosts:
  """What speculation costs on devices that nobody here has: calculated.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    models: sizes by name.
    accelerators: by name.
    deployments: that are calculated.
    drafts: names of models, or `head`: one layer of the target, as EAGLE's.
    head_vocabulary: tokens that a head has logits of.
    dtype: of weights and caches.
    contexts: tokens in the cache of every row.
    batches: rows; those that do not fit are left out.
    gammas: draft lengths.
    rates: chances that a drafted token is accepted.
    results: folder for rows and summary.
    quick: two deployments, contexts and batches.
  """

  name: str
  models: dict[str, PaperModel]
  accelerators: dict[str, Accelerator]
  deployments: tuple[Deployment, ...]
  drafts: tuple[str, ...]
  head_vocabulary: int = 32_000
  dtype: str = 'bfloat16'
  contexts: tuple[int, ...] = (512, 4096, 32_768, 131_072)
  batches: tuple[int, ...] = tuple(2**i for i in range(10))
  gammas: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
  rates: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
  results: str = ''
  quick: bool = False


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
