"""What is asked of a target of another code base."""

import numpy as np

import specjax
from specjax.drafters import lm, ngram

NEW = 24


class Ids:
  """A tokenizer of texts that are numbers; 0 pads and ends."""

  def encode(self, text):
    return [int(token) for token in text.split()]

  def decode(self, ids):
    return ' '.join(map(str, ids))

  def bos_id(self):
    return None

  def pad_id(self):
    return 0

  eos_id = pad_id


def prompts(vocab: int, lengths=(5, 17, 30)) -> list[list[int]]:
  """Returns random prompts, longer than the windows of the tiny models.

  Tokens 0 to 2 pad and end texts in the packages.
  """
  rng = np.random.default_rng(0)
  return [rng.integers(3, vocab, length).tolist() for length in lengths]


def greedy(logits, vocab: int = 61, end: int = 0) -> list[list[int]]:
  """Returns greedy texts by the logits behind a text, up to its end."""
  made = []
  for prompt in prompts(vocab):
    text = [*prompt]
    while len(text) < len(prompt) + NEW and text[-1] != end:
      text.append(int(logits(text).argmax()))
    made.append(text[len(prompt) :])
  return made


def check_target(target, smaller, expected: list[list[int]]) -> None:
  """Compares with greedy texts, plain and speculative, and draws by seeds.

  Expected are texts of the package's own sampler for `prompts`. `smaller` is a
  draft of the same tokens.
  """
  texts = prompts(target.model.config.vocab_size)
  plain = specjax.decode(target, None, texts, new_tokens=NEW)
  assert plain.tokens == expected
  assert len({token for text in plain.tokens for token in text}) > 6
  drafters = {
    'ngram': ngram.load(target),
    'self': lm.of(target, target.model, target.params),
    'smaller': lm.of(target, smaller.model, smaller.params, widths=(2,)),
  }
  for name, drafter in drafters.items():
    made = specjax.decode(target, drafter, texts, new_tokens=NEW, gamma=3)
    assert made.tokens == plain.tokens, name
    if name == 'self':
      assert made.acceptance_rate == 1
      assert made.target_calls < plain.target_calls / 2
  drawn = [
    specjax.decode(
      target, drafter, few, new_tokens=8, gamma=3, temperature=1, seed=5
    ).tokens
    for few in (texts, texts, texts[:1])
  ]
  assert drawn[0] == drawn[1]
  assert drawn[0][:1] == drawn[2]  # Whatever stands beside it.
  assert drawn[0] != [text[:8] for text in plain.tokens]
