"""Every configuration a program takes: plain mutable dataclasses.

`ml_collections.config_flags` overrides any field from the command line and
refuses unknown ones; the programs check values before any work.
"""

import dataclasses
from typing import Any

from experiments.step_settings import Narrow as Narrow
from experiments.step_settings import Size as Size
from experiments.step_settings import Speed as Speed
from experiments.step_settings import TargetSize as TargetSize


@dataclasses.dataclass
class Checkpoint:
  """A Hugging Face directory.

  Attributes:
    path: of the directory, or owner/name or owner/name@revision of the Hub.
    dtype: of weights and cache, as `Experiment.dtype`; empty: of the target
      that of the experiment, of a draft the target's.
  """

  path: str = ''
  dtype: str = ''


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
  gamma: int
  path: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  verifiers: tuple[str, ...] = ()


@dataclasses.dataclass
class SamplingValues:
  """Stages of `specjax.sampling.make` besides the temperature; None: without.

  Attributes:
    top_k: so many of the most likely tokens are kept.
    top_p: the fewest tokens of this much probability are kept.
    min_p: tokens of this share of the largest probability are kept.
    logit_bias: pairs of a token and a number that its logit is raised by.
    repetition_penalty: lowers the logits of all tokens of text and prompt.
    presence_penalty: subtracted for tokens after the prompt, once each.
    frequency_penalty: subtracted as often as they occur there.
    forbidden: tokens that are never drawn.
    min_new_tokens: so many come before the text may end.
    regex: that every text must match as a whole.
    json_schema: file of a JSON schema, whose values every text must be, or of
      what `specjax.constraints` saved. A text that reaches `max_new_tokens` is
      cut, and is then no whole value.
  """

  top_k: int | None = None
  top_p: float | None = None
  min_p: float | None = None
  logit_bias: tuple[tuple[int, float], ...] | None = None
  repetition_penalty: float | None = None
  presence_penalty: float | None = None
  frequency_penalty: float | None = None
  forbidden: tuple[int, ...] | None = None
  min_new_tokens: int | None = None
  regex: str | None = None
  json_schema: str | None = None

  @property
  def constrains(self) -> bool:
    return self.regex is not None or self.json_schema is not None

  @property
  def stages(self) -> dict[str, Any]:
    """Arguments of `specjax.sampling.make`; constraints need compiling."""
    named = dict(vars(self))
    for name in ('regex', 'json_schema'):
      del named[name]
    return named


@dataclasses.dataclass
class Prompts:
  """What is continued: by default held-out text of the embedded corpus.

  Attributes:
    path: a file instead: .jsonl, .json (a list) or plain text, each also as
      .gz, or .parquet. Known by their fields: HumanEval, MBPP, GSM8K, MATH-500,
      Alpaca, questions with turns (MT-Bench, Spec-Bench, SPEED-Bench), XSum,
      CNN/DailyMail and WMT English-German. Plain text gives windows.
    dataset: of the hub, `name[@revision][:configuration]`; needs `datasets`.
    split: of the data set.
    domains: code, documentation, structured; of a file its categories; or all.
    field: of a record, the text to continue; where it is given without a form
      it is all that is written. `line` makes each line of plain text a prompt.
    form: the prompt, with fields in braces: 'summarize: {document}'.
    chat: put the tokenizer's chat template around the prompt.
    system: what the template puts before every conversation.
    template_kwargs: more that the template is told, {'enable_thinking': False};
      `chat_template` among it is a template instead of the tokenizer's.
    turns: of a conversation that are played, at most; 0: all. The prompt of a
      later turn holds the answers to those before it.
    count: prompts of each domain, drawn with the seed; all where fewer.
    length: tokens of a window, 96 by default; other prompts have at most so
      many, by default what the positions leave.
  """

  path: str = ''
  dataset: str = ''
  split: str = 'test'
  domains: tuple[str, ...] = ()
  field: str = ''
  form: str = ''
  chat: bool = False
  system: str = ''
  template_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
  turns: int = 1
  count: int = 20
  length: int | None = None


@dataclasses.dataclass
class Mesh:
  """Devices, and the processes that work on them together.

  Attributes:
    data: groups of devices that the rows of a batch are split over.
    model: devices of a group, which split the target's weights and cache.
    split_draft: split drafts over these too; else each device has them whole.
    processes: how many work together; 0: what the cluster says (Cloud TPU,
      Slurm), which then gives the next two as well.
    process: number of this one, from 0 on. Number 0 writes and prints.
    coordinator: host and port of process 0.
    timeout: seconds to wait for others to join, for signs of life, at the end.
  """

  data: int = 1
  model: int = 1
  split_draft: bool = False
  processes: int = 1
  process: int = 0
  coordinator: str = ''
  timeout: int = 300

  def facts(self) -> dict:
    """What of it decides the results."""
    return {n: getattr(self, n) for n in ('data', 'model', 'split_draft')}


@dataclasses.dataclass
class Experiment:
  """Drafters x rules x draft lengths x domains x temperatures.

  Attributes:
    name: results go to runs/<name>-<hash of the settings>, or to `results`.
    target: the target's checkpoint.
    draft: checkpoint of a draft; where given, a candidate `lm` loads it.
    dtype: of weights and cache: auto, float32, bfloat16 or float16. auto is
      the checkpoint's own, and on a CPU float32.
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
    max_new_tokens: tokens added to every prompt.
    batch: prompts decoded together.
    seed: of prompts and sampling.
    mesh: devices to run on.
    timed: whether time is taken. Without, nothing is said about speed, batches
      may be large and the machine busy; every step is recorded.
    probe: whether `experiments.run` looks first if heads of others are read as
      they were trained.
    results: folder for rows and summary.
    compilation_cache: folder of compiled programs; auto: the user's; off: none.
    quick: a small version of the same experiment.
  """

  name: str
  target: Checkpoint
  candidates: dict[str, Candidate]
  draft: Checkpoint = dataclasses.field(default_factory=Checkpoint)
  dtype: str = 'auto'
  drafters: tuple[str, ...] = ()
  verifiers: tuple[str, ...] = ('token',)
  gammas: tuple[int, ...] = ()
  temperatures: tuple[float, ...] = (0.0, 1.0)
  sampling: SamplingValues = dataclasses.field(default_factory=SamplingValues)
  prompts: Prompts = dataclasses.field(default_factory=Prompts)
  prompt: str = ''
  max_new_tokens: int = 128
  batch: int = 1
  seed: int = 0
  mesh: Mesh = dataclasses.field(default_factory=Mesh)
  timed: bool = True
  probe: bool = True
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False

  @property
  def known(self) -> dict[str, Candidate]:
    """Drafters by name; that of `draft` comes first."""
    if not self.draft.path:
      return self.candidates
    own = {'dtype': self.draft.dtype} if self.draft.dtype else {}
    lm = Candidate('lm', 4, self.draft.path, own)
    return {'lm': lm} | self.candidates

  def shrink(self) -> None:
    """Leaves the quick version: two drafters, few and short texts."""
    self.drafters = self.drafters or tuple(self.known)[:2]
    self.prompts.count = min(self.prompts.count, 2)
    self.max_new_tokens = min(self.max_new_tokens, 32)


@dataclasses.dataclass
class Parity(Experiment):
  """Greedy texts of every drafter against those of another way to decode.

  Attributes:
    against: the comparison: `plain`, `batch`, `dtype` or `text` of
      `experiments.measuring.comparisons`, or one like them by its full name.
    dtype: as that of `Experiment`; also float64.
    other_dtype: of the other side of `comparisons.dtype`.
    text: file of the other side of `comparisons.text`.
  """

  against: str = 'plain'
  dtype: str = 'float32'
  other_dtype: str = 'bfloat16'
  text: str = ''
  temperatures: tuple[float, ...] = (0.0,)
  max_new_tokens: int = 64


@dataclasses.dataclass
class ManyPrompts(Experiment):
  """Many prompts through the rows of a batch, in three ways.

  Attributes:
    batch: rows.
    shortest: fewest new tokens; drawn evenly from here to `max_new_tokens`.
    chunks: steps between two looks at what has finished, each tried.
    group: prompts read at once, at most.
    repeats: passes over all prompts; one prompt at a time takes a single one.
  """

  batch: int = 16
  shortest: int = 16
  chunks: tuple[int, ...] = (4,)
  group: int = 4
  repeats: int = 3
  temperatures: tuple[float, ...] = (1.0,)


@dataclasses.dataclass
class Arrivals(Experiment):
  """Requests that come at random times to the rows of a pool.

  Attributes:
    batch: rows.
    shortest: as that of `ManyPrompts`.
    fractions: rates, over that at which plain decoding is saturated.
    requests: of every rate.
    skipped: the first of them, which are not counted.
    chunk: steps of a turn.
    group: prompts read at once, at most.
    repeats: passes of saturated rows.
  """

  batch: int = 16
  shortest: int = 16
  fractions: tuple[float, ...] = (0.3, 0.6, 0.9, 1.2)
  requests: int = 200
  skipped: int = 40
  chunk: int = 2
  group: int = 4
  repeats: int = 2
  temperatures: tuple[float, ...] = (1.0,)

  def shrink(self) -> None:
    """Leaves the quick version: few and short texts, at two rates."""
    self.batch, self.group = min(self.batch, 4), 1
    self.prompts.count = min(self.prompts.count, 4)
    self.max_new_tokens = min(self.max_new_tokens, 16)
    self.shortest = min(self.shortest, 4)
    self.fractions = self.fractions[:2]
    self.requests, self.skipped = min(self.requests, 24), 4
    self.repeats = 1


@dataclasses.dataclass
class Languages(Experiment):
  """Texts within languages, one after the other.

  Attributes:
    languages: files of JSON schemas, or of what was saved of them, by name.
  """

  languages: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Certificate:
  """What is certified, and how surely.

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
  """

  name: str = 'certify'
  dtype: str = 'auto'
  rows: int = 512
  rounds: int = 16
  level: float = 1e-3
  boost: float = 1.1
  seed: int = 0
  results: str = ''
  compilation_cache: str = 'auto'
  quick: bool = False
