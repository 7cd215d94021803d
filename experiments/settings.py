"""Every configuration a program takes: plain mutable dataclasses.

`ml_collections.config_flags` overrides any field from the command line and
refuses unknown ones; the programs check values before any work.
"""

import dataclasses


@dataclasses.dataclass
class Size:
  """Sizes of one model of the embedded pair."""

  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_width: int


@dataclasses.dataclass
class Mixture:
  """Shares of the training windows that come from each stream."""

  code: float = 0.5
  tests: float = 0.12
  documentation: float = 0.2
  structured: float = 0.18


@dataclasses.dataclass
class Optimization:
  """AdamW with linear warm-up and linear decay to zero."""

  steps: int
  learning_rate: float
  batch: int
  length: int = 256
  warmup: int = 100
  weight_decay: float = 0.1
  clip: float = 1.0
  checkpoint_every: int = 200


@dataclasses.dataclass
class Drafts:
  """The drafts: one thin layer each, by width, and how they are distilled.

  Attributes:
    widths: model width of each draft; names are draft-<width>.
    on_corpus: distillation on windows of the corpus.
    on_samples: distillation on text the target wrote.
    samples: number of texts the target writes.
    prompt_length: tokens of the corpus that each of them starts from.
    greedy_share: share of the texts written at temperature 0; the rest at 1.
  """

  widths: tuple[int, ...]
  on_corpus: Optimization
  on_samples: Optimization
  samples: int = 4096
  prompt_length: int = 32
  greedy_share: float = 0.4
  batch: int = 64


@dataclasses.dataclass
class Recipe:
  """A target and its drafts, trained on the embedded corpus.

  Attributes:
    folder: where checkpoints and the finished models go.
    vocab_size: of the tokenizer that is trained first.
    tokenizer_sample: characters of each domain the tokenizer learns from.
  """

  folder: str
  vocab_size: int
  target: Size
  target_training: Optimization
  drafts: Drafts
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  tokenizer_sample: int = 3_000_000
  max_positions: int = 512
  seed: int = 0
  quick: bool = False
