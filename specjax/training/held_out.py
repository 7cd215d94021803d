"""Acceptance on held-out prompts, by the loop and the rule of inference.

A loss says little about how a drafter will do: training reports this beside
it.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from specjax import prompts, sampling, verify
from specjax.corpus import DOMAINS
from specjax.loop import generate
from specjax.models.transformer import Model
from specjax.training import examples, folders, generated
from specjax.training.generated import Material
from specjax.training.recipes import Heads, HeldOut
from specjax.types import Drafter, Params, Spec, SpecState


@dataclasses.dataclass(frozen=True)
class Trial:
  """Prompts that drafters are tried on, and the target that judges.

  All prompts at all temperatures are the rows of one batch, so drafters that
  differ in their weights alone share one program.

  Attributes:
    target: the target model.
    weights: its parameters.
    texts: prompts by domain.
    x: the settings.
  """

  target: Model
  weights: Any
  texts: dict[str, list[list[int]]]
  x: HeldOut

  def decode(
    self, drafter: Drafter, params: Any, slots: int | None = None
  ) -> SpecState:
    """The state at the end; its rows are the prompts, for each temperature.

    Args:
      drafter: what drafts.
      params: its weights.
      slots: size of the buffer; by default what the longest text needs.
    """
    x = self.x
    texts = [text for texts in self.texts.values() for text in texts]
    times = len(x.temperatures)
    spec = Spec(self.target, drafter, verify.token)
    weights = Params(self.weights, params)
    state = generate.start(
      weights,
      texts * times,
      spec=spec,
      new_tokens=x.new_tokens,
      key=generate.row_keys(x.seed, np.tile(np.arange(len(texts)), times)),
      values=sampling.make(
        len(texts) * times,
        np.repeat(np.asarray(x.temperatures, np.float32), len(texts)),
      ),
      slots=slots,
    )
    return generate.generate(weights, state, x.new_tokens, spec=spec)

  def report(self, drafter: Drafter, params: Any) -> dict[str, Any]:
    """Alpha and tau by temperature.

    alpha is the mean of sum(min(p, q)) at the first drafted place of a step;
    tau is tokens per target call. tau also by domain.
    """
    counts = jax.device_get(self.decode(drafter, params).counts)
    sizes = [len(texts) for texts in self.texts.values()]
    ends = np.cumsum([0, *sizes])
    by_temperature = {}
    for i, temperature in enumerate(self.x.temperatures):
      rows = slice(i * ends[-1], (i + 1) * ends[-1])
      here = jax.tree.map(lambda x, rows=rows: x[rows], counts)
      by_temperature[f'T={temperature:g}'] = {
        'alpha': _round(here.overlap.sum() / here.histogram.sum()),
        'tau': _round(here.tokens.sum() / here.target_calls.sum()),
      } | {
        domain: _round(here.tokens[a:b].sum() / here.target_calls[a:b].sum())
        for domain, a, b in zip(self.texts, ends[:-1], ends[1:], strict=True)
      }
    return by_temperature

  def write(self, drafter: Drafter, params: Any) -> dict[str, np.ndarray]:
    """Each prompt with what the target writes behind it, by domain.

    At the lowest temperature. The rule is exact, so that is the target's text
    whoever drafts; with the drafter of the reports nothing is compiled anew.
    """
    starts = [len(text) for texts in self.texts.values() for text in texts]
    first = len(starts) * int(np.argmin(self.x.temperatures))
    state = self.decode(drafter, params)
    # Of longer prompts the last tokens: all begin at the same place.
    length = min(starts) + self.x.new_tokens
    tokens = np.stack(
      [
        np.asarray(state.tokens[first + i, start - min(starts) :][:length])
        for i, start in enumerate(starts)
      ]
    )
    ends = np.cumsum([len(texts) for texts in self.texts.values()])
    return dict(zip(self.texts, np.split(tokens, ends[:-1]), strict=True))


def _round(value) -> float:
  return round(float(value), 4)


def prepare(x: HeldOut, target: Model, weights: Any, tokenizer: Any) -> Trial:
  """Draws the prompts.

  Raises:
    ValueError: the held-out documents are too short.
  """
  texts = {
    domain: prompts.choose(
      tokenizer, domain, x.prompts, x.prompt_length, x.seed
    )
    for domain in DOMAINS
  }
  return Trial(target, weights, texts, x)


def begin(x: Heads) -> tuple[Material, Trial]:
  """Takes the folder of a recipe; what it learns from, and is tried on.

  Raises:
    UserError: the target, the data or the folder cannot be used.
  """
  generated.check(x)  # Before the folder is taken.
  folder = pathlib.Path(x.folder)
  folders.claim(folder, x)
  m = generated.gather(x)
  if m.examples is None:
    return m, prepare(x.held_out, m.target, m.weights, m.tokenizer)
  folders.claim_examples(folder, examples.fingerprint(m.examples))
  h = x.held_out
  texts = examples.prompts_of(
    m.examples.held_out, h.prompts, h.prompt_length, h.seed
  )
  return m, Trial(m.target, m.weights, {examples.DOMAIN: texts}, h)
