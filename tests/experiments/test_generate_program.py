"""The program that shows where tokens came from."""

from specjax.bench import load
from specjax.bench.config import SamplingValues
from specjax.bench.plan import plan
from specjax.programs import generate
from tests.support import tiny


def test_the_stages_of_a_config_reach_the_text(folder):
  stages = SamplingValues(
    logit_bias=((7, 9.0), (9, 8.0)),
    repetition_penalty=1.3,
    presence_penalty=2.0,
    frequency_penalty=2.0,
    forbidden=(7,),
    min_new_tokens=20,
  )
  x = tiny.experiment(
    folder, drafters=('ngram',), max_new_tokens=20, sampling=stages
  )
  built = load.load_experiment(plan(x))
  tokens = generate.speak(built, [5, 6, 7, 5, 6], '', False)['tokens']
  assert len(tokens) == 20
  assert 7 not in tokens
  # The bias makes it come until the penalties have outgrown it.
  assert tokens[0] == 9
  assert set(tokens) != {9}
