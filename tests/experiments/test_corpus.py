"""Tests of the embedded corpus: what is held out stays out."""

import csv
import importlib.util
import io
import itertools
import json
import re
import tomllib

import pytest

from specjax import corpus
from specjax.corpus import packages
from specjax.training import data


@pytest.fixture(scope='module')
def evaluation() -> dict[str, list[corpus.Document]]:
  return {
    domain: corpus.evaluation_documents(domain) for domain in corpus.DOMAINS
  }


@pytest.fixture(scope='module')
def training() -> dict[str, list[corpus.Document]]:
  return {
    domain: list(corpus.training_documents(domain)) for domain in corpus.DOMAINS
  }


def find_module(name: str) -> str:
  return name.split('/')[-1].split('.')[0]


@pytest.mark.slow
def test_training_repeats_little_of_the_evaluation(evaluation, training):
  """A share of all documents would hide one that is repeated whole.

  Training in one domain must not give away the evaluation of another.
  """
  # Hashes, as the lines of the whole library would take much memory.
  trained = {
    hash(line)
    for document in itertools.chain(*training.values())
    for line in packages.list_lines(document.text)
  }
  for documents in evaluation.values():
    lines, shared = set(), set()
    for document in documents:
      own = packages.list_lines(document.text)
      found = {line for line in own if hash(line) in trained}
      assert len(found) <= max(3, 0.2 * len(own)), document.name
      lines |= own
      shared |= found
    assert len(shared) < 0.05 * len(lines), sorted(shared)[:20]


@pytest.mark.parametrize('domain', corpus.DOMAINS)
def test_documents_are_sorted_and_distinct(domain, evaluation, training):
  for documents in (evaluation[domain], training[domain]):
    names = [document.name for document in documents]
    assert names == sorted(set(names))
    assert all(document.domain == domain for document in documents)
    assert all(document.text.strip() for document in documents)
  evaluated = {document.name for document in evaluation[domain]}
  assert evaluated.isdisjoint(document.name for document in training[domain])
  assert sum(len(x.text) >= 1500 for x in evaluation[domain]) >= 24
  # The evaluation needs no package of tests.
  if domain == 'code':
    assert not any('test' in name.split('.') for name in evaluated)


def test_held_out_modules_and_their_tests_are_in_no_training(training):
  for document in itertools.chain(*training.values()):
    if not document.name.startswith(('topics/', 'tables/', 'compiled/')):
      assert find_module(document.name) not in corpus.HELD_OUT_MODULES
  parts = {part for x in training['code'] for part in x.name.split('.')}
  assert parts.isdisjoint(f'test_{x}' for x in corpus.HELD_OUT_MODULES)


def test_held_out_topics_are_only_in_the_evaluation(evaluation, training):
  held_out = {f'topics/{topic}' for topic in corpus.HELD_OUT_TOPICS}
  trained = {document.name for document in training['documentation']}
  evaluated = {document.name for document in evaluation['documentation']}
  assert trained.isdisjoint(held_out)
  topics = {name for name in evaluated if name.startswith('topics/')}
  # Some distributions of Python leave the topics out altogether.
  assert topics <= held_out
  assert not topics or len(topics) >= 20


def test_tables_list_no_held_out_module(training):
  # What other modules import may be named; the key of a record may not.
  key = re.compile(
    r'^(?:\s*\{?"module": "|module = "|\| )?'
    rf'(?:{"|".join(corpus.HELD_OUT_MODULES)})\b',
    re.MULTILINE,
  )
  for document in training['structured']:
    if document.name.startswith(('imports/', 'tables/modules')):
      assert not key.search(document.text), document.name


def test_held_out_modules_have_a_source(evaluation):
  for module in corpus.HELD_OUT_MODULES:
    assert importlib.util.find_spec(module).origin.endswith('.py'), module
  found = {find_module(document.name) for document in evaluation['code']}
  assert found >= set(corpus.HELD_OUT_MODULES)


@pytest.mark.parametrize('domain', corpus.DOMAINS)
def test_second_reading_gives_the_same(domain, evaluation, training):
  assert corpus.evaluation_documents(domain) == evaluation[domain]
  if domain != 'code':  # Which is only read, and not generated.
    assert list(corpus.training_documents(domain)) == training[domain]


def test_unknown_domain_is_named_with_the_known():
  for read in (corpus.training_documents, corpus.evaluation_documents):
    with pytest.raises(ValueError, match=r'poetry.*code.*documentation.*struc'):
      read('poetry')


def test_structured_documents_follow_their_format(evaluation, training):
  seen = set()
  for document in evaluation['structured'] + training['structured']:
    extension = document.name.rsplit('.', 1)[1]
    seen.add(extension)
    kinds = kinds_of_lines(extension, document.text)
    assert len(kinds) == 1, document.name
  assert seen == {'csv', 'json', 'jsonl', 'md', 'toml', 'txt'}


def kinds_of_lines(extension: str, text: str) -> set:
  """Widths or keys of the records, which are all alike."""
  if extension == 'json':
    content = json.loads(text)
    return {content['count'], len(content['records'])}
  if extension == 'jsonl':
    return {tuple(json.loads(line)) for line in text.splitlines()}
  if extension == 'csv':
    return {len(row) for row in csv.reader(io.StringIO(text))}
  if extension == 'toml':
    return {len(tomllib.loads(text)['record']) > 0, True}
  if extension == 'md':
    rows = text.split('\n')[2:-1]
    return {len(re.findall(r'(?<!\\)\|', row)) for row in rows}
  return {extension}


# Some that copied held-out modules are among them; all take a while to read.
FEW = {'click', 'fontTools', 'optax', 'pygments', 'rich'}


@pytest.fixture(scope='module')
def read_from_packages() -> dict[str, list[corpus.Document]]:
  few = {x: y for x, y in packages.PACKAGES.items() if x in FEW}
  packages._read_modules.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(packages, 'PACKAGES', few)
    found = {
      domain: list(packages.training_documents(domain))
      for domain in corpus.DOMAINS
    }
  packages._read_modules.cache_clear()
  return found


@pytest.mark.slow
def test_packages_repeat_nothing_of_the_evaluation(
  evaluation, read_from_packages
):
  held_out = {
    line
    for document in itertools.chain(*evaluation.values())
    for line in packages.list_lines(document.text)
  }
  for document in itertools.chain(*read_from_packages.values()):
    shared = packages.list_lines(document.text) & held_out
    assert len(shared) < 3, document.name


def test_copies_of_held_out_modules_are_left_out(read_from_packages):
  read = {document.name for document in read_from_packages['code']}
  assert 'packages/fontTools.misc.textTools' in read
  assert 'packages/fontTools.misc.plistlib' not in read
  assert 'packages/click._textwrap' not in read


def test_packages_are_distinct_and_apart(read_from_packages):
  assert not read_from_packages['structured']
  for domain in ('code', 'documentation'):
    documents = read_from_packages[domain]
    assert len(documents) > 100
    assert len({document.name for document in documents}) == len(documents)
    for document in documents:
      assert document.domain == domain
      assert document.name.startswith(packages.PREFIX)
      assert '.tests.' not in document.name
  texts = [document.text for document in read_from_packages['code']]
  assert len(set(texts)) == len(texts)
  assert not any(text.startswith('#') for text in texts)


def test_missing_package_is_left_out_and_named(monkeypatch):
  packages._read_modules.cache_clear()
  monkeypatch.setattr(
    packages, 'PACKAGES', {'no_such_package': 'MIT', 'optax': 'Apache-2.0'}
  )
  missing, found = packages.describe_packages()
  assert missing == 'no_such_package not installed, left out (MIT)'
  assert re.fullmatch(r'optax \d\S+ \(Apache-2.0\)', found)
  names = {d.name for d in packages.training_documents('code')}
  packages._read_modules.cache_clear()
  assert 'packages/optax' in names
  assert all(name.startswith('packages/optax') for name in names)


def test_packages_have_streams_of_their_own():
  for domain, name, stream in (
    ('code', 'bisect', 'code'),
    ('code', 'test.test_os', 'tests'),
    ('code', 'packages/numpy.linalg', 'packages'),
    ('documentation', 'packages/jax', 'package_documentation'),
  ):
    assert data.stream_of(corpus.Document(domain, name, '')) == stream
