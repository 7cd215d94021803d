"""Files of encoder-decoders, and the programs that run them."""

import json

import jax
import numpy as np
import pytest

from configs import pair as config
from specjax import checkpoints, pair
from specjax.bench import measure
from specjax.bench.load import load_experiment
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.drafters import lm
from specjax.models.config import Encoder
from specjax.programs import generate as show
from specjax.programs import inspect
from specjax.serving import service
from specjax.types import Target
from tests.library.test_encoder_decoder import OPTIONS, without_a_layer
from tests.support import family_outputs, models, serving

UNREAD = (
  'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
)


def load(folder, name, change=dict):
  """The model of a family's files, whose tensors are changed."""
  made = family_outputs.load(name)
  made = made._replace(tensors=change(dict(made.tensors)))
  return checkpoints.load(made.write(folder))


def old(tensors):
  """The embedding is repeated, and there is a bias that is never read."""
  names = 'encoder.embed_tokens.weight', 'lm_head.weight'
  bias = {UNREAD: np.ones((8, 4), np.float16)}
  return tensors | dict.fromkeys(names, tensors['shared.weight']) | bias


def renamed(tensors):
  new = 'decoder.embed_tokens.weight'
  return tensors | {new: tensors.pop('shared.weight')}


@pytest.mark.parametrize(
  ('name', 'change'), [('t5', old), ('t5_v1_1', renamed)]
)
def test_other_files_hold_the_same_model(name, change, tmp_path):
  expected = load(tmp_path / 'a', name)
  found = load(tmp_path / 'b', name, change)
  assert found[0] is expected[0]
  jax.tree.map(np.testing.assert_array_equal, found[1], expected[1])


def test_heads_and_encoders_have_the_embedding(tmp_path):
  """A head that is not stored is the embedding; another one is refused."""

  def headless(tensors):
    del tensors['lm_head.weight']
    return tensors

  def other(tensors):
    double = 2 * tensors['shared.weight']
    return tensors | {'encoder.embed_tokens.weight': double}

  _, params = load(tmp_path / 'a', 't5_v1_1', headless)
  np.testing.assert_array_equal(params['unembedding'], params['embedding'].T)
  with pytest.raises(ValueError, match=r'unused tensors: encoder\.embed'):
    load(tmp_path / 'b', 't5', other)


# Programs


def attributes(c):
  """The `config.json` of a T5."""
  return {
    'model_type': 't5', 'vocab_size': c.vocab_size, 'd_model': c.width,
    'num_heads': c.num_heads, 'd_kv': c.head_dim, 'd_ff': c.mlp_width,
    'n_positions': c.max_positions, 'layer_norm_epsilon': c.norm_eps,
    'num_layers': c.encoder.num_layers, 'num_decoder_layers': c.num_layers,
    'decoder_start_token_id': c.encoder.start,
    'relative_attention_num_buckets': c.relative.buckets,
    'relative_attention_max_distance': c.relative.longest,
  }  # fmt: skip


@pytest.fixture(scope='module')
def folder(tokenizer, tmp_path_factory):
  """A T5 pair with the embedded tokenizer, and lines to translate."""
  path = tmp_path_factory.mktemp('t5')
  sizes = {'activation': jax.nn.relu, 'gated': False, 'norm_eps': 1e-6}
  tied = {'tied_embeddings': True, 'head_scale': 8**-0.5, 'num_kv_heads': 2}
  both = {'encoder': Encoder(1, start=1)}
  for name, layers in (('target', 2), ('draft', 1)):
    model = models.tiny(2048, layers, **OPTIONS | sizes | tied | both)
    if layers == 2:
      params = jax.jit(model.init)(jax.random.key(0))
    else:
      params = without_a_layer(params)
    checkpoints.save(
      path / name, model, params, tokenizer, attributes=attributes(model.config)
    )
  lines = '\n'.join(f'The house number {i} is small.' for i in range(4))
  (path / 'source.en').write_text(lines)
  return path


def experiment(folder):
  x = config.get_config()
  x.target.path, x.draft.path = str(folder / 'target'), str(folder / 'draft')
  x.drafters, x.temperatures, x.gammas = ('lm',), (0.0,), (2,)
  x.prompts.path = str(folder / 'source.en')
  x.prompts.form = 'translate English to German: {line}'
  x.prompts.count, x.max_new_tokens, x.quick = 2, 12, True
  return x


@pytest.mark.slow
def test_prompts_are_sources_and_texts_begin_anew(folder, tmp_path, capsys):
  x = experiment(folder)
  x.results = str(tmp_path / 'a')
  runner = Runner(plan(x))
  runner.run()
  (row,) = runner.folder.rows
  assert row['tokens'] == 2 * 12
  assert row['identical_to_plain'] == 2
  assert not row['differences']
  # Texts of 13 tokens; prompts of 20 and more lie with the encoder.
  assert runner.built.slots == (128, 128)
  (method,) = runner.built.methods
  (domain,) = runner.prompts
  assert max(map(len, runner.prompts[domain])) > 13
  job = runner.units(domain, 0.0)[0]
  made = measure.decode(method.way, job, timed=False)
  assert made.counts.tokens.tolist() == [12]

  x.prompt = runner.built.target.tokenizer.decode(job.prompts[0])
  show.main(x)
  shown, last = capsys.readouterr().out.split('\n', 1)
  assert shown == x.prompt
  assert shown.startswith('translate English to German: The house')
  assert json.loads(last.splitlines()[-1])['tokens'] == made.texts[0]


def test_inspect_describes_and_counts_what_a_step_reads(folder, capsys):
  inspect.main(experiment(folder))
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert found['refused'] == []
  target = found['models']['target']
  assert target['family'] == 't5'
  _, params = checkpoints.load(folder / 'target')
  encoder = sum(x.nbytes for x in jax.tree.leaves(params['encoder']))
  assert target['bytes_per_step'] == target['bytes_per_device'] - encoder


def test_a_draft_with_an_encoder_needs_a_target_with_one(folder):
  x = experiment(folder)
  x.target.path = str(pair.path('target'))
  with pytest.raises(ValueError, match=r'draft\.path is an encoder-decoder'):
    load_experiment(plan(x))
  with pytest.raises(ValueError, match='draft is an encoder-decoder'):
    lm.load(Target(models.TARGET), str(folder / 'draft'))


def test_a_service_has_room_for_the_token_that_an_answer_begins_with(folder):
  """Besides two drafted tokens, and the token behind them."""
  x, pair = serving.load(folder, predictions=0, plain=False)
  for length, slots in ((124, 128), (125, 256)):
    x.length = length
    held = service.open_pools(x, pair, 'tiny').held
    assert (held.slots, held.source_slots) == (slots, 128)
