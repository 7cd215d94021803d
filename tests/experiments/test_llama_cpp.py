"""llama.cpp as a peer, with a stand-in for its server."""

import math
import sys
import types

import pytest

from experiments import peers
from specjax.bench.config import Candidate
from specjax.bench.plan import plan_drafter
from specjax.errors import UserError

# Continues a prompt by counting on from its last token, in steps that tell the
# servers apart: 1 plain, 2 with a draft, 3 with n-grams.
SERVER = f"""#!{sys.executable}
import http.server, json, sys

if '--version' in sys.argv:
  print('version: 7 (of a stand-in)')
  raise SystemExit
options = dict(zip(*(iter(x.lstrip('-') for x in sys.argv[1:]),) * 2))
kinds = {{'draft-simple': 2, 'ngram-simple': 3}}
step = kinds.get(options.get('spec-type'), 1)
assert int(options.get('spec-draft-n-max', 5)) == 5
assert options['ctx-size'] == '256' and options['model'] == 'x.gguf'
assert int(options.get('spec-ngram-simple-size-m', 4)) == 4


class Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *args):
    pass

  def answer(self, content):
    self.send_response(200)
    self.end_headers()
    self.wfile.write(json.dumps(content).encode())

  def do_GET(self):
    self.answer({{}})

  def do_POST(self):
    asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
    last = asked['prompt'][-1]
    if 'n_probs' in asked:
      top = [{{'id': last + i, 'logprob': -0.5 * i}} for i in range(3)]
      self.answer({{'completion_probabilities': [{{'top_logprobs': top}}]}})
      return
    assert asked['ignore_eos'] and not asked['cache_prompt']
    assert asked['samplers'] == ['temperature']
    count = asked['n_predict'] - (asked['temperature'] == 9)
    tokens = [last + step * (i + 1) for i in range(count)]
    timings = {{'predicted_ms': 1500.0 + asked['seed']}}
    self.answer({{'tokens': tokens, 'timings': timings}})


address = options['host'], int(options['port'])
http.server.HTTPServer(address, Handler).serve_forever()
"""


@pytest.fixture
def peer(tmp_path):
  path = tmp_path / 'llama-server'
  path.write_text(SERVER)
  path.chmod(0o755)
  plan = types.SimpleNamespace(target='x.gguf', max_new_tokens=4, seed=0)
  made = peers.LlamaCpp(plan, str(tmp_path))
  with made.stack:
    yield made


def test_each_method_has_a_server_with_its_options(peer):
  drafters = {
    'lm': plan_drafter('lm', Candidate('lm', 5, 'small.gguf')),
    'copied': plan_drafter('copied', Candidate('ngram', 4)),
    'suffix': plan_drafter('suffix', Candidate('suffix', 4)),
  }
  chosen = [(n, p, p.gammas[0], None) for n, p in drafters.items()]
  plain, draft, copied = peer.decoders(chosen, 256)
  found = [x.decode([7, 10], 2, 0.0, 4) for x in (plain, draft, copied)]
  assert [x.tokens for x in found] == [
    [11, 12, 13, 14],
    [12, 14, 16, 18],
    [13, 16, 19, 22],
  ]
  # The prompt decides the seed; the server tells the time.
  assert [x.decoding for x in found] == [1.502] * 3
  assert all(x.seconds > 0 for x in found)
  assert [(x.family, x.draft, x.gamma) for x in (plain, draft, copied)] == [
    ('llama.cpp plain', None, None),
    ('llama.cpp draft', 'lm', 5),
    ('llama.cpp n-gram', 'copied', 4),
  ]
  with pytest.raises(RuntimeError, match='made 3 new tokens instead of 4'):
    plain.decode([7], 0, 9, 4)
  assert peer.conditions() == {'llama.cpp': '7 (of a stand-in)'}
  # A gap is that of the tokens where texts part: 9, 10 and 11 behind 9.
  gap = peer.gap([7], [8, 9, 10], [8, 9, 11])
  assert gap == peers.Gap(1.0, False)
  assert peer.gap([7], [8, 9], [8, 99]).logits == math.inf


@pytest.mark.parametrize(
  ('target', 'content', 'message'),
  [
    ('x.gguf', None, 'binaries: .* has no llama-server'),
    ('directory', '', 'target.path: directory is no GGUF file'),
    ('x.gguf', '#!/bin/false\n', 'binaries: .* does not answer'),
  ],
)
def test_what_is_no_server_is_refused(target, content, message, tmp_path):
  path = tmp_path / 'llama-server'
  if content is not None:
    path.write_text(content)
    path.chmod(0o755)
  plan = types.SimpleNamespace(target=target, max_new_tokens=4, seed=0)
  with pytest.raises(UserError, match=message):
    peers.LlamaCpp(plan, str(tmp_path)).decoders([], 256)
