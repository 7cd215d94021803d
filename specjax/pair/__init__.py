"""The embedded pair: a small target and its drafts, as shipped.

`configs/embedded_pair.py` says how they were made. Each model is a Hugging
Face directory in Llama layout beside this file.
"""

import pathlib

_CONSTRAINTS = 'constraints'


def path(name: str) -> str:
  """Directory of one of the models: 'target', 'draft-128', 'bigram', ...

  Raises:
    ValueError: there is no such model; the message lists those there are.
  """
  here = pathlib.Path(__file__).parent
  known = sorted(p.name for p in here.iterdir() if p.is_dir())
  known = [name for name in known if name[0] != '_' and name != _CONSTRAINTS]
  if name not in known:
    raise ValueError(
      f'no embedded model {name!r}: there are {", ".join(known) or "none"}'
    )
  return str(here / name)


def constraint(name: str) -> str:
  """File of an automaton for the pair's tokens: 'note', 'table', ...

  Beside it lies the JSON schema that it was compiled from; see
  `specjax.constraints.load`.

  Raises:
    ValueError: there is no such automaton; the message lists those there are.
  """
  folder = pathlib.Path(__file__).parent / _CONSTRAINTS
  known = sorted(file.stem for file in folder.glob('*.npz'))
  if name not in known:
    raise ValueError(
      f'no embedded constraint {name!r}: there are {", ".join(known) or "none"}'
    )
  return str(folder / f'{name}.npz')
