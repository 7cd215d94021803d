"""Files of encoder-decoders, and the programs that run them."""

import functools
import json

import jax
import numpy as np
import pytest

from configs import pair as config
from specjax import checkpoints, pair
from specjax.bench import load, measure
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.drafters import lm
from specjax.models.config import Encoder
from specjax.programs import generate as show
from specjax.programs import inspect
from specjax.types import Target
from tests.library.test_encoder_decoder import OPTIONS, without_a_layer
from tests.support import family_outputs, models

# Checkpoints


UNREAD = (
  'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
)


def rename(tensors, old, new):
  return tensors | {f'{new}.weight': tensors.pop(f'{old}.weight')}


@functools.cache
def reference(name):
  return family_outputs.load(name)


@pytest.mark.parametrize(
  ('name', 'changes'),
  [
    # Old files repeat the embedding, or have it under another name alone.
    ('t5', lambda t: t | {'encoder.embed_tokens.weight': t['shared.weight']}),
    ('t5', lambda t: t | {'lm_head.weight': t['shared.weight']}),
    ('t5_v1_1', lambda t: rename(t, 'shared', 'decoder.embed_tokens')),
    # They have a bias that is never read.
    ('t5', lambda t: t | {UNREAD: np.ones((8, 4), np.float16)}),
  ],
)
def test_other_files_hold_the_same_model(name, changes, tmp_path):
  expected = checkpoints.load(reference(name).write(tmp_path / 'a'))
  tensors = changes(dict(reference(name).tensors))
  other = reference(name)._replace(tensors=tensors)
  found = checkpoints.load(other.write(tmp_path / 'b'))
  assert found[0] is expected[0]
  jax.tree.map(np.testing.assert_array_equal, found[1], expected[1])


def test_a_head_that_is_not_stored_is_the_embedding(tmp_path):
  tensors = dict(reference('t5_v1_1').tensors)
  del tensors['lm_head.weight']
  path = reference('t5_v1_1')._replace(tensors=tensors).write(tmp_path / 'a')
  _, params = checkpoints.load(path)
  np.testing.assert_array_equal(params['unembedding'], params['embedding'].T)


def test_another_embedding_of_the_encoder_is_refused(tmp_path):
  tensors = dict(reference('t5').tensors)
  tensors['encoder.embed_tokens.weight'] = 2 * tensors['shared.weight']
  path = reference('t5')._replace(tensors=tensors).write(tmp_path / 'a')
  with pytest.raises(ValueError, match=r'unused tensors: encoder\.embed'):
    checkpoints.load(path)


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
def folder(tmp_path_factory):
  """A T5 pair with the embedded tokenizer, and lines to translate."""
  path = tmp_path_factory.mktemp('t5')
  tokenizer = checkpoints.load_tokenizer(pair.path('target'))
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


def test_a_draft_with_an_encoder_needs_a_target_with_one(folder, capsys):
  x = experiment(folder)
  x.target.path = str(pair.path('target'))
  with pytest.raises(ValueError, match=r'draft\.path is an encoder-decoder'):
    load.load_experiment(plan(x))
  with pytest.raises(ValueError, match='is an encoder-decoder'):
    inspect.main(x)
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert 'is an encoder-decoder' in found['refused'][0]
  with pytest.raises(ValueError, match='draft is an encoder-decoder'):
    lm.load(Target(models.TARGET), str(folder / 'draft'))


def test_long_prompts_and_texts_are_told_apart(folder):
  x = experiment(folder)
  x.prompt, x.max_new_tokens = 'a b ' * 400, 500
  with pytest.raises(ValueError, match='an encoder has 512 of the positions'):
    load.load_experiment(plan(x))
  x.max_new_tokens = 512
  with pytest.raises(ValueError, match=r'max_new_tokens \+ 1 is 513'):
    load.load_experiment(plan(x))
