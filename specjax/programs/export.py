"""Writes a trained head in the form that vLLM and SGLang serve.

  specjax export runs/eagle3-pair/weights exported \\
    --target specjax/pair/target

The form is that of the speculators library. Of EAGLE-3 it has heads whose
attention reads token and feature side by side: train one with the option join
'pair' and the width of its target, as in `heads:eagle3_pair`. Of
DFlash and DSpark it has heads whose mask is a token: train one with the option
mask_token.
The last line of the output is one JSON object.
"""

import functools
import json
import pathlib

from specjax import checkpoints
from specjax.checkpoints.files import CONFIG, read_json
from specjax.cli import command
from specjax.drafters.dflash import published as dflash
from specjax.drafters.eagle import published as eagle
from specjax.drafters.heads import files, speculators
from specjax.errors import blame, need

# The kinds of heads that the form has, and how they are written.
_FORMS = {'eagle': eagle, 'dflash': dflash}


def write(
  head: str, folder: str, target: str, verifier: str, tokens: int | None
):
  """Writes the head of a target; returns the config.json of what is written.

  Raises:
    UserError: there is no such head or target, they do not belong together,
      the form does not have the head's options, or `tokens` are none; in one
      line.
  """
  need(
    tokens is None or tokens >= 1, f'--tokens must be at least 1, got {tokens}'
  )
  with blame('--target: '):
    place = checkpoints.resolve(target)
    described = checkpoints.describe(place)
    own = functools.partial(checkpoints.fingerprint, place)
    known = tuple(read_json(place / CONFIG).get('architectures') or ())
  with blame():
    place = checkpoints.resolve(head)
    kind = files.kind_of(place)
    need(
      kind in _FORMS,
      f'{head} is of the kind {kind}: the form of speculators has those of '
      f'{" and ".join(_FORMS)}',
    )
    config = files.read_config(place, kind)
    need(
      'kind' in config,
      f'{head} is in a published form already, and has no fingerprint: give '
      'the directory of a head that was trained here',
    )
    config, params = files.read(head, kind, own)
    made = _FORMS[kind].KIND.make(described.model, config)
    form = _FORMS[kind].form(made)
    model, name = described.model.config, verifier or target
    speculators.write(folder, form, params, model, name, known, tokens)
  return read_json(pathlib.Path(folder) / CONFIG)


def main() -> None:
  parser = command.Parser(__doc__)
  parser.add_argument('head', help='directory of the trained head')
  parser.add_argument('folder', help='to write; it must not exist')
  parser.add_argument('--target', required=True, help='checkpoint it is for')
  parser.add_argument(
    '--verifier', default='', help='what engines call the target; its path'
  )
  parser.add_argument(
    '--tokens',
    type=int,
    help='that engines draft at a time; 4, or a block without its first token',
  )
  x = parser.parse_args()
  config = write(x.head, x.folder, x.target, x.verifier, x.tokens)
  print(f'{x.folder} can be served: vllm serve --speculative-config, or')
  print('--speculative-draft-model-path of sglang, name it')
  print(json.dumps({'folder': x.folder, 'config': config}))


def start() -> None:
  command.guard(main)
