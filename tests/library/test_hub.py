"""Models by their names on the Hub: from a cache, and why they are refused."""

import json
import types
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import errors

import specjax
from specjax import checkpoints
from tests.support import family_outputs, hub
from tests.support.directories import assert_same, edit_config, refused

DESCRIBED = ('config.json',)
WEIGHTS = 'model.safetensors'


@pytest.fixture
def directory(tmp_path):
  return family_outputs.load('llama').write(tmp_path / 'model')


@pytest.fixture
def cache(tmp_path, monkeypatch):
  folder = tmp_path / 'cache'
  hub.use(folder, monkeypatch)
  return folder


def test_a_name_in_the_cache_is_its_directory(directory, cache):
  snapshot = hub.store(cache, 'owner/some-model.v1', directory)
  assert checkpoints.locate('owner/some-model.v1') == snapshot
  target = specjax.load('owner/some-model.v1')
  assert_same(target.params, checkpoints.load(directory)[1])
  assert checkpoints.revision_of(target.path) == hub.COMMITS[0]
  assert checkpoints.title_of(target.path) == 'some-model.v1'
  draft = specjax.drafters.lm.load(target, 'owner/some-model.v1')
  assert_same(draft.params, target.params)
  assert target.fingerprint() == checkpoints.fingerprint(directory)


def test_a_revision_is_the_one_behind_the_name(directory, cache, tmp_path):
  other = family_outputs.load('qwen2').write(tmp_path / 'other')
  hub.store(cache, 'owner/model', directory)
  hub.store(cache, 'owner/model', other, (), 'refs/pr/1', hub.COMMITS[1])
  for name, commit, family in (
    ('owner/model', 0, 'llama'),
    ('owner/model@main', 0, 'llama'),
    ('owner/model@refs/pr/1', 1, 'qwen2'),
    (f'owner/model@{hub.COMMITS[1]}', 1, 'qwen2'),
  ):
    assert checkpoints.describe(name).family == family
    path = checkpoints.locate(name)
    assert checkpoints.revision_of(path) == hub.COMMITS[commit]
    assert checkpoints.title_of(path) == checkpoints.title_of(name) == 'model'


def test_a_directory_comes_before_a_name(directory, cache, monkeypatch):
  monkeypatch.chdir(directory.parent)
  directory.rename(directory.parent / 'a@b')
  assert checkpoints.describe('../' + directory.parent.name + '/a@b')
  (directory.parent / 'owner').mkdir()
  (directory.parent / 'a@b').rename(directory.parent / 'owner/x@y')
  assert checkpoints.describe('owner/x@y').stored_bytes
  for path in ('owner/x@y', 'owner/x@y/'):
    assert checkpoints.title_of(path) == 'x@y'
  assert checkpoints.revision_of('owner/x@y') is None
  for folder in (
    'datasets--a--b/snapshots',
    'models--a--b/blobs',
    'models/snapshots',
  ):
    assert checkpoints.revision_of(f'/{folder}/commit') is None
  # A file is no model, and nothing is asked for.
  (directory.parent / 'owner/file').touch()
  refused('no directory and no GGUF', checkpoints.locate, 'owner/file')
  refused('must be a directory or .*, got 3', checkpoints.locate, 3)


def test_a_heads_name_is_read_like_that_of_a_model(cache):
  described = checkpoints.describe(specjax.pair.path('target'))
  target = specjax.types.Target(described.model)
  source = specjax.pair.path('early_exit_1')
  hub.store(cache, 'owner/exit', specjax.pair.pathlib.Path(source))
  named = specjax.drafters.early_exit.load(target, 'owner/exit')
  assert_same(
    named.params, specjax.drafters.early_exit.load(target, source).params
  )


def test_a_model_is_described_by_its_config_alone(directory, cache):
  hub.store(cache, 'owner/model', directory, DESCRIBED)
  here, there = (
    checkpoints.describe(path) for path in (directory, 'owner/model')
  )
  # What type the weights have is for their headers to say.
  same = here._replace(stored_bytes=None, dtype='float32', shapes=there.shapes)
  assert there == same
  absent = r'model.safetensors of owner/model@aaa.*is not in.*'
  offline = 'HF_HUB_OFFLINE is set: unset it'
  refused(absent + offline, checkpoints.load, 'owner/model')


def test_shapes_on_the_hub_are_checked_before_weights_are_fetched(
  directory, cache, monkeypatch
):
  snapshot = hub.store(cache, 'owner/model', directory, DESCRIBED)
  asked = []

  def ask(name, revision):
    asked.append((name, revision))
    header = huggingface_hub.parse_local_safetensors_file_metadata(
      directory / WEIGHTS
    )
    return types.SimpleNamespace(files_metadata={WEIGHTS: header})

  monkeypatch.setattr(huggingface_hub, 'get_safetensors_metadata', ask)
  here = checkpoints.describe(directory)
  there = checkpoints.describe('owner/model')
  assert asked == [('owner/model', hub.COMMITS[0])]
  # A file has its header besides, and before it that header's length.
  file = (directory / WEIGHTS).read_bytes()
  header_bytes = 8 + int.from_bytes(file[:8], 'little')
  assert there.stored_bytes == here.stored_bytes - header_bytes
  edit_config(snapshot, hidden_size=2 * here.model.config.width)
  refused('one of them is of another', checkpoints.describe, 'owner/model')

  def none(name, revision):
    raise errors.NotASafetensorsRepoError(f'{name}, {revision}')

  monkeypatch.setattr(huggingface_hub, 'get_safetensors_metadata', none)
  refused('must be converted first', checkpoints.describe, 'owner/model')
  assert not (snapshot / WEIGHTS).exists()


FILES = (
  'config.json', 'generation_config.json', 'model.safetensors.index.json',
  'model-1.safetensors', 'model-2.safetensors', 'model.fp16.safetensors',
  'pytorch_model.bin', 'tokenizer.json', 'tokenizer_config.json', 'vocab.json',
  'merges.txt', 'tokenizer.model', 'special_tokens_map.json', 'training.json',
  'added_tokens.json', 'chat_template.jinja', 'vocab.txt', 'README.md',
  'modeling_own.py', 'model.gguf', 'onnx/model.onnx', 'onnx/config.json',
  'original/tokenizer.model', 'original/consolidated.safetensors',
)  # fmt: skip


def test_only_needed_files_are_fetched(directory, cache, monkeypatch):
  shards = {f'model-{i}.safetensors' for i in (1, 2)}
  snapshot = cache / f'models--owner--model/snapshots/{hub.COMMITS[0]}'
  fetched, asked = [], []

  def fetch(name, *, revision, cache_dir, allow_patterns, ignore_patterns):
    asked.append((name, revision, cache_dir))
    wanted = huggingface_hub.utils.filter_repo_objects(
      FILES, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
    )
    fetched.append(set(wanted))
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in fetched[-1]:
      (snapshot / file).touch()
    index = {'weight_map': {name: name for name in shards}}
    (snapshot / 'model.safetensors.index.json').write_text(json.dumps(index))
    return str(snapshot)

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  checkpoints.locate('owner/model')
  described = fetched.pop()
  assert described == {*FILES[:3], *FILES[7:17]}
  checkpoints.locate('owner/model', weights=True)
  assert [files - described for files in fetched] == [set(), shards]
  # Nothing is asked for where everything is here.
  checkpoints.resolve(snapshot)
  assert len(fetched) == 2
  named = 'owner/model', None, None
  assert asked == [named, named, ('owner/model', hub.COMMITS[0], cache)]


def http(kind, status=404, text='404'):
  return kind(f'{text}\nlong', response=mock.MagicMock(status_code=status))


def local(cause):
  """The error of whoever finds nothing, for a cause."""
  error = errors.LocalEntryNotFoundError('Cannot find\na long story')
  error.__cause__ = cause
  return error


@pytest.mark.parametrize(
  ('error', 'says', 'remedy'),
  [
    (
      http(errors.RepositoryNotFoundError),
      'has no such model or a private one', 'set HF_TOKEN',
    ),
    (
      http(errors.GatedRepoError, 403),
      'owner/model@v2 is gated', 'accept its terms',
    ),
    (http(errors.RevisionNotFoundError), "has no revision 'v2'", 'behind @'),
    (
      local(errors.OfflineModeIsEnabled('no')),
      'HF_HUB_OFFLINE is set', 'pass a local directory',
    ),
    (
      local(ConnectionError('Name or service not known')),
      'cannot be reached (Name or', 'pass a local directory',
    ),
    (
      http(errors.HfHubHTTPError, 500, '500: sorry'),
      '(500: sorry)', 'try again',
    ),
    *(
      (
        http(errors.HfHubHTTPError, status, 'bad token'),
        'may not be read with this token (bad token)', 'HF_TOKEN',
      )
      for status in (401, 403)
    ),
    (OSError(28, 'No space left on device'), 'No space left', 'try again'),
  ],
)  # fmt: skip
def test_what_cannot_be_fetched_says_why_in_a_line(
  error, says, remedy, monkeypatch
):
  def fetch(*_, **__):
    raise error

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', fetch)
  text = refused('owner/model', specjax.load, 'owner/model@v2')
  assert says in text
  assert remedy in text


def test_a_repository_without_a_model_is_refused(cache, monkeypatch, directory):
  snapshot = hub.store(cache, 'owner/data', directory, DESCRIBED)
  (snapshot / 'config.json').unlink()

  def fetch(name, file, revision, cache_dir):
    del revision, cache_dir
    raise http(errors.RemoteEntryNotFoundError)

  monkeypatch.setattr(huggingface_hub, 'hf_hub_download', fetch)
  refused('owner/data has no config', checkpoints.describe, 'owner/data')
