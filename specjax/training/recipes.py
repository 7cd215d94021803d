"""What is trained, and how: the configurations of `specjax train`.

Plain mutable dataclasses, as those of `specjax.bench.config`.
"""

import dataclasses
from typing import Any

from specjax.bench.config import Size
from specjax.prompts.config import Prompts


@dataclasses.dataclass
class Mixture:
  """Shares of the training windows that come from each stream.

  Attributes:
    code: of modules.
    tests: of their tests.
    documentation: of manuals.
    structured: of data and settings.
    packages: of code of installed packages.
    package_documentation: of their documentation.
  """

  code: float = 0.5
  tests: float = 0.12
  documentation: float = 0.2
  structured: float = 0.18
  packages: float = 0.0
  package_documentation: float = 0.0


@dataclasses.dataclass
class Optimization:
  """AdamW or Muon with a piecewise linear learning rate.

  Attributes:
    schedule: (step, learning rate) corners after (0, 0); the last step ends
      the training.
    batch: windows of a step.
    length: tokens of a window.
    weight_decay: of weights, per unit of learning rate.
    clip: largest norm of a gradient.
    checkpoint_every: steps between checkpoints.
    muon: whether weights between layers follow Muon; the others, AdamW.
    curve: of the rate between two corners: linear, cosine or hold, or another
      function of `specjax.training.schedules` by its full name.
    accumulate: batches whose gradients are averaged for a step.
    patience: checkpoints without a higher held-out tau after which training
      ends, with the weights of the highest; 0: it goes on to its last step.
    dtype: that losses are computed in; what is trained stays float32. Heads
      compute with the target's weights too: give these the same.
  """

  schedule: tuple[tuple[int, float], ...]
  batch: int
  length: int = 256
  weight_decay: float = 0.1
  clip: float = 1.0
  checkpoint_every: int = 200
  muon: bool = False
  curve: str = 'linear'
  accumulate: int = 1
  patience: int = 0
  dtype: str = 'float32'

  @property
  def steps(self) -> int:
    return self.schedule[-1][0]

  def shrink(self, steps: int, length: int) -> None:
    """Leaves a few small steps."""
    self.schedule = ((2, 1e-3), (steps, 0.0))
    self.batch, self.length, self.checkpoint_every = 4, length, 5


@dataclasses.dataclass
class Texts:
  """Texts that a model writes to be trained on.

  Attributes:
    count: of them.
    prompt_length: tokens of the corpus that each of them starts from.
    greedy_share: share of the texts written at temperature 0; the rest at 1.
    batch: written at once.
    length: tokens of each beyond the first, as in a window.
  """

  count: int = 1536
  prompt_length: int = 32
  greedy_share: float = 0.3
  batch: int = 64
  length: int = 256


@dataclasses.dataclass
class Examples:
  """Texts or conversations of one's own, in place of the embedded corpus.

  A record is a conversation (`messages`, or `conversations`), a question with
  its answer (a format that `Prompts` knows, or any with `answer`), an answer
  that `specjax answers` wrote, or a `text`. Of all but texts the answers
  alone are learned.

  Attributes:
    prompts: file of the records, and how a question is written.
    answer: field of the answer, in a record of no known format.
    held_out: share of the questions, chosen by their hash, that drafters are
      tried on and never trained on.
    evaluation: file of prompts that none of the records may ask; a record that
      does is refused.
  """

  prompts: Prompts = dataclasses.field(default_factory=Prompts)
  answer: str = ''
  held_out: float = 0.1
  evaluation: str = ''


@dataclasses.dataclass
class HeldOut:
  """What a drafter is tried on while it is trained.

  Attributes:
    prompts: of each domain of the corpus, held out; of examples so many.
    prompt_length: tokens of each; of examples at most, the last ones.
    new_tokens: added to each, at every temperature.
    temperatures: all in one batch.
    depth: K, drafted tokens at most.
    seed: of prompts and sampling.
  """

  prompts: int = 4
  prompt_length: int = 96
  new_tokens: int = 48
  temperatures: tuple[float, ...] = (0.0, 1.0)
  depth: int = 4
  seed: int = 17

  def shrink(self) -> None:
    """Leaves a short prompt of each domain, and whole steps behind it."""
    self.prompts, self.prompt_length, self.new_tokens = 1, 16, 8
    self.depth = min(self.depth, 4)


@dataclasses.dataclass
class Drafts:
  """The drafts: thin ones, by width, and how they are distilled.

  Attributes:
    widths: model width of each draft; names are draft-<width>.
    layers: of each. With one a draft cannot learn to copy what followed the
      same token before (Olsson et al., 2022, arXiv:2209.11895).
    on_corpus: distillation on windows of the corpus.
    on_samples: distillation on text the target wrote.
    texts: which the target writes for that.
  """

  widths: tuple[int, ...]
  on_corpus: Optimization
  on_samples: Optimization
  texts: Texts = dataclasses.field(default_factory=Texts)
  layers: int = 1


@dataclasses.dataclass
class Recipe:
  """A target and its drafts, trained on the embedded corpus.

  Attributes:
    folder: where checkpoints and the finished models go.
    vocab_size: of the tokenizer that is trained first.
    target: its sizes.
    target_training: on the corpus, before the drafts.
    drafts: which there are, and how they are trained; None: only the target.
    mixture: shares of the corpus.
    max_positions: of the target and the drafts.
    dtype: that the trained target writes texts and teaches drafts in; auto is
      float32. What is trained is float32 always.
    seed: of weights and batches.
    tokenizer_sample: characters of each domain the tokenizer learns from.
    every: of the training documents only each so many-th is used.
    packages: whether to read installed packages too, for training alone; the
      shares of `mixture` say how much of them.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a toy version in seconds, in a folder of its own.
  """

  folder: str
  vocab_size: int
  target: Size
  target_training: Optimization
  drafts: Drafts | None
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  tokenizer_sample: int = 3_000_000
  max_positions: int = 512
  dtype: str = 'auto'
  every: int = 1
  packages: bool = False
  seed: int = 0
  compilation_cache: str = 'auto'
  quick: bool = False


@dataclasses.dataclass
class Distillation:
  """One draft, distilled by every divergence on every kind of data.

  Attributes:
    folder: where checkpoints, records and the finished drafts go.
    target: its checkpoint; its tokenizer reads the corpus.
    dtype: of its weights, as in `Experiment`; drafts are trained in float32.
    data: folder of the corpus' tokens and the target's texts, which are made
      where they are missing.
    width: of the draft, see `train_pair.draft_size`.
    undistilled: next-token training on the corpus, which every draft of the
      grid starts from.
    distillation: of each of them, and of the control, which goes on with
      next-token training instead.
    divergences: functions of `specjax.training.divergences`, or others by
      their full names.
    kinds: of data: functions of `specjax.training.draft_data`, or others by
      their full names.
    texts: of the target.
    own_texts: of each draft, where it learns from its own; they are written
      anew every `refresh` steps.
    refresh: see there.
    mixture: shares of the corpus.
    held_out: what they are tried on at every checkpoint.
    final: and in the end, with other prompts.
    max_positions: of the draft.
    every: of the training documents only each so many-th is used.
    seed: of weights and batches.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a toy version in seconds, in a folder of its own.
  """

  folder: str
  target: str
  data: str
  width: int
  undistilled: Optimization
  distillation: Optimization
  divergences: tuple[str, ...]
  kinds: tuple[str, ...]
  texts: Texts = dataclasses.field(default_factory=Texts)
  own_texts: Texts = dataclasses.field(default_factory=lambda: Texts(64))
  refresh: int = 25
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  held_out: HeldOut = dataclasses.field(default_factory=HeldOut)
  final: HeldOut = dataclasses.field(
    default_factory=lambda: HeldOut(prompts=20, new_tokens=64, seed=18)
  )
  max_positions: int = 512
  dtype: str = 'auto'
  every: int = 1
  seed: int = 0
  compilation_cache: str = 'auto'
  quick: bool = False


@dataclasses.dataclass
class Heads:
  """A drafter that is trained on the features of a frozen target.

  Attributes:
    folder: where checkpoints, records and the finished head go.
    target: its checkpoint; its tokenizer reads the corpus.
    dtype: of its weights, as in `Experiment`; heads are trained in float32.
    trainable: function `(target, **options)` that returns a
      `heads.trainable.Trainable`, by its full name; `medusa` is
      short for `specjax.drafters.medusa.trainable`.
    optimization: windows are of `length` tokens.
    data: folder of the corpus' tokens and the target's texts, which are made
      where they are missing.
    options: further arguments of `trainable`.
    divergence: of target and drafter, that is minimised: a function of
      `specjax.training.divergences`, or another by its full name.
    examples: what is learned instead of the corpus and the target's texts,
      where they name a file.
    share: of the windows that are the target's own text; the rest are the
      corpus'.
    texts: of the target.
    mixture: shares of the corpus.
    held_out: what the drafter is tried on at every checkpoint.
    every: of the training documents only each so many-th is used.
    devices: that the windows of a batch are split over.
    seed: of weights and batches.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a toy version in seconds, in a folder of its own.
  """

  folder: str
  target: str
  trainable: str
  optimization: Optimization
  data: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  divergence: str = 'cross_entropy'
  examples: Examples = dataclasses.field(default_factory=Examples)
  share: float = 0.5
  texts: Texts = dataclasses.field(default_factory=Texts)
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  held_out: HeldOut = dataclasses.field(default_factory=HeldOut)
  dtype: str = 'auto'
  every: int = 1
  devices: int = 1
  seed: int = 0
  compilation_cache: str = 'auto'
  quick: bool = False


@dataclasses.dataclass
class Online:
  """A drafter that learns while it drafts, from the texts it drafts for.

  Attributes:
    folder: where rounds, checkpoints and the finished drafter go.
    target: its checkpoint.
    dtype: of its weights, as in `Experiment`; drafters are trained in float32.
    trainable: as that of `Heads`.
    optimization: `updates` steps for each of the rounds; constant rates suit
      texts that never end.
    start: directory of a trained head that drafts first; of `lm` the `path`
      among the options; empty: fresh weights.
    options: further arguments of `trainable`.
    divergence: as that of `Heads`.
    prompts: what texts go on from; `count` of each domain in every round, of
      several domains one after the other.
    new_tokens: of every text, at most.
    temperature: of the texts.
    depth: K, drafted tokens at most.
    rounds: of decoding, each followed by training.
    updates: steps of training after each round.
    memory: rounds whose texts are learned from, the last ones.
    seed: of prompts, texts, weights and batches.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a toy version in seconds, in a folder of its own.
  """

  folder: str
  target: str
  trainable: str
  optimization: Optimization
  start: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  divergence: str = 'cross_entropy'
  prompts: Prompts = dataclasses.field(default_factory=Prompts)
  new_tokens: int = 64
  temperature: float = 1.0
  depth: int = 4
  rounds: int = 30
  updates: int = 10
  memory: int = 8
  dtype: str = 'auto'
  seed: int = 0
  compilation_cache: str = 'auto'
  quick: bool = False


@dataclasses.dataclass
class Counts:
  """How often tokens and pairs of them occur: nothing is trained.

  The tables draft by themselves (`specjax.drafters.counts`), and say which
  tokens a smaller output layer keeps (`specjax.drafters.heads.frequencies`).

  Attributes:
    folder: where the finished tables go.
    target: checkpoint whose tokenizer reads the texts.
    texts: file of them, as `prompts.path` takes it; of records all texts are
      counted. Empty: the embedded corpus but its held-out part.
    successors: kept for each token; 0 counts no pairs.
    every: of the embedded documents only each so many-th is used.
    compilation_cache: as of the others.
  """

  folder: str
  target: str
  texts: str = ''
  successors: int = 32
  every: int = 1
  compilation_cache: str = 'auto'
