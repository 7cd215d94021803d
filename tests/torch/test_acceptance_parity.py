"""Acceptance as the loop counts it, and as torch's logits say it must be."""

import numpy as np
import pytest

from specjax import checkpoints, sampling, verify
from specjax.drafters import lm
from specjax.types import Params, Spec
from tests.support import family_outputs, models

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

pytestmark = pytest.mark.parity

GAMMA, NEW = 3, 24


def greedy(model, text, count):
  """`count` tokens that torch's logits put after a text."""
  added = []
  for _ in range(count):
    with torch.no_grad():
      logits = model(torch.tensor([text + added])).logits[0, -1]
    added.append(int(logits.argmax()))
  return added


def recounted(target, draft, prompt):
  """Accepted tokens and target calls of one prompt, without any loop of ours.

  A step without room for a whole draft and one more token is a call, and what
  it accepts counts nowhere.
  """
  text = greedy(target, prompt, NEW)
  done = accepted = calls = 0
  while done < NEW:
    drafted = greedy(draft, prompt + text[:done], GAMMA)
    matches = 0
    while matches < GAMMA and text[done:][matches : matches + 1] == [
      drafted[matches]
    ]:
      matches += 1
    calls += 1
    if NEW - done > GAMMA:
      accepted += matches
    done += matches + 1
  return text, accepted, calls


@pytest.fixture(scope='module')
def paths(tmp_path_factory):
  """A target, and a draft whose weights are near its own."""
  folder, random = tmp_path_factory.mktemp('pair'), np.random.default_rng(0)
  reference = family_outputs.load('llama')
  moved = {
    name: (x + 0.12 * x.std() * random.normal(size=x.shape)).astype(x.dtype)
    for name, x in reference.tensors.items()
  }
  draft = reference._replace(tensors=moved)
  return reference.write(folder / 'target'), draft.write(folder / 'draft')


def test_the_loop_accepts_what_torch_says(paths):
  prompts = family_outputs.load('llama').prompts[:8]
  loaded = [checkpoints.load(path) for path in paths]
  (target, weights), (draft, draft_weights) = loaded
  spec = Spec(target, lm.make(draft, GAMMA), verify.token)
  params = Params(weights, draft_weights)
  values = sampling.make(len(prompts), 0.0)
  state = models.decoded(spec, params, prompts, values, new_tokens=NEW)
  theirs = [
    transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    for path in paths
  ]
  expected = [recounted(*theirs, list(prompt)) for prompt in prompts]
  texts, accepted, calls = zip(*expected, strict=True)
  assert models.new_tokens(state) == [tuple(text) for text in texts]
  assert state.counts.accepted.sum(1).tolist() == list(accepted)
  assert state.counts.target_calls.tolist() == list(calls)
  # Neither all nor nothing: so there was something to count.
  assert 0.2 < sum(accepted) / (GAMMA * sum(calls)) < 0.9
