"""Every configuration a program takes: plain mutable dataclasses.

Each field declares what it takes; `specjax.cli.fields` reads values from the
command line and refuses others before any work.
"""

import dataclasses
from typing import Annotated, Any, Literal

from specjax.cli.fields import Between, Count, Seed, lower
from specjax.prompts.config import Prompts as Prompts
from specjax.prompts.config import SamplingValues as SamplingValues

Dtype = Literal['auto', 'float32', 'bfloat16', 'float16']
AnyDtype = Literal[Dtype, 'float64']
Weights = Literal['auto', 'floats', 'stored', 'int8', 'int4']
Temperatures = tuple[Annotated[float, Between(0)], ...]
NEW_TOKENS = 128  # of an experiment that names no number


@dataclasses.dataclass
class Checkpoint:
  """A Hugging Face directory, or a model of other code.

  Attributes:
    path: of the directory, or owner/name or owner/name@revision of the Hub.
    load: full name of a function () -> `specjax.Target` that makes a model of
      other code, in place of a path; see `Target.of`.
    dtype: of weights and cache, as `Experiment.dtype`; empty: of the target
      that of the experiment, of a draft the target's.
  """

  path: str = ''
  load: str = ''
  dtype: Literal['', AnyDtype] = ''

  @property
  def place(self) -> str:
    """The path, or what stands for one; see `checkpoints.own`."""
    return f'load:{self.load}' if self.load else self.path


@dataclasses.dataclass
class Draft(Checkpoint):
  """A Hugging Face directory, or a trained head.

  Attributes:
    vocabulary: tokens that it may propose, the most frequent ones; 0: all.
    frequencies: tables that say how frequent they are, as
      `specjax train counts` makes them; empty: the first ids are.
    policy: where a draft ends before gamma, such as confidence:0.4; empty:
      nowhere.
  """

  vocabulary: Annotated[int, Between(0)] = 0
  frequencies: str = ''
  policy: str = ''


@dataclasses.dataclass
class Candidate:
  """A drafter to compare.

  Attributes:
    load: full name of a function `(target, path, **options)` that returns a
      `LoadedDrafter`; `lm` is short for `specjax.drafters.lm.load`.
    gamma: drafted tokens K, unless `Experiment.gammas` says otherwise.
    path: of its weights, where it has any.
    options: further arguments of `load`; a candidate among them (`inner`)
      drafts for this one, and a `policy` is a name, such as confidence:0.4.
    verifiers: its rules; those of the experiment when empty.
  """

  load: str
  gamma: Count
  path: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  verifiers: tuple[str, ...] = ()


@dataclasses.dataclass
class Mesh:
  """Devices, and the processes that work on them together.

  Attributes:
    data: groups of devices that the rows of a batch are split over.
    model: devices of a group, which split the target's weights and cache.
    split_draft: split drafts over these too; else each device has them whole.
      None: where a draft would read more than the target's share in a step.
    processes: how many work together; 0: what the cluster says (Cloud TPU,
      Slurm), which then gives the next two as well.
    process: number of this one, from 0 on. Number 0 writes and prints.
    coordinator: host and port of process 0.
    timeout: seconds to wait for others to join, for signs of life, at the end.
  """

  data: Count = 1
  model: Count = 1
  split_draft: bool | None = None
  processes: Annotated[int, Between(0)] = 1
  process: int = 0
  coordinator: str = ''
  timeout: Count = 300

  def facts(self) -> dict:
    """Returns the fields that decide the results."""
    return {n: getattr(self, n) for n in ('data', 'model', 'split_draft')}


@dataclasses.dataclass
class Experiment:
  """Drafters x rules x draft lengths x domains x temperatures.

  Attributes:
    name: results go to runs/<name>-<hash of the settings>, or to `results`.
    target: the target's checkpoint.
    draft: checkpoint of a draft; where given, a candidate `lm` loads it, and of
      a GGUF file `lm-int4` rounds it to four bits.
    dtype: of weights and cache: auto, float32, bfloat16 or float16. auto is
      the checkpoint's own, and on a CPU float32.
    weights: how matrices of the target, and of models that draft for it, are
      held, as `specjax.load` has it: auto, floats, stored (the bits of a GGUF
      file), int8 or int4.
    rounds: whether activations are rounded to eight bits in products of few
      bits; the target is then that model.
    exact: bits: each text is computed with the bits of plain decoding, so that
      greedy texts are equal; refused where the target or the device has no
      such form. auto: as fast as it goes, equal up to rounding.
    candidates: drafters by name.
    drafters: which of them to run; all when empty. What is no candidate is a
      `load` function, named as theirs, with `:path` behind it.
    verifiers: rules of `specjax.verify`, such as token or lenience:0.5, or
      others by full name; a candidate may have its own.
    gammas: draft lengths tried with every drafter; empty for each one's own.
    temperatures: 0 is greedy.
    sampling: the other stages of the pipeline.
    prompts: what is continued.
    prompt: the one text that is continued instead.
    max_new_tokens: tokens added to every prompt; by default 128, or fewer where
      a model has no positions for so many.
    batch: prompts decoded together.
    batches: several such numbers, each in its turn; empty: `batch` alone.
    seed: of prompts and sampling.
    mesh: devices to run on.
    timed: whether time is taken. Without, nothing is said about speed, batches
      may be large and the machine busy; every step is recorded.
    probe: whether `specjax run` looks first if heads of others are read as
      they were trained.
    results: folder for rows and summary.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a small version of the same experiment, but for fields that the
      command line gives.
  """

  name: str
  target: Checkpoint
  candidates: dict[str, Candidate]
  draft: Draft = dataclasses.field(default_factory=Draft)
  dtype: Dtype = 'auto'
  weights: Weights = 'auto'
  rounds: bool = False
  exact: Literal['auto', 'bits'] = 'auto'
  drafters: tuple[str, ...] = ()
  verifiers: tuple[str, ...] = ('token',)
  gammas: tuple[Count, ...] = ()
  temperatures: Temperatures = (0.0, 1.0)
  sampling: SamplingValues = dataclasses.field(default_factory=SamplingValues)
  prompts: Prompts = dataclasses.field(default_factory=Prompts)
  prompt: str = ''
  max_new_tokens: Count | None = None
  batch: Count = 1
  batches: tuple[Count, ...] = ()
  seed: Seed = 0
  mesh: Mesh = dataclasses.field(default_factory=Mesh)
  timed: bool = True
  probe: bool = True
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False

  @property
  def known(self) -> dict[str, Candidate]:
    """Drafters by name; that of `draft` comes first.

    A draft of a GGUF file comes in four bits, too, at the end: where steps wait
    for memory, that draft is the faster one.
    """
    if not self.draft.place:
      return self.candidates
    given = vars(self.draft).items()
    own = {n: x for n, x in given if x and n not in ('path', 'load')}
    lm = Candidate('lm', 4, self.draft.place, own)
    drafters = {'lm': lm} | self.candidates
    if self.draft.path.endswith('.gguf'):
      few = own | {'bits': 4, 'rounds': self.rounds}
      drafters['lm-int4'] = Candidate('quantized', 4, self.draft.path, few)
    return drafters

  def shrink(self) -> None:
    """Leaves the quick version: two drafters, few and short texts.

    No fewer than are decoded together.
    Of several batches it leaves two, and two draft lengths with them.
    A field that the command line gave stays as it is.
    """
    self.drafters = self.drafters or tuple(self.known)[:2]
    if self.batches:
      lower(self, 'batches', self.batches[:2])
      lower(self, 'gammas', self.gammas[:2])
    rows = self.batches or (self.batch,)
    lower(self, 'prompts.count', min(self.prompts.count, max(2, *rows)))
    lower(self, 'max_new_tokens', min(self.max_new_tokens or 32, 32))


@dataclasses.dataclass
class OnDevice(Experiment):
  """An experiment, and a device that its speed is estimated for.

  Attributes:
    device: that is not there, as that of `specjax compiled`; empty: none.
  """

  device: str = ''


@dataclasses.dataclass
class Parity(Experiment):
  """Greedy texts of every drafter against those of another way to decode.

  Attributes:
    against: the comparison: `plain`, `batch`, `dtype` or `text` of
      `specjax.bench.comparisons`, or one like them by its full name.
    dtype: as that of `Experiment`; also float64.
    other_dtype: of the other side of `comparisons.dtype`.
    text: file of the other side of `comparisons.text`.
  """

  against: str = 'plain'
  dtype: AnyDtype = 'float32'
  other_dtype: AnyDtype = 'bfloat16'
  text: str = ''
  temperatures: Temperatures = (0.0,)
  max_new_tokens: Count | None = 64


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

  width: Count
  num_layers: Count
  num_heads: Count
  num_kv_heads: Count
  head_dim: Count
  mlp_width: Count


@dataclasses.dataclass
class TargetSize(Size):
  """Sizes of a target with random weights.

  Attributes:
    vocab_size: entries of its logits.
  """

  vocab_size: Count = 32_000


@dataclasses.dataclass
class Certificate:
  """A certificate: its subject, and how sure it is.

  Attributes:
    name: results go to runs/<name>-<hash of the settings>.
    dtype: of the tables that are models, and so of logits; auto is float32.
    rows: texts of each of ten settings that the loop makes at once.
    rounds: how many times it does.
    level: chance that any of the tests of the table is a false alarm.
    boost: the power is stated for chances of acceptance times this factor.
    seed: of the loops' keys.
    results: folder for rows and summary.
    compilation_cache: as that of an experiment.
    quick: fewer loops; every enumeration but those of trained heads.
    rule: the one thing that is certified instead, a `types.Rule` by its full
      name; numbers may stand behind a colon.
    drafter: likewise a load function, with the path that it reads behind a
      colon.
    policy: likewise a `policies.Policy`.
    foreign: full name of a function that verifies drafts for another system;
      see `certify.foreign`.
  """

  name: str = 'certify'
  dtype: Dtype = 'auto'
  rows: Count = 64
  rounds: Count = 128
  level: float = 1e-3
  boost: float = 1.1
  seed: Seed = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False
  rule: str = ''
  drafter: str = ''
  policy: str = ''
  foreign: str = ''


@dataclasses.dataclass
class Sizes:
  """A model whose sizes alone count.

  Attributes:
    path: of a checkpoint, of which `config.json` is enough; or a size of
      Llama 3: 70b, 8b, 3b, 1b.
  """

  path: str


@dataclasses.dataclass
class Compiled:
  """A device that is not there, and the pair that is compiled for it.

  Attributes:
    device: h100, h200, v5e, v5p or v6e; behind a colon the number of GPUs, as
      in h100:4, or the topology of TPUs, as in v5e:2x2.
    target: the target's sizes.
    draft: the draft's sizes.
    layers: of target and draft, to look at fewer; empty: all.
    programs: plain, chain, tree, pool (the step of a service) or prefill.
    dtype: of weights and caches.
    weights: how matrices are held: floats, int8 or int4.
    gamma: drafted tokens of a chain.
    widths: of the tree, children of each node of depth 0, 1, ...
    temperature: of all rows.
    sampling: the other stages of the pipeline.
    batch: rows.
    slots: of a cache.
    used: slots in use.
    alpha: chance that a drafted token is accepted.
    tau: tokens per target call that were measured for a chain; by default
      those that follow from alpha.
    mesh: chips to split over.
    attention: blocked, padded, fused, cudnn or split; empty: as the library
      has it.
    exact: bits: the target computes each row with the bits of plain decoding,
      see `models.uniform`. auto: as fast as it goes.
    texts: a folder for the compiled programs.
  """

  device: str = 'h100'
  target: Sizes = dataclasses.field(default_factory=lambda: Sizes('8b'))
  draft: Sizes = dataclasses.field(default_factory=lambda: Sizes('1b'))
  layers: tuple[Count, ...] = ()
  programs: tuple[Literal['plain', 'chain', 'tree', 'pool', 'prefill'], ...] = (
    'plain',
    'chain',
  )
  dtype: Literal['bfloat16', 'float16', 'float32'] = 'bfloat16'
  weights: Literal['floats', 'int8', 'int4'] = 'floats'
  gamma: Count = 4
  widths: tuple[Count, ...] = (4, 2, 1)
  temperature: Annotated[float, Between(0)] = 1.0
  sampling: SamplingValues = dataclasses.field(default_factory=SamplingValues)
  batch: Count = 1
  slots: Count = 2048
  used: Count = 1100
  alpha: Annotated[float, Between(0, 1)] = 0.8
  tau: Annotated[float, Between(1)] | None = None
  mesh: Mesh = dataclasses.field(default_factory=Mesh)
  attention: Literal['', 'blocked', 'padded', 'fused', 'cudnn', 'split'] = ''
  exact: Literal['auto', 'bits'] = 'auto'
  texts: str = ''
