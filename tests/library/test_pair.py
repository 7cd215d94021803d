"""The shipped pair: batches of ragged prompts decode as plain rows do."""

import pathlib

import numpy as np
import pytest

from specjax import checkpoints, corpus, pair, prompts, sampling, verify
from specjax.bench import measure, ties
from specjax.bench.measure import Decoding
from specjax.drafters import lm, plain
from specjax.loop import generate
from specjax.types import Params, Spec

pytestmark = pytest.mark.usefixtures('optimized')

NEW = 48
LENGTHS = (1, 9, 20, 33, 47, 58, 80, 96)


def decode(spec, params, texts):
  job = measure.Job(
    texts, np.arange(len(texts)), sampling.make(len(texts), 0.0), NEW, 0,
    generate.slots_for(spec, max(LENGTHS) + NEW),
  )  # fmt: skip
  return job, measure.decode(Decoding(spec, params), job, timed=False).texts


@pytest.mark.slow
def test_ragged_batch_of_eight_is_eight_plain_rows():
  """Each difference must be a tie: a gap within the noise of float32."""
  model, weights = checkpoints.load(pair.path('target'))
  tokenizer = checkpoints.load_tokenizer(pair.path('target'))
  whole = [
    text
    for domain in corpus.DOMAINS
    for text in prompts.choose(tokenizer, domain, 3, max(LENGTHS), 1)
  ]
  texts = [t[:n] for t, n in zip(whole, LENGTHS, strict=False)]
  base = Spec(model, plain.make(), verify.token)
  alone = [decode(base, Params(weights, None), [text])[1][0] for text in texts]
  draft, params = checkpoints.load(pair.path('draft-128'))
  spec = Spec(model, lm.make(draft, 3), verify.token)
  job, found = decode(spec, Params(weights, params), texts)
  ways = [
    ties.way(Decoding(base, Params(weights, None)), 1, job.slots),
    ties.way(Decoding(spec, Params(weights, params)), len(texts), job.slots),
  ]
  values = sampling.make(1, 0.0)
  for i, (text, other) in enumerate(zip(alone, found, strict=True)):
    assert len(other) == NEW
    if text != other:
      judged = ties.explain(ways, texts[i], values, text, other)
      assert judged.verdict == 'tie'


def test_the_shipped_files_are_small():
  folder = pathlib.Path(pair.path('target')).parent
  total = sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())
  assert total <= 48e6  # 16 of them heads and distilled drafts
