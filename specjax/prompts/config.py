"""The configuration of prompts, and of how tokens are drawn."""

import dataclasses
from typing import Annotated, Any

from specjax.cli.fields import Between, Count


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
    json_schema: a JSON schema, whose values every text must be, its file, or
      a file that `specjax.constraints` saved. A text that reaches
      `max_new_tokens` is cut, and is then no whole value.
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
    """The arguments of `specjax.sampling.make` but the constraint."""
    named = dict(vars(self))
    for name in ('regex', 'json_schema'):
      del named[name]
    return named


@dataclasses.dataclass
class Prompts:
  """The prompts: by default held-out text of the embedded corpus.

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
  turns: Annotated[int, Between(0)] = 1
  count: Count = 20
  length: Count | None = None
