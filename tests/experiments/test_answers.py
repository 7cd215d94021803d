"""Answers of a target: written, resumed, and learned from."""

import json

import pytest

import specjax
from specjax.bench.config import Prompts
from specjax.configs import answers as answers_config
from specjax.programs import answers
from specjax.training import train_heads
from specjax.training.recipes import Examples, Heads, HeldOut, Optimization
from tests.support import tiny
from tests.support.resumed import Killed, lines


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp('answers')
  tiny.write_pair(folder)
  records = [{'question': f'{i} and?', 'answer': 'x'} for i in range(9)]
  (folder / 'asked.jsonl').write_text('\n'.join(map(json.dumps, records)))
  return folder


def config(root, name, **changes):
  fields = {
    'prompts': Prompts(str(root / 'asked.jsonl')),
    'temperatures': (0.0, 1.0),
    'drafters': ('ngram',),
    'batch': 4,
    'results': str(root / name),
  }
  return tiny.experiment(root, **fields | changes)


def sort(found):
  return sorted(found, key=lambda x: (x['temperature'], x['prompt']))


def test_answers_are_those_of_the_target_and_go_on_where_they_stopped(
  root, monkeypatch, capsys
):
  answers.main(config(root, 'whole'))
  said = json.loads(capsys.readouterr().out.splitlines()[-1])
  whole = lines(root / 'whole' / answers.FILE)
  assert said['written'] == len(whole) == 18
  assert said['tokens'] == sum(len(x['answer_ids']) for x in whole)
  assert said['tau'] == pytest.approx(
    said['tokens'] / sum(x['target_calls'] for x in whole)
  )
  target = specjax.load(str(root / 'target'))
  greedy = sort(x for x in whole if x['temperature'] == 0)
  asked = [x['prompt_ids'] for x in greedy]
  alone = specjax.decode(target, None, asked, new_tokens=12)
  assert [x['answer_ids'] for x in greedy] == alone.tokens
  assert greedy[0]['asked'].startswith('Q: ')
  assert [x['ended'] for x in greedy] == alone.ended

  written = answers.written

  def cut(*args):
    for i, one in enumerate(written(*args)):
      if i == 5:
        raise Killed
      yield one

  x = config(root, 'cut', temperatures=(1.0,))
  with monkeypatch.context() as patched:
    patched.setattr(answers, 'written', cut)
    with pytest.raises(Killed):
      answers.main(x)
  assert len(lines(root / 'cut' / answers.FILE)) == 5
  with open(root / 'cut' / answers.FILE, 'a') as file:
    file.write('{"domain": "gsm')
  answers.main(x)
  # What is drawn depends on the place.
  drawn = sort(x for x in whole if x['temperature'])
  assert sort(lines(root / 'cut' / answers.FILE)) == drawn


def test_the_shipped_config_decodes_plainly(root, capsys):
  shipped = answers_config.get_config()
  x = config(root, 'plain', candidates=shipped.candidates, drafters=())
  answers.main(x)
  assert json.loads(capsys.readouterr().out.splitlines()[-1])['tau'] == 1
  answers.main(config(root, 'drafted'))
  plain, drafted = (
    [one['answer_ids'] for one in sort(lines(root / name / answers.FILE))]
    for name in ('plain', 'drafted')
  )
  assert plain[:9] == drafted[:9]  # At temperature 0.


@pytest.mark.slow
def test_two_commands_lead_from_questions_to_a_head(root, capsys):
  answers.main(config(root, 'first', temperatures=(1.0,)))
  file = json.loads(capsys.readouterr().out.splitlines()[-1])['answers']
  train_heads.main(
    Heads(
      folder=str(root / 'head'),
      target=str(root / 'target'),
      trainable='medusa',
      optimization=Optimization(((1, 1e-2), (4, 0.0)), 2, 16),
      options={'count': 2},
      examples=Examples(Prompts(file), held_out=0.4),
      held_out=HeldOut(3, 16, 8, depth=2),
    )
  )
  assert (root / 'head/weights/config.json').exists()
