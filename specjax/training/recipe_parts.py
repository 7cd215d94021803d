"""What recipes are made of: steps, texts, and what is held out."""

import dataclasses

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
  that `experiments.answers` wrote, or a `text`. Of all but texts the answers
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
