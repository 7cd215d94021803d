"""The distribution of whole texts, from the compiled float32 loop itself.

Many rows are generated and their first four tokens, an end of text included,
are compared with the exact distribution of plain sampling, which is enumerated
from full forward passes without a cache. Greedy and sampled rows, with and
without top-p, prompts of different lengths: all are rows of one batch, and each
drafter gives one p-value.

Seeds are fixed. Over all tests of this file together the false-alarm rate is
1e-4. `test_power` computes the other side: a rule that accepts with a chance
of 1.05 p / q instead of p / q is missed less than once in a hundred times. The
certificate plants larger bugs, and sees them.
"""

import collections
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.drafters import cascade, lm, ngram
from specjax.drafters.shapes import policies
from specjax.loop import generate
from specjax.models import table
from specjax.stats import fit_tests
from specjax.types import Params, Rule, Spec
from tests.support import models, papers_in_numpy

VOCAB = 5
END = 4
NEW = 4
ROUNDS = 32
ROWS = 128  # of one setting in one round

MODEL = models.tiny(VOCAB, 1)
TABLE = table.build(VOCAB)

# Prompt, temperature, top-p.
SETTINGS = (
  ((1,), 0.0, 1.0),
  ((2, 3), 0.5, 1.0),
  ((0, 1, 2, 0, 1), 1.0, 1.0),
  ((3,), 1.5, 1.0),
  ((1, 3, 3, 1, 3, 0, 2, 1, 3), 0.0, 0.7),
  ((2,), 0.5, 0.7),
  ((0, 3), 1.0, 0.7),
  ((2, 2, 1, 2, 2), 1.5, 0.7),
)

# Of every other setting, for whoever copies: see `drafters.ngram`.
PREDICTED = (3, 1, 0, 2, 1, 1, 3)

DRAFTERS = {
  'lm, K = 2': lm.make(MODEL, 2),
  'lm with a stop, K = 4': lm.make(MODEL, 4, policies.confidence(0.3)),
  'ngram, K = 3': ngram.make(3),
}
TESTS = len(DRAFTERS) + 4  # and accepted lengths, three of the table
LEVEL = 1e-4 / TESTS


def params_of(name: str) -> Params:
  draft = models.near(MODEL, 0) if name.startswith('lm') else None
  return Params(models.weights(MODEL, 0), draft)


@functools.cache
def model_after(setting: int, draft: bool = False):
  """The exact distribution that a model gives: text after the prompt -> [V]."""
  prompt, temperature, top_p = SETTINGS[setting]
  params = (models.near if draft else models.weights)(MODEL, 0)
  logits = models.without_cache(MODEL, params, prompt, NEW - 1)
  top_p = float(np.float32(top_p))
  return functools.cache(
    lambda text: papers_in_numpy.pipeline(
      logits[text], temperature, top_p=top_p
    )
  )


def table_after(setting: int):
  """The same for a table of logits, which looks at one token only."""
  prompt, temperature, top_p = SETTINGS[setting]
  logits = np.asarray(models.weights(TABLE, 0), float)
  top_p = float(np.float32(top_p))
  return lambda text: papers_in_numpy.pipeline(
    logits[(*prompt, *text)[-1]], temperature, top_p=top_p
  )


def states(spec: Spec, params: Params, steps: int, rounds: int):
  """Many finished states, and the setting of each of their rows."""
  which = np.tile(np.arange(len(SETTINGS)), ROWS)
  prompts, temperature, top_p = zip(*(SETTINGS[i] for i in which), strict=True)
  values = sampling.make(
    len(which),
    temperature,
    top_p=top_p,
    vocab_size=VOCAB,
    prediction=[
      sampling.behind(prompt, PREDICTED if i % 2 else ())
      for i, prompt in zip(which, prompts, strict=True)
    ],
  )
  begin = models.run(spec, params, prompts, values, new_tokens=NEW)
  for turn in range(rounds):
    key = generate.row_keys(1, turn * len(which) + np.arange(len(which)))
    state = models.copy(begin)._replace(key=key)
    yield which, generate.generate(params, state, jnp.int32(steps), spec=spec)


def misfit(spec: Spec, params: Params, after, rounds) -> fit_tests.Fit:
  """Compares new texts of all rows with plain sampling from the target.

  Args:
    spec: what runs.
    params: its parameters.
    after: number of a setting -> next-token distribution of the target.
    rounds: how many batches.
  """
  seen = [collections.Counter() for _ in SETTINGS]
  for which, state in states(spec, params, NEW, rounds):
    for setting, text in zip(which, models.new_tokens(state), strict=True):
      seen[setting][text] += 1
  return fit_tests.together(
    papers_in_numpy.fit(texts, papers_in_numpy.sample(after(i), NEW, spec.eos))
    for i, texts in enumerate(seen)
  )


@pytest.mark.parametrize(
  'name', models.slow_unless(['ngram, K = 3'], [*DRAFTERS][1:])
)
def test_the_law_of_the_text_is_that_of_the_target(name):
  spec = Spec(MODEL, DRAFTERS[name], verify.token, (END,))
  result = misfit(spec, params_of(name), model_after, ROUNDS)
  assert result.freedom > 200
  assert result.p_value > LEVEL


def test_accepted_lengths_follow_the_paper():
  """So does what is reported: the histogram after one step."""
  name, depth = 'lm, K = 2', 2
  spec = Spec(MODEL, DRAFTERS[name], verify.token, (END,))
  seen = np.zeros((len(SETTINGS), depth + 1), int)
  for which, state in states(spec, params_of(name), 1, ROUNDS):
    np.add.at(seen, which, np.asarray(state.counts.histogram))
  fits = []
  for i, row in enumerate(seen):
    step = papers_in_numpy.leviathan(
      model_after(i), model_after(i, draft=True), lambda text: len(text) < depth
    )
    # An end of text within a step changes nothing of what is accepted.
    chances = collections.Counter()
    for text, weight in step.items():
      chances[len(text) - 1] += weight
    assert row.sum() == ROUNDS * ROWS
    fits.append(papers_in_numpy.fit(dict(enumerate(row)), chances))
  total = fit_tests.together(fits)
  assert total.freedom >= 10
  assert total.p_value > LEVEL


def test_power():
  """A rule that accepts a twentieth too readily is hardly ever missed."""
  pairs = []
  for i in range(len(SETTINGS)):
    p, q = model_after(i), model_after(i, draft=True)
    wrong = papers_in_numpy.leviathan(
      p, q, lambda text: len(text) < 2, boost=1.05
    )
    wrong = papers_in_numpy.extend(wrong, p, NEW, (END,))
    pairs.append((papers_in_numpy.sample(p, NEW, (END,)), wrong))
  assert papers_in_numpy.power(ROUNDS * ROWS, pairs, LEVEL) > 0.99


def misfit_of_table(rule: Rule, drafter, draft=None) -> fit_tests.Fit:
  """A fast loop, whose target and draft are tables of logits."""
  draft = models.near(TABLE, 0) if draft is None else draft
  params = Params(models.weights(TABLE, 0), draft)
  spec = Spec(TABLE, drafter, rule, (END,))
  return misfit(spec, params, table_after, rounds=4)


def test_a_table_as_target_is_sampled_exactly():
  result = misfit_of_table(verify.token, lm.make(TABLE, 2))
  assert result.p_value > LEVEL


@pytest.mark.slow
def test_a_cascade_of_tables_is_sampled_exactly():
  """Drafts that were verified once are verified again, by the target."""
  drafter = cascade.make(TABLE, lm.make(TABLE, 2), 3)
  draft = Params(models.near(TABLE, 0), models.weights(TABLE, 1))
  result = misfit_of_table(verify.token, drafter, draft)
  assert result.freedom > 100
  assert result.p_value > LEVEL


@pytest.mark.slow
def test_trees_of_looked_up_tokens_leave_the_law_alone():
  drafter = ngram.make(2, 2, candidates=2, places=2, reference=True)
  text = models.reference_text(VOCAB)
  result = misfit_of_table(verify.recursive, drafter, text)
  assert result.p_value > LEVEL
