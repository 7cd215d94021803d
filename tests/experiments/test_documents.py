"""What the README and its pages show runs as it stands there."""

import functools
import pkgutil
import re

import pytest

import specjax
from experiments import tables
from experiments.papers import findings
from specjax import reports, sampling, verify
from specjax.drafters import plain
from specjax.types import Params, Spec, Target
from tests.support import models
from tests.support.processes import ROOT
from tests.support.rows import committed

README = (ROOT / 'README.md').read_text()
DRAFTERS = (ROOT / 'docs' / 'drafters.md').read_text()
WAYS = tables.documents(ROOT)
_PAGES = 'batches', 'serving', 'own_models', 'rollouts'
DOCUMENTS = [pytest.param(path, id=path.name) for path in WAYS]


def decode(drafter, prompts):
  target = models.tiny(11, 2)
  params = Params(models.weights(target, 0), None)
  spec = Spec(target, drafter, verify.token)
  values = sampling.make(len(prompts), 0.0)
  return models.decoded(spec, params, prompts, values, new_tokens=24)


def test_the_drafter_of_the_page_is_complete():
  (source,) = re.findall(r'```python\n(.*?)```', DRAFTERS, re.DOTALL)
  assert len(source.strip().splitlines()) <= 34
  namespace: dict = {}
  exec(compile(source, 'drafters.md', 'exec'), namespace)
  loaded = namespace['load'](Target(models.tiny(11, 2)))
  assert loaded.params is None
  drafter = loaded.make(3)
  prompts = [[1, 2, 2], [3], [4, 4, 4, 4, 5]]
  found = decode(drafter, prompts)
  expected = decode(plain.make(), prompts)
  assert models.new_tokens(found) == models.new_tokens(expected)
  assert int(found.counts.drafted.sum()) > 0


def test_ci_runs_the_commands_of_the_readme():
  script = (ROOT / '.ci' / 'run').read_text()
  commands = re.findall(r'^readme "(.*)"$', script, re.MULTILINE)
  assert len(commands) == 2
  assert len(README.encode()) <= 9_000
  lines = README.splitlines()
  assert all(command in lines for command in commands)


@pytest.mark.slow
@pytest.mark.parametrize('page', ['README', *map('docs/{}'.format, _PAGES)])
def test_the_library_runs_as_a_page_shows(page, capsys):
  text = (ROOT / f'{page}.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  # A client of the service has a test of its own.
  source = '\n'.join(block for block in blocks if 'openai' not in block)
  exec(compile(source, page, 'exec'), {})
  assert len(capsys.readouterr().out) > 20


@pytest.mark.parametrize('path', DOCUMENTS)
def test_what_a_page_names_exists(path):
  """Configs of its commands, modules, and the files that it links to."""
  text = path.read_text()
  for name in re.findall(
    r'\b(?:specjax|experiments)(?:\.(?![A-Z]+\b)\w+)+', text
  ):
    pkgutil.resolve_name(name)
  names = set(re.findall(r'configs/\w+\.py', text))
  assert [name for name in names if not (ROOT / name).exists()] == []
  links = re.findall(r'\]\(([^)#:]+)\)', text)
  assert links
  assert [x for x in links if not (path.parent / x).exists()] == []


@functools.cache
def summaries():
  return {name: reports.summary(rows) for name, rows in committed().items()}


@pytest.mark.parametrize('path', DOCUMENTS)
def test_what_is_marked_is_what_committed_rows_give(path):
  """`python -m experiments.tables results` would change nothing."""
  text = path.read_text()
  made, warnings = tables.fill(text, summaries(), WAYS[path])
  assert warnings == []
  assert made == text
  # A table with an interval in it was measured, so it is marked; but for the
  # tutorial, whose numbers `test_research` has its commands print.
  typed = re.sub(r'<!-- \w+: .*?<!-- end -->', '', text, flags=re.DOTALL)
  lines = [line for line in typed.splitlines() if line.startswith('|')]
  if path.name != 'research.md':
    assert [line for line in lines if re.search(r'\d\.\d+ \[', line)] == []


def test_pages_are_documents():
  texts = {path.name: path.read_text() for path in WAYS}
  assert {'README.md', 'measuring.md'} < texts.keys()
  assert sum(x.count('<!-- end -->') for x in texts.values()) >= 10
  # More tables than two are a notebook, which lies beside its results.
  tables_of = {
    n: len(re.findall(r'^\|[ :|-]+\|$', x, re.M)) for n, x in texts.items()
  }
  assert [name for name, count in tables_of.items() if count > 2] == []


def test_pages_are_what_committed_rows_give():
  for page in findings.PAGES:
    text = (ROOT / 'results' / page.file).read_text()
    assert text == findings.text(committed(), page)


def test_every_summary_begins_with_its_headline():
  for name, rows in committed().items():
    headline = reports.of(rows).headline(rows)
    assert len(headline) > 40
    assert summaries()[name].startswith(headline.rstrip())
    assert (ROOT / 'results' / name / 'summary.md').read_text() == (
      summaries()[name]
    )


def test_the_version_to_cite_is_that_of_the_package():
  cited = (ROOT / 'CITATION.cff').read_text()
  assert f'version: {specjax.__version__}\n' in cited
  setup = (ROOT / 'setup.cfg').read_text()
  assert 'version = attr: specjax.__version__' in setup
  (bibtex,) = re.findall(r'```bibtex.*?```', README, re.DOTALL)
  assert f'{{{specjax.__version__}}}' in bibtex
  assert bibtex in (ROOT / 'docs/index.md').read_text()
