"""Recipes: what `specjax train` trains, and how.

Each field declares what it takes (`specjax.cli.fields`); the method `check` of
a class checks the rest. A training takes minutes to hours, so what would go
wrong at its last stage is refused at the first.
"""

import dataclasses
import itertools
from typing import Annotated, Any, Literal

from specjax import checkpoints
from specjax.bench.checks import need_temperatures
from specjax.bench.config import Dtype, Size, Temperatures
from specjax.cli import fields
from specjax.cli.fields import Between, Count, Seed
from specjax.cli.names import Names, resolve_function
from specjax.errors import blame, need
from specjax.prompts import conversations, files
from specjax.prompts.config import Prompts

CURVES = Names('specjax.training.schedules.{}', 'linear')
Share = Annotated[float, Between(0, 1)]
Weight = Annotated[float, Between(0)]


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

  code: Weight = 0.5
  tests: Weight = 0.12
  documentation: Weight = 0.2
  structured: Weight = 0.18
  packages: Weight = 0.0
  package_documentation: Weight = 0.0

  def check(self) -> None:
    need(sum(vars(self).values()) > 0, 'mixture: all shares are 0; raise one')

  def need_no_packages(self, reason: str) -> None:
    """Raises unless the shares of installed packages are 0.

    Args:
      reason: why no packages are read, and the remedy.
    """
    for name in ('packages', 'package_documentation'):
      share = getattr(self, name)
      need(not share, f'mixture.{name} is {share}, but {reason}')


@dataclasses.dataclass
class Optimization:
  """AdamW or Muon with a piecewise learning rate.

  Attributes:
    schedule: (step, learning rate) corners after (0, 0); the last step ends
      the training.
    batch: windows of a step.
    length: tokens of a window.
    weight_decay: of weights, per unit of learning rate.
    clip: largest norm of a gradient.
    checkpoint_every: steps between checkpoints.
    muon: weights between layers follow Muon; the others follow AdamW.
    curve: of the rate between two corners: linear, cosine or hold, or another
      function of `specjax.training.schedules` by its full name.
    accumulate: batches whose gradients are averaged for a step.
    patience: checkpoints without a higher held-out tau after which training
      ends, with the weights of the highest; 0: it goes on to its last step.
    dtype: that losses are computed in. Trained weights stay float32. Heads
      compute with the target's weights too: give these the same.
  """

  schedule: tuple[tuple[int, Weight], ...]
  batch: Count
  length: Count = 256
  weight_decay: Weight = 0.1
  clip: float = 1.0
  checkpoint_every: Count = 200
  muon: bool = False
  curve: str = 'linear'
  accumulate: Count = 1
  patience: Annotated[int, Between(0)] = 0
  dtype: Literal['float32', 'bfloat16'] = 'float32'

  @property
  def steps(self) -> int:
    return self.schedule[-1][0]

  def shrink(self, steps: int, length: int) -> None:
    """Leaves a few small steps."""
    self.schedule = ((2, 1e-3), (steps, 0.0))
    self.batch, self.length, self.checkpoint_every = 4, length, 5

  def check(self, field: str, scored: bool = False) -> None:
    """Raises where the optimization cannot be run.

    Args:
      field: that holds the optimization.
      scored: drafters are tried on held-out prompts at its checkpoints.
    """
    resolve_function(f'{field}.curve', self.curve, CURVES)
    self.curve = CURVES.full(self.curve).removeprefix(
      CURVES.template.format('')
    )
    need(
      scored or not self.patience,
      f'{field}.patience is {self.patience}, but nothing is tried on held-out '
      'prompts there: leave it at 0',
    )
    need(self.schedule, f'{field}.schedule is empty: give a step and its rate')
    steps = [0, *(step for step, _ in self.schedule)]
    need(
      all(a < b for a, b in itertools.pairwise(steps)),
      f'{field}.schedule must have steps above 0 that rise, got '
      f'{self.schedule}',
    )
    need(self.clip > 0, f'{field}.clip must be above 0, got {self.clip}')


@dataclasses.dataclass
class Texts:
  """Texts that a model writes to be trained on.

  Attributes:
    count: of the texts.
    prompt_length: tokens of the corpus that each text starts from.
    greedy_share: share of the texts written at temperature 0; the rest at 1.
    batch: texts written at once.
    length: tokens of each text beyond the first, as in a window.
  """

  count: Count = 1536
  prompt_length: Count = 32
  greedy_share: Share = 0.3
  batch: Count = 64
  length: Count = 256

  def check(self, field: str) -> None:
    need(
      self.prompt_length <= self.length,
      f'{field}.prompt_length is {self.prompt_length}, but {field}.length is '
      f'{self.length}: nothing is left to be written, lower one or raise the '
      'other',
    )

  def need_full(self, field: str, o: Optimization) -> None:
    """Raises where the texts do not fill the windows of a batch."""
    need(
      self.length >= o.length and self.count >= o.batch,
      f'{field}: {self.count} of {self.length} tokens do not fill a batch of '
      f'{o.batch} windows of {o.length}: write more, or longer ones',
    )


@dataclasses.dataclass
class Examples:
  """Texts or conversations of one's own, in place of the embedded corpus.

  A record is a conversation (`messages`, or `conversations`), a question with
  its answer (a format that `Prompts` knows, or any with `answer`), an answer
  that `specjax answers` wrote, or a `text`. Answers alone are learned,
  except of a `text`.

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

  def check(self) -> None:
    """Raises where the examples cannot be learned from; reads no record."""
    if not self.prompts.path:
      for name in ('answer', 'evaluation'):
        need(
          not getattr(self, name),
          f'examples.{name} is given, but examples.prompts.path names no file: '
          'give one, or leave it out',
        )
      return
    files.check(self.prompts.path, 'examples.prompts.path')
    if self.evaluation:
      files.check(self.evaluation, 'examples.evaluation')
    need(
      0 < self.held_out < 1,
      f'examples.held_out must be in (0, 1), got {self.held_out}: some are '
      'learned, and drafters are tried on others',
    )
    need(
      not self.prompts.dataset,
      'examples.prompts.dataset is not read: name a file with '
      'examples.prompts.path',
    )
    with blame('examples.'):
      conversations.check(self.prompts)


@dataclasses.dataclass
class HeldOut:
  """Prompts that a drafter is tried on while it is trained.

  Attributes:
    prompts: of each domain of the corpus, held out; of examples so many.
    prompt_length: tokens of each; of examples at most, the last ones.
    new_tokens: added to each, at every temperature.
    temperatures: all in one batch.
    depth: K, drafted tokens at most.
    seed: of prompts and sampling.
  """

  prompts: Count = 4
  prompt_length: Count = 96
  new_tokens: Count = 48
  temperatures: Temperatures = (0.0, 1.0)
  depth: Count = 4
  seed: Seed = 17

  def shrink(self) -> None:
    """Leaves a short prompt of each domain, and whole steps behind it."""
    self.prompts, self.prompt_length, self.new_tokens = 1, 16, 8
    self.depth = min(self.depth, 4)

  def check(self, field: str) -> None:
    need_whole_steps(self, f'{field}.')
    need_temperatures(f'{field}.temperatures', self.temperatures)


def need_whole_steps(x: 'HeldOut | Online', where: str = '') -> None:
  """Raises where no text has room for a whole step."""
  need(
    x.depth < x.new_tokens,
    f'{where}depth is {x.depth}, but must be below {where}new_tokens, which is '
    f'{x.new_tokens}: draft less, or decode more',
  )


def check_size(field: str, x: Size) -> None:
  """Raises where no model has these sizes."""
  need(
    x.num_heads % x.num_kv_heads == 0,
    f'{field}.num_kv_heads is {x.num_kv_heads}, which does not divide the '
    f'{x.num_heads} of {field}.num_heads: choose a divisor',
  )
  need(
    x.head_dim % 2 == 0,
    f'{field}.head_dim must be even for rotary positions, got {x.head_dim}',
  )


def need_positions(
  available: int | None, whose: str, lengths: dict[str, int]
) -> None:
  """Raises where texts are longer than a model reads.

  Args:
    available: positions of the model; None: any number.
    whose: the model, and where to get more positions.
    lengths: positions that are asked for, by field.
  """
  for field, longest in lengths.items():
    need(
      available is None or longest <= available,
      f'{field} asks for {longest} positions, but {whose} {available}: choose '
      'less',
    )


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
  layers: Count = 1

  def check(self) -> None:
    self.on_corpus.check('drafts.on_corpus')
    self.on_samples.check('drafts.on_samples')
    self.texts.check('drafts.texts')
    self.texts.need_full('drafts.texts', self.on_samples)
    need(self.widths, 'drafts.widths is empty: give at least one, such as 128')
    need(
      len({*self.widths}) == len(self.widths),
      f'drafts.widths: {self.widths} has one twice; leave it out',
    )
    for value in self.widths:
      # Of others the heads are not whole, see `train_pair.draft_size`.
      need(
        value > 0 and (value in (32, 96) or value % 64 == 0),
        f'drafts.widths must be 32, 96 or a multiple of 64, got {value}',
      )


@dataclasses.dataclass(kw_only=True)
class Training:
  """Fields of every recipe that trains.

  Attributes:
    folder: where checkpoints, records and the finished weights go.
    dtype: of the weights of the target, as in `Experiment`. Trained weights are
      float32.
    seed: of weights and batches.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a toy version in seconds, in a folder of its own.
  """

  folder: str
  dtype: Dtype = 'auto'
  seed: Seed = 0
  compilation_cache: str = 'auto'
  quick: bool = False

  def check(self) -> None:
    fields.check_fields(self)
    need(self.folder, 'folder is empty: name where the training is kept')


@dataclasses.dataclass(kw_only=True)
class Recipe(Training):
  """A target and its drafts, trained on the embedded corpus.

  Attributes:
    vocab_size: of the tokenizer that is trained first.
    target: its sizes.
    target_training: on the corpus, before the drafts.
    drafts: which there are, and how they are trained; None: only the target.
    mixture: shares of the corpus.
    max_positions: of the target and the drafts.
    tokenizer_sample: characters of each domain the tokenizer learns from.
    every: of the training documents only each so many-th is used.
    packages: read installed packages too, for training alone; the shares of
      `mixture` say how much of them.
  """

  vocab_size: int
  target: Size
  target_training: Optimization
  drafts: Drafts | None
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  tokenizer_sample: Count = 3_000_000
  max_positions: Count = 512
  every: Count = 1
  packages: bool = False

  def check(self) -> None:
    super().check()
    self.mixture.check()
    if not self.packages:
      self.mixture.need_no_packages(
        'packages is False: set it, or leave the share at 0'
      )
    need(
      257 <= self.vocab_size < 2**31,
      'vocab_size must be at least 257, one for each byte and the end of text, '
      f'and fit into 32 bits, got {self.vocab_size}',
    )
    check_size('target', self.target)
    self.target_training.check('target_training')
    # Every fourth window of the target is twice as long.
    asked = {'target_training.length': 2 * self.target_training.length}
    if self.drafts is not None:
      self.drafts.check()
      asked['drafts.on_corpus.length'] = self.drafts.on_corpus.length
      asked['drafts.texts.length'] = self.drafts.texts.length + 1
    need_positions(self.max_positions, 'max_positions is', asked)


@dataclasses.dataclass(kw_only=True)
class ForTarget(Training):
  """Fields of every recipe of a drafter for a frozen target.

  Attributes:
    target: its checkpoint; its tokenizer reads the texts.
    trainable: function `(target, **options)` that returns a
      `heads.trainable.Trainable`, by its full name; `medusa` is short for
      `specjax.drafters.medusa.trainable`.
    optimization: windows are of `length` tokens.
    options: further arguments of `trainable`.
    divergence: of target and drafter, that is minimised: a function of
      `specjax.training.divergences`, or another by its full name.
  """

  target: str
  trainable: str
  optimization: Optimization
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  divergence: str = 'cross_entropy'

  def check(self) -> None:
    super().check()
    with blame('target: '):
      checkpoints.locate(self.target)


@dataclasses.dataclass(kw_only=True)
class Heads(ForTarget):
  """A drafter that is trained before it drafts.

  Attributes:
    data: folder of the corpus' tokens and the target's texts, which are made
      where they are missing.
    texts: of the target.
    mixture: shares of the corpus.
    held_out: prompts that drafters are tried on at every checkpoint.
    every: of the training documents only each so many-th is used.
    examples: learned instead of the corpus and the target's texts, where they
      name a file.
    share: of the windows that are the target's own text; the rest are the
      corpus'.
    own_share: of the windows that the drafter wrote itself, which only a model
      of its own (`lm`) can.
    own_texts: of the drafter, written anew every `refresh` batches.
    refresh: batches between own texts.
    devices: that the windows of a batch are split over.
    features: folder where the target's features are kept for all recipes that
      read the same windows; empty: the target reads each batch anew.
    features_gib: size of that folder at most; what is beyond is read anew.
  """

  data: str = ''
  texts: Texts = dataclasses.field(default_factory=Texts)
  mixture: Mixture = dataclasses.field(default_factory=Mixture)
  held_out: HeldOut = dataclasses.field(default_factory=HeldOut)
  every: Count = 1
  examples: Examples = dataclasses.field(default_factory=Examples)
  share: Share = 0.5
  own_share: Share = 0.0
  own_texts: Texts = dataclasses.field(default_factory=lambda: Texts(64))
  refresh: Count = 25
  devices: Count = 1
  features: str = ''
  features_gib: Annotated[float, Between(0)] = 16.0

  @property
  def has_examples(self) -> bool:
    """The recipe learns from examples of the user's."""
    return bool(self.examples.prompts.path)

  def positions(self) -> dict[str, int]:
    """Returns the positions that the recipe asks of its models, by field."""
    x = self.held_out
    asked = {
      'held_out.prompt_length + held_out.new_tokens': (
        x.prompt_length + x.new_tokens
      ),
      'optimization.length': self.optimization.length,
    }
    if not self.has_examples:
      asked['texts.length'] = self.texts.length + 1
    return asked

  def check(self) -> None:
    super().check()
    self.mixture.check()
    if not self.has_examples:
      need(
        self.data, 'data is empty: name the folder of the corpus and the texts'
      )
      self.texts.check('texts')
    self.own_texts.check('own_texts')
    self.held_out.check('held_out')
    self.examples.check()
    o = self.optimization
    o.check('optimization', scored=True)
    need(
      self.share + self.own_share <= 1,
      f'share + own_share is {self.share} + {self.own_share}: they must not be '
      'above 1 together, lower one',
    )
    need(
      self.devices == 1 or not self.own_share,
      f'own_share is {self.own_share}, but texts are written on one device: '
      'leave it at 0, or devices at 1',
    )
    need(
      not (self.features and self.own_share),
      f'own_share is {self.own_share}, and what a drafter writes is read once: '
      'leave it at 0, or features empty',
    )
    need(
      not (self.own_share and self.has_examples),
      f'own_share is {self.own_share}, but examples.prompts.path names the '
      'texts: leave one out',
    )
    if self.share and not self.has_examples:
      self.texts.need_full('texts', o)
    if self.own_share:
      self.own_texts.need_full('own_texts', o)
    need(
      o.batch % self.devices == 0,
      f'optimization.batch is {o.batch}, which devices = {self.devices} does '
      f'not divide: choose a multiple of {self.devices}',
    )


@dataclasses.dataclass(kw_only=True)
class Online(ForTarget):
  """A drafter that learns while it drafts, from the texts it drafts for.

  Attributes:
    optimization: `updates` steps for each of the rounds; constant rates suit
      texts that never end.
    start: directory of a trained head that drafts first; of `lm` the `path`
      among the options; empty: fresh weights.
    prompts: what texts go on from; `count` of each domain in every round, of
      several domains one after the other.
    new_tokens: of every text, at most.
    temperature: of the texts.
    depth: K, drafted tokens at most.
    rounds: of decoding, each followed by training.
    updates: steps of training after each round.
    memory: rounds whose texts are learned from, the last ones.
  """

  start: str = ''
  prompts: Prompts = dataclasses.field(default_factory=Prompts)
  new_tokens: Count = 64
  temperature: Weight = 1.0
  depth: Count = 4
  rounds: Count = 30
  updates: Count = 10
  memory: Count = 8

  def check(self) -> None:
    super().check()
    need_whole_steps(self)
    need(
      self.seed + self.rounds < fields.SEEDS,
      f'seed is {self.seed}, but each of the {self.rounds} rounds has the next '
      f'one: choose one below {fields.SEEDS - self.rounds}',
    )
    o = self.optimization
    o.check('optimization')
    need(
      o.steps == self.rounds * self.updates,
      f'optimization.schedule ends at step {o.steps}, but rounds x updates are '
      f'{self.rounds} x {self.updates}: let it end there',
    )
    need(
      o.accumulate == 1,
      'optimization.accumulate is for batches of a file; leave it at 1',
    )


@dataclasses.dataclass
class Counts:
  """Counts of tokens and of pairs of them: nothing is trained.

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
  successors: Annotated[int, Between(0)] = 32
  every: Count = 1
  compilation_cache: str = 'auto'
