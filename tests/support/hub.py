"""A cache of the Hugging Face Hub, written by hand: there is no connection."""

import pathlib
import shutil
from collections.abc import Iterable

import pytest
from huggingface_hub import constants

COMMITS = 'a' * 40, 'b' * 40


def store(
  cache: pathlib.Path,
  name: str,
  source: pathlib.Path,
  files: Iterable[str] = (),
  revision: str = 'main',
  commit: str = COMMITS[0],
) -> pathlib.Path:
  """Puts files of a checkpoint, or all of it, into a cache as owner/model.

  Returns the snapshot of the commit, to which the revision points.
  """
  repository = cache / f'models--{name.replace("/", "--")}'
  snapshot = repository / 'snapshots' / commit
  snapshot.mkdir(parents=True, exist_ok=True)
  for file in files or (f.name for f in source.iterdir()):
    shutil.copy(source / file, snapshot / file)
  ref = repository / 'refs' / revision
  ref.parent.mkdir(parents=True, exist_ok=True)
  ref.write_text(commit)
  return snapshot


def use(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes a folder the cache of this process, which asks no network."""
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(cache))
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
