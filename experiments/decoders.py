"""Both sides of the comparison: each decodes one prompt and is timed alike.

The time runs from the prompt's token ids in a Python list to the new ids in a
Python list, so it contains reading the prompt on both sides. No text ends
early: the end-of-text token means nothing to either side, and every text gets
exactly as many new tokens as were asked for, or it is an error.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from experiments import peers
from specjax import sampling
from specjax.bench import measure
from specjax.bench.methods import Loaded, Method
from specjax.bench.plan import Plan, PlannedDrafter
from specjax.errors import UserError

PLAIN = 'specjax plain'
DRAFT = 'specjax draft'
PEER = 'transformers plain'
PEER_EAGER = 'transformers plain, eager'
PEER_DEFAULTS = 'transformers assisted, defaults'
PEER_CONSTANT = 'transformers assisted, constant'
PEER_LOOKUP = 'transformers prompt lookup'
LM = 'specjax.drafters.lm.load'
NGRAM = 'specjax.drafters.ngram.load'
# Two greedy choices are as good where their logits differ by less than this,
# or than so many units in the last place of the largest one in 16 bits.
_TIE, _TIED_UNITS = 1e-3, 4
# Worker threads of the side before may spin for a while: let them sleep.
_PAUSE = 0.02


class Decoded(NamedTuple):
  """One prompt, decoded once."""

  tokens: list[int]  # the new ones
  seconds: float  # prompt included
  decoding: float | None  # without the prompt; unknown for transformers


class Gap(NamedTuple):
  """Between the logits of two tokens, and whether it is no more than a tie."""

  logits: float
  tie: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """A way to continue a prompt.

  Attributes:
    family: its row of the table; of each family one decoder is compared.
    draft: candidate it drafts with, if any.
    gamma: drafted tokens.
    call: (prompt, index, temperature) -> (new tokens, decoding seconds).
  """

  family: str
  draft: str | None
  gamma: int | None
  call: Callable[[list[int], int, float], tuple[list[int], float | None]]

  def decode(
    self, prompt: list[int], index: int, temperature: float, new_tokens: int
  ) -> Decoded:
    """Decodes and takes the time.

    Args:
      prompt: token ids.
      index: of the prompt; seeds the sampling.
      temperature: 0 is greedy.
      new_tokens: that there must be.

    Raises:
      RuntimeError: the text has another number of new tokens.
    """
    time.sleep(_PAUSE)
    begin = time.perf_counter()
    tokens, decoding = self.call(prompt, index, temperature)
    seconds = time.perf_counter() - begin
    if len(tokens) != new_tokens:
      raise RuntimeError(
        f'{self.family} made {len(tokens)} new tokens instead of {new_tokens}'
      )
    return Decoded(tokens, seconds, decoding)

  def warm_up(self, prompt: list[int], temperature: float, new_tokens: int):
    """Decodes a prompt twice.

    Raises:
      UserError: the other side cannot.
    """
    try:
      for _ in range(2):
        self.decode(prompt, 0, temperature, new_tokens)
    except Exception as error:
      if self.family.startswith('specjax'):
        raise
      raise UserError(
        f'temperatures: {self.family} with the draft {self.draft} fails at '
        f'temperature {temperature:g} ({type(error).__name__}: {error}); leave '
        'out the temperature, or the drafter'
      ) from error


def ours(plan: Plan, built: Loaded) -> list[Decoder]:
  """Plain decoding and one decoder for each candidate and draft length."""
  slots, _ = built.slots(plan.max_new_tokens)

  def make(family: str, way: measure.Decoding, method: Method | None):
    way = way._replace(spec=dataclasses.replace(way.spec, eos=()))
    warm = []  # the first call compiles, no later one may

    def call(prompt, index, temperature):
      values = sampling.make(1, temperature)
      job = measure.Job(
        [prompt],
        np.array([index]),
        values,
        plan.max_new_tokens,
        plan.seed,
        slots,
      )
      run = measure.decode(way, job, timed=bool(warm))
      warm.append(True)
      return run.texts[0], run.seconds

    draft, gamma = (method.drafter, method.gamma) if method else (None, None)
    return Decoder(family, draft, gamma, call)

  decoders = [make(PLAIN, built.base, None)]
  for method in built.methods:
    lm = plan.drafters[method.drafter].load == LM
    family = DRAFT if lm else f'specjax {method.drafter}'
    decoders.append(make(family, method.way, method))
  return decoders


class Peer:
  """The same checkpoints in the same types, under `generate` of transformers.

  Args:
    plan: of the comparison.
    dtype: of the target.
  """

  def __init__(self, plan: Plan, dtype: str = 'float32'):
    self.plan = plan
    self.torch, self.transformers = peers.libraries()
    self.target = peers.load(plan.target, dtype)
    self.eager = peers.load(plan.target, dtype, attn_implementation='eager')

  def options(self, temperature: float) -> dict:
    """Arguments of `generate`; unless told, it would sample with top-k 50."""
    options = {'max_new_tokens': self.plan.max_new_tokens, 'use_cache': True}
    if not temperature:
      return options | {'do_sample': False}
    return options | {
      'do_sample': True,
      'temperature': float(temperature),
      'top_k': 0,
      'top_p': 1.0,
    }

  def make(
    self,
    family: str,
    model,
    draft: str | None = None,
    gamma: int | None = None,
    **more,
  ) -> Decoder:
    torch = self.torch

    def call(prompt, index, temperature):
      torch.manual_seed(self.plan.seed * 1_000_003 + index)
      ids = torch.tensor([prompt], device=model.device)
      out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **self.options(temperature),
        **more,
      )
      return out[0, len(prompt) :].tolist(), None

    return Decoder(family, draft, gamma, call)

  def tokenizers(self, path: str) -> dict:
    """Arguments of `generate` where a draft has a tokenizer of its own.

    Greedy texts are then written again in the other tokens, and sampled ones
    drafted in the tokens of both.
    """
    read = self.transformers.AutoTokenizer.from_pretrained
    own, other = read(self.plan.target), read(path)
    if own.get_vocab() == other.get_vocab():
      return {}
    return {'tokenizer': own, 'assistant_tokenizer': other}

  def decoders(
    self, chosen: Sequence[tuple[str, PlannedDrafter, int, str | None]]
  ) -> list[Decoder]:
    """Plain decoding, and the counterparts of our drafters.

    Args:
      chosen: our drafters as (name, drafter, gamma, dtype).
    """
    made = [
      self.make(PEER, self.target),
      self.make(PEER_EAGER, self.eager),
    ]
    paths = set()
    for name, planned, gamma, dtype in chosen:
      if planned.load == NGRAM:
        made.append(
          self.make(
            PEER_LOOKUP,
            self.target,
            name,
            gamma,
            prompt_lookup_num_tokens=gamma,
          )
        )
      if planned.load != LM:
        continue
      assert dtype is not None  # It has weights.
      speaks = self.tokenizers(planned.path)
      if planned.path not in paths:  # The defaults know no gamma of ours.
        paths.add(planned.path)
        draft = peers.load(planned.path, dtype)
        made.append(
          self.make(
            PEER_DEFAULTS, self.target, name, assistant_model=draft, **speaks
          )
        )
      constant = {
        'num_assistant_tokens': gamma,
        'num_assistant_tokens_schedule': 'constant',
        'assistant_confidence_threshold': 0.0,
      }
      draft = peers.load(planned.path, dtype, constant)
      made.append(
        self.make(
          PEER_CONSTANT,
          self.target,
          name,
          gamma,
          assistant_model=draft,
          **speaks,
        )
      )
    return made

  def conditions(self) -> dict:
    """What the numbers of this side depend on."""
    from transformers.utils import is_sklearn_available

    defaults = self.transformers.GenerationConfig
    defaults = defaults._get_default_generation_params()
    return {
      'torch': self.torch.__version__,
      'torch_device': self.target.device.type,
      'torch_threads': self.torch.get_num_threads(),
      'attention': self.target.config._attn_implementation,
      # With scikit-learn the confidence threshold adapts to the text.
      'scikit_learn': is_sklearn_available(),
      'assistant_defaults': {
        name: defaults.get(name)
        for name in (
          'num_assistant_tokens',
          'num_assistant_tokens_schedule',
          'assistant_confidence_threshold',
        )
      },
    }

  def gap(self, prompt: list[int], mine: list[int], other: list[int]) -> Gap:
    """How much worse the worse token is where two greedy texts part.

    The largest logit less the smaller one of the two chosen tokens: where
    they are the two best, the gap between these.
    """
    pairs = zip(mine, other, strict=True)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    text = [[*prompt, *mine[:at]]]
    ids = self.torch.tensor(text, device=self.target.device)
    with self.torch.inference_mode():
      logits = self.target(ids).logits[0, -1]
    gap = float(logits.max() - logits[[mine[at], other[at]]].min())
    units = _TIED_UNITS * self.torch.finfo(logits.dtype).eps
    return Gap(gap, gap < max(_TIE, units * float(logits.abs().max())))
