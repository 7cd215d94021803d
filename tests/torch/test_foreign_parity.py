"""The speculative sampling of transformers on trial, through its adapter."""

import pytest

from tests.support import foreign_on_trial

pytestmark = pytest.mark.parity

torch = pytest.importorskip('torch')

CUT = ('T 2, top-p 0.7',)


@pytest.fixture(autouse=True)
def one_thread():
  threads = torch.get_num_threads()
  torch.set_num_threads(1)
  yield
  torch.set_num_threads(threads)


def test_speculative_sampling_with_its_own_warpers_is_exact(monkeypatch):
  from experiments.foreign import huggingface

  rows, verdict = foreign_on_trial.judge(
    monkeypatch, huggingface.speculative, CUT
  )
  assert verdict.text == 'exact'
  assert rows[0]['enumerated'] == rows[0]['pairs'] == 8
  assert any('without a function' in note for note in verdict.notes)


def test_warpers_in_another_order_are_seen(monkeypatch):
  from experiments.foreign import huggingface

  right = huggingface._warp

  def wrong(logits, temperature, top_k, top_p):
    return right(right(logits, 1.0, top_k, top_p), temperature, 0, 1.0)

  monkeypatch.setattr(huggingface, '_warp', wrong)
  _, verdict = foreign_on_trial.judge(monkeypatch, huggingface.speculative, CUT)
  assert verdict.text == 'lossy'
