"""Other programs that decode the same checkpoints, to compare with."""

import atexit
import contextlib
import dataclasses
import json
import pathlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import native
from specjax.bench import ties
from specjax.bench.plan import Plan, PlannedDrafter
from specjax.errors import UserError, install, need

Chosen = Sequence[tuple[str, PlannedDrafter, int, str | None]]


LM = 'specjax.drafters.lm.load'
FEW_BITS = 'specjax.drafters.quantized.load'
NGRAM = 'specjax.drafters.ngram.load'
PEER = 'transformers plain'
PEER_EAGER = 'transformers plain, eager'
PEER_DEFAULTS = 'transformers assisted, defaults'
PEER_CONSTANT = 'transformers assisted, constant'
PEER_LOOKUP = 'transformers prompt lookup'
# Two greedy choices are as good where their logits differ by less than this,
# or than so many units in the last place of the largest one in 16 bits.
_TIE, _TIED_UNITS = 1e-3, 4
# Worker threads of the side before may spin for a while: let them sleep.
_PAUSE = 0.02
_START = 120  # seconds that a server may take
_NULL = subprocess.DEVNULL
_LOOKUP = 3  # tokens that are looked for
_PROBABLE = 50  # tokens whose log-probabilities a server is asked for


class Decoded(NamedTuple):
  """One prompt, decoded once."""

  tokens: list[int]  # the new ones
  seconds: float  # prompt included
  decoding: float | None  # without the prompt, where that is known


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


def libraries() -> tuple[Any, Any]:
  """torch and transformers.

  Raises:
    UserError: they are not installed.
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise UserError(
      f'{error.name} is not installed: {install("parity")}'
    ) from error
  return torch, transformers


def device(torch) -> str:
  """Where the other side decodes: on a GPU where we do.

  Raises:
    UserError: torch does not see it.
  """
  if jax.default_backend() != 'gpu':
    return 'cpu'
  need(
    torch.cuda.is_available(),
    'jax decodes on a GPU that torch does not see: install torch with CUDA, or '
    'set JAX_PLATFORMS=cpu',
  )
  return 'cuda'


def load(
  path: str, dtype: str = 'float32', generation: dict | None = None, **options
):
  """A model whose `generate` has the library's defaults and knows no eos.

  Args:
    path: a Hugging Face directory.
    dtype: of its weights.
    generation: values other than the defaults.
    **options: of `from_pretrained`.
  """
  torch, transformers = libraries()
  place = device(torch)
  torch.set_num_threads(native.cores())
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path, dtype=getattr(torch, dtype), **options
  ).to(place)
  # One from the directory would bring the end-of-text token with it.
  model.generation_config = transformers.GenerationConfig(**generation or {})
  return model


class Transformers:
  """The checkpoints of both sides under `generate` of transformers.

  Args:
    plan: of the comparison.
    dtype: of the target.
  """

  name = 'transformers'
  plain = PEER, PEER_EAGER
  assisted = PEER_DEFAULTS, PEER_CONSTANT
  lookup = PEER_LOOKUP

  def __init__(self, plan: Plan, dtype: str = 'float32'):
    self.plan = plan
    self.torch, self.transformers = libraries()
    self.target = load(plan.target, dtype)
    self.eager = load(plan.target, dtype, attn_implementation='eager')

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

  def decoders(self, chosen: Chosen, slots: int) -> list[Decoder]:
    """Plain decoding, and the counterparts of our drafters.

    Args:
      chosen: our drafters as (name, drafter, gamma, dtype).
      slots: that a text needs; unused, since there is no such limit.
    """
    del slots
    made = [self.make(PEER, self.target), self.make(PEER_EAGER, self.eager)]
    paths = set()
    for name, planned, gamma, dtype in chosen:
      if planned.load == NGRAM:
        options = {'prompt_lookup_num_tokens': gamma}
        made.append(self.make(PEER_LOOKUP, self.target, name, gamma, **options))
      if planned.load != LM:
        continue
      assert dtype is not None  # It has weights.
      options = self.tokenizers(planned.path)
      if planned.path not in paths:  # The defaults know no gamma of ours.
        paths.add(planned.path)
        options['assistant_model'] = load(planned.path, dtype)
        made.append(self.make(PEER_DEFAULTS, self.target, name, **options))
      constant = {
        'num_assistant_tokens': gamma,
        'num_assistant_tokens_schedule': 'constant',
        'assistant_confidence_threshold': 0.0,
      }
      options |= {'assistant_model': load(planned.path, dtype, constant)}
      made.append(self.make(PEER_CONSTANT, self.target, name, gamma, **options))
    return made

  def conditions(self) -> dict:
    """Returns versions and settings that the numbers of this side depend on."""
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
    """Measures how much worse the worse token is where two greedy texts part.

    Returns the largest logit less the smaller one of the two chosen tokens.
    If they are the two best, this is the gap between them.
    """
    at = ties.first_difference(mine, other)
    text = [[*prompt, *mine[:at]]]
    ids = self.torch.tensor(text, device=self.target.device)
    with self.torch.inference_mode():
      logits = self.target(ids).logits[0, -1]
    gap = float(logits.max() - logits[[mine[at], other[at]]].min())
    units = _TIED_UNITS * self.torch.finfo(logits.dtype).eps
    return Gap(gap, gap < max(_TIE, units * float(logits.abs().max())))


class LlamaCpp:
  """A GGUF file under llama.cpp: a server for each method, on our threads.

  Its draft is chosen greedily, and so is what verifies it at temperature 0.
  A text does not end: the server gives the tokens that would end it no chance,
  so texts are compared up to where ours would end.

  Args:
    plan: of the comparison.
    binaries: folder of `llama-server`.

  Raises:
    UserError: there is no server, or the target is no GGUF file.
  """

  name = 'llama.cpp'
  plain: tuple[str, ...] = ('llama.cpp plain',)
  assisted: tuple[str, ...] = ('llama.cpp draft',)
  lookup = 'llama.cpp n-gram'

  def __init__(self, plan: Plan, binaries: str):
    self.plan = plan
    self.program = pathlib.Path(binaries, 'llama-server')
    need(
      self.program.is_file(),
      f'binaries: {binaries} has no llama-server; give the folder of a build',
    )
    need(
      plan.target.endswith('.gguf'),
      f'target.path: {plan.target} is no GGUF file, which llama.cpp reads',
    )
    self.stack = contextlib.ExitStack()  # of servers, which end with us
    atexit.register(self.stack.close)
    self.address = ''  # of the plain one
    self.slots = 0

  def decoders(self, chosen: Chosen, slots: int) -> list[Decoder]:
    """Starts plain decoding and the counterparts of our drafters."""
    (plain,), (draft,) = self.plain, self.assisted
    self.slots = slots
    self.address = self._serve()
    made = [self._decoder(plain, None, None, self.address)]
    for name, planned, gamma, _ in chosen:
      if planned.load == LM:
        address = self._serve(
          *('--spec-type', 'draft-simple', '--spec-draft-model', planned.path),
          *('--spec-draft-n-max', gamma),
        )
        made.append(self._decoder(draft, name, gamma, address))
      if planned.load == NGRAM:
        address = self._serve(
          *('--spec-type', 'ngram-simple'),
          *('--spec-ngram-simple-size-m', gamma),
          *('--spec-ngram-simple-size-n', _LOOKUP),
        )
        made.append(self._decoder(self.lookup, name, gamma, address))
    return made

  def _serve(self, *options: Any) -> str:
    """Starts a server, and returns its address once it answers."""
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    threads = native.cores()
    usual = {
      'model': self.plan.target,
      'threads': threads,
      'threads-batch': threads,
      'parallel': 1,
      'ctx-size': self.slots,
      'host': '127.0.0.1',
      'port': port,
    }
    given = [x for k, v in usual.items() for x in (f'--{k}', v)]
    command = [str(x) for x in (self.program, *given, *options)]
    server = subprocess.Popen(command, stdout=_NULL, stderr=_NULL)
    self.stack.callback(server.wait)
    self.stack.callback(server.kill)
    address = f'http://127.0.0.1:{port}'
    end = time.monotonic() + _START
    while time.monotonic() < end and server.poll() is None:
      with contextlib.suppress(OSError):
        urllib.request.urlopen(f'{address}/health').read()
        return address
      time.sleep(0.1)
    raise UserError(f'binaries: {" ".join(command)} does not answer; try it')

  def _ask(self, address: str, prompt: list[int], **options: Any) -> dict:
    asked = {'prompt': prompt, 'cache_prompt': False, **options}
    request = urllib.request.Request(
      f'{address}/completion',
      json.dumps(asked).encode(),
      {'Content-Type': 'application/json'},
    )
    return json.loads(urllib.request.urlopen(request).read())

  def _decoder(
    self, family: str, draft: str | None, gamma: int | None, address: str
  ) -> Decoder:
    def call(prompt, index, temperature):
      found = self._ask(
        address,
        prompt,
        n_predict=self.plan.max_new_tokens,
        ignore_eos=True,
        return_tokens=True,
        samplers=['temperature'],
        temperature=temperature,
        seed=self.plan.seed * 1_000_003 + index,
      )
      return found['tokens'], found['timings']['predicted_ms'] / 1e3

    return Decoder(family, draft, gamma, call)

  def conditions(self) -> dict:
    """Returns the version, and the settings that its numbers depend on."""
    found = subprocess.run(
      [str(self.program), '--version'], capture_output=True, text=True
    )
    version, *_ = (found.stdout + found.stderr).strip().splitlines()
    return {'llama.cpp': version.removeprefix('version: ')}

  def gap(self, prompt: list[int], mine: list[int], other: list[int]) -> Gap:
    """Measures how much worse the worse token is where two greedy texts part.

    Returns the difference of log-probabilities; infinity where one of the two
    is none of the most probable tokens.
    """
    at = ties.first_difference(mine, other)
    (found,) = self._ask(
      self.address, [*prompt, *mine[:at]], n_predict=1, n_probs=_PROBABLE
    )['completion_probabilities']
    known = {x['id']: x['logprob'] for x in found['top_logprobs']}
    two = [known.get(text[at], -np.inf) for text in (mine, other)]
    gap = max(known.values()) - min(two)
    return Gap(gap, gap < _TIE)
