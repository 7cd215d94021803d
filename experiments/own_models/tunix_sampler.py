"""A sampler of `google-tunix` that speculates, called as theirs is.

  sampler = SpeculativeSampler(module, tokenizer, cache_config, ngram.load)
  sampler(prompts, max_generation_steps=64, temperature=1.0, top_p=1.0, seed=7)

As in theirs a text is greedy unless `top_p` is given. Weights are arguments:
after `transformer_state` is set nothing is compiled again.
"""

import functools
import inspect
import types

import jax
import numpy as np
from tunix.generate import base_sampler, utils
from tunix.generate.sampler import Sampler

import specjax
from experiments.own_models import tunix


class SpeculativeSampler(Sampler):
  """Samples by a draft, which is a function of the target, such as a loader."""

  def __init__(
    self, transformer, tokenizer, cache_config, draft=None, gamma=4, model=None
  ):
    super().__init__(transformer, tokenizer, cache_config)
    self._model = model or tunix.adapt(transformer, cache_config.cache_size)
    target = specjax.Target.of(self._model, self.transformer_state)
    self._draft, self._gamma = draft and draft(target), gamma

  @functools.wraps(Sampler.__call__)
  def __call__(self, *args, **options):
    given = inspect.signature(Sampler.__call__).bind(self, *args, **options)
    given.apply_defaults()
    x = types.SimpleNamespace(**given.arguments)
    if x.return_logits or x.beam_size is not None or x.images is not None:
      raise ValueError('return_logits, beam_size, images: use their sampler')
    stages = {'temperature': x.temperature, 'top_p': x.top_p, 'top_k': x.top_k}
    stages = {} if x.top_p is None else stages
    if x.return_logprobs and (stages.get('temperature', 1) != 1):
      raise ValueError('return_logprobs: give temperature=1.0, or no top_p')
    texts = x.input_strings
    texts = [texts] if isinstance(texts, str) else texts
    prompts = [self.tokenize(text).tolist() for text in texts]
    ends = tuple(x.eos_tokens or [self.tokenizer.eos_id()])
    seed = 0 if x.seed is None else x.seed
    made = specjax.decode(
      specjax.Target.of(self._model, self.transformer_state, eos=ends),
      self._draft,
      prompts,
      gamma=self._gamma,
      new_tokens=x.max_generation_steps,
      seed=seed if isinstance(seed, int) else int(jax.random.bits(seed)),
      logprobs=0 if x.return_logprobs else None,
      forbidden=x.forbidden_tokens and tuple(x.forbidden_tokens),
      **stages,
    )
    longest, most = max(map(len, prompts)), x.max_prompt_length
    if most is None or most < longest:
      most = utils.next_power_of_2(longest)
    fit, pad = utils.pad_to_length, self.tokenizer.pad_id()
    tokens, logprobs = [], []
    for row, prompt in enumerate(prompts):
      before = prompt * x.echo
      new = made.tokens[row][: -1 if made.ended[row] else None]
      tokens.append(np.array([*before, *new], np.int32))
      own = made.logprobs[row][: len(new)] if x.return_logprobs else []
      logprobs.append([0.0] * len(before) + [one.value for one in own])
    shown = [self.tokenizer.decode(text.tolist()) for text in tokens]
    if x.pad_output:
      width = x.max_generation_steps + most * x.echo
      tokens = np.stack([fit(text, width, pad) for text in tokens])
      logprobs = [row + [0.0] * (width - len(row)) for row in logprobs]
    left = np.stack([fit(np.array(ids), most, pad, True) for ids in prompts])
    return base_sampler.SamplerOutput(
      shown, [], tokens, left, logprobs if x.return_logprobs else None
    )
