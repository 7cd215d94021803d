"""The comparison with transformers: both sides do the same work."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import against as program
from experiments import peers
from specjax import checkpoints
from specjax.bench import results
from specjax.bench.config import Candidate, Checkpoint, Experiment, Prompts
from specjax.models import transformer
from tests.support import tiny

pytestmark = pytest.mark.parity

pytest.importorskip('torch')

CONFIG = tiny.model(
  32, 2, 64, num_heads=4, num_kv_heads=2, head_dim=8, mlp_width=48,
  max_positions=96,
).config  # fmt: skip
NEW = 16
EOS = 3
FAMILIES = {
  program.PLAIN,
  program.DRAFT,
  'specjax ngram',
  peers.PEER,
  peers.PEER_EAGER,
  peers.PEER_DEFAULTS,
  peers.PEER_CONSTANT,
  peers.PEER_LOOKUP,
}


def make_tokenizer():
  import tokenizers
  import transformers

  letters = {chr(i + 48): i for i in range(CONFIG.vocab_size)}
  model = tokenizers.models.WordLevel(letters, unk_token='0')
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex(r'[\s\S]'), 'isolated'
  )
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token=chr(EOS + 48)
  )


def save(path, config, seed):
  model = transformer.build(config)
  params = model.init(jax.random.key(seed))
  # The end-of-text token is a likely one: a side that obeys it stops early.
  params['unembedding'] = params['unembedding'].at[:, EOS].mul(4.0)
  tokenizer = make_tokenizer()
  checkpoints.save(path, model, params, tokenizer, jnp.float32)


@pytest.fixture(scope='module')
def experiment(tmp_path_factory):
  folder = tmp_path_factory.mktemp('pair')
  save(folder / 'target', CONFIG, 0)
  save(folder / 'draft', dataclasses.replace(CONFIG, num_layers=1), 1)
  return Experiment(
    name='tiny',
    target=Checkpoint(str(folder / 'target')),
    candidates={
      'draft': Candidate(peers.LM, 3, str(folder / 'draft')),
      'ngram': Candidate(peers.NGRAM, 4),
    },
    prompts=Prompts(domains=('code',), count=2, length=12),
    max_new_tokens=NEW,
    results=str(folder / 'results'),
    quick=True,
  )


@pytest.fixture(scope='module')
def compared(experiment):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(program, '_LARGE', (1, 1))
    planned = program.prepare(experiment)
    comparison = program.Comparison(planned)
    comparison.run()
    folder = results.Folder(planned.results, planned.settings)
    program.report(comparison, folder)
  return comparison, folder


def test_every_method_decodes_every_prompt_to_the_end(compared):
  comparison, _ = compared
  assert set(comparison.chosen) == FAMILIES
  assert {len(runs) for runs in comparison.runs.values()} == {2}
  texts = [r.tokens for runs in comparison.runs.values() for r in runs]
  assert {len(text) for text in texts} == {NEW}
  assert any(EOS in text[:-1] for text in texts)


def test_greedy_texts_agree_with_transformers(compared):
  comparison, _ = compared
  for family in FAMILIES:
    found = comparison.agreement(family)
    differences = found['greedy_prompts'] - found['greedy_identical']
    assert found['greedy_prompts'] == 2
    assert found['greedy_ties'] == differences, family


def test_gap_sees_a_wrong_token(compared):
  comparison, _ = compared
  text = comparison.prompts[0][1]
  right = comparison.runs[peers.PEER, 0.0][0].tokens
  wrong = [*right[:5], (right[5] + 1) % CONFIG.vocab_size, *right[6:]]
  gap = comparison.peer.gap(text, right, wrong)
  assert gap.logits > 1e-3
  assert not gap.tie


def test_report_has_rows_table_and_ratios(compared):
  _, folder = compared
  # Temperatures, the domain and all of them together, methods.
  assert len(folder.rows) == 2 * 2 * len(FAMILIES)
  (row,) = (
    r
    for r in folder.rows
    if (r['method'], r['domain'], r['temperature']) == (peers.PEER, 'all', 0)
  )
  assert row['speedup'] == 1
  assert len(row['seconds_by_prompt']) == 2
  assert (folder.path / 'summary.md').read_text().count('###') == 4
  (result,) = json.loads((folder.path / 'result.json').read_text()).values()
  for name in ('plain_ratio', 'assisted_ratio', 'limit_ratio'):
    assert result[name] > 0
    assert result[f'{name}_ci'] is None  # Of two prompts.
  assert result['peer']['torch']
  times = {
    r['method']: sum(r['seconds_by_prompt'])
    for r in folder.rows
    if r['domain'] == 'all' and r['temperature'] == 0
  }
  theirs = min(times[peers.PEER], times[peers.PEER_EAGER])
  np.testing.assert_allclose(
    result['plain_ratio'], theirs / times[program.PLAIN], rtol=1e-6
  )


def test_both_sides_have_the_dtype_that_was_asked_for(experiment):
  narrow = dataclasses.replace(
    experiment, dtype='bfloat16', results=f'{experiment.results}-bfloat16'
  )
  comparison = program.Comparison(program.prepare(narrow))
  assert comparison.built.target.dtype == 'bfloat16'
  for model in (comparison.peer.target, comparison.peer.eager):
    assert {str(x.dtype) for x in model.parameters()} == {'torch.bfloat16'}
  best, *_, worst = (
    comparison.peer.target(comparison.peer.torch.tensor([[8]]))
    .logits[0, -1]
    .argsort(descending=True)
    .tolist()
  )
  assert not comparison.peer.gap([8], [best], [worst]).tie


def test_sampling_has_no_hidden_cut(compared):
  comparison, _ = compared
  peer = comparison.peer
  generation, _ = peer.target._prepare_generation_config(
    None, **peer.options(1.0)
  )
  processors = peer.target._get_logits_processor(
    generation_config=generation, input_ids_seq_length=1
  )
  assert generation.do_sample
  assert list(processors) == []


def test_without_torch_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  with pytest.raises(ValueError, match=r"pip install -e '\.\[parity\]'"):
    peers.libraries()
