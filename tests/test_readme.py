"""What the README shows runs as it stands there."""

import functools
import pathlib
import re

import numpy as np
import pytest

from experiments import findings, readme, results
from specjax import generate, sampling, verify
from specjax.drafters import plain
from specjax.types import Params, Spec, Target
from tests import models, rows

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()
DOCUMENTS = [
  pytest.param(path.read_text(), id=path.name)
  for path in readme.documents(ROOT)
]


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
  loaded = namespace['load'](Target(models.tiny(11, 2)))
  assert loaded.params is None
  drafter = loaded.make(3)
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


@functools.cache
def committed():
  return results.read_folders(ROOT / 'results')[0]


def test_pages_are_documents():
  assert 'measuring.md' in {path.name for path in readme.documents(ROOT)}
  assert README.count('<!-- end -->') >= 10


@pytest.mark.parametrize('text', DOCUMENTS)
def test_what_is_marked_is_what_committed_rows_give(text):
  """`python -m experiments.tables results` would change nothing."""
  made, warnings = readme.fill(text, committed())
  assert warnings == []
  assert made == text


@pytest.mark.parametrize('text', DOCUMENTS)
def test_every_table_of_numbers_is_marked(text):
  """A table with an interval in it was measured, so it is made from rows."""
  typed = re.sub(r'<!-- \w+: .*?<!-- end -->', '', text, flags=re.DOTALL)
  lines = [line for line in typed.splitlines() if line.startswith('|')]
  assert [line for line in lines if re.search(r'\d\.\d+ \[', line)] == []


def test_pages_are_what_committed_rows_give():
  assert (ROOT / 'results/findings.md').read_text() == findings.text(
    committed()
  )


def test_a_part_that_cannot_be_made_is_kept_and_named():
  text = (
    'a\n<!-- table: nowhere / x -->\nold\n<!-- end -->\n'
    '<!-- section: made / nothing -->\nold\n<!-- end -->\n'
    '<!-- section: made / code -->\nold\n<!-- end -->\n'
  )
  made, warnings = readme.fill(text, {'made': [rows.row()]})
  assert 'no rows in results/nowhere' in warnings[0]
  said = "no heading begins with 'nothing'; there are 'All cells', "
  assert said in warnings[1]
  open_ended = '<!-- say: parity -->\nold\n' + text
  assert 'has no end' in readme.fill(open_ended, {})[1][0]
  assert made.count('\nold\n') == 2
  assert '#### code, temperature 0: plain decoding not timed' in made
