"""What the README shows runs as it stands there."""

import pathlib
import re

import numpy as np

from specjax import generate, sampling, verify
from specjax.drafters import plain
from specjax.types import Params, Spec
from tests import models

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()


def decode(drafter, prompts):
  target = models.tiny(11, 2)
  params = Params(models.weights(target, 0), None)
  spec = Spec(target, drafter, verify.token)
  state = generate.start(
    params,
    prompts,
    spec=spec,
    new_tokens=24,
    key=generate.row_keys(0, range(len(prompts))),
    values=sampling.make(len(prompts), 0.0),
  )
  return generate.generate(params, state, 24, spec=spec)


def test_the_drafter_of_the_readme_is_complete():
  (source,) = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
  assert len(source.strip().splitlines()) <= 34
  namespace: dict = {}
  exec(compile(source, 'README.md', 'exec'), namespace)
  drafter, params = namespace['load'](None, 3)
  assert params is None
  prompts = [[1, 2, 2], [3], [4, 4, 4, 4, 5]]
  found = decode(drafter, prompts)
  expected = decode(plain.make(), prompts)
  for row in range(len(prompts)):
    length = int(expected.length[row])
    assert int(found.length[row]) == length
    np.testing.assert_array_equal(
      found.tokens[row, :length], expected.tokens[row, :length]
    )
  assert int(found.counts.drafted.sum()) > 0


def test_ci_runs_the_commands_of_the_readme():
  script = (ROOT / '.ci' / 'run').read_text()
  commands = re.findall(r'^readme "(.*)"$', script, re.MULTILINE)
  assert len(commands) == 2
  lines = README.splitlines()
  assert all(command in lines for command in commands)


def test_configs_named_in_the_readme_exist():
  names = set(re.findall(r'configs/\w+\.py', README))
  assert names
  assert all((ROOT / name).exists() for name in names)


def test_tables_of_results_are_the_committed_ones():
  """Every line of a table whose head is that of a committed table."""
  files = (ROOT / 'results').rglob('summary.md')
  made = {line for file in files for line in file.read_text().splitlines()}
  tables = re.findall(r'(?:^\|.*\n)+', README, re.MULTILINE)
  shown = [t.splitlines() for t in tables if t.splitlines()[0] in made]
  assert len(shown) >= 6
  assert [line for t in shown for line in t if line not in made] == []
