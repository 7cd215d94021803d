"""Rows of the windows: which layers see how many tokens."""

from collections.abc import Callable
from typing import Any

from specjax.checkpoints.families.table import Row
from specjax.checkpoints.families.values import flag, size, take

_SLIDING, _FULL = 'sliding_attention', 'full_attention'


def _no_windows(windows):
  """Without any window the field is empty."""
  return tuple(windows) if any(windows) else ()


def _only_window(config):
  """The one window that a file can name, or None."""
  windows = {w for w in config.windows if w is not None}
  if len(windows) > 1:
    raise ValueError(f'windows = {config.windows} of several sizes')
  return windows.pop() if windows else None


def _write_types(config):
  return [
    _FULL if config.window(i) is None else _SLIDING
    for i in range(config.num_layers)
  ]


def everywhere(default: int | None, switch: bool = False) -> Row:
  """Every layer has the window, or none has.

  Args:
    default: of `sliding_window`.
    switch: whether `use_sliding_window` must be true for it to count.
  """

  def read(rest, known):
    window = take(rest, 'sliding_window', size, default, null=None)
    if switch and not take(rest, 'use_sliding_window', flag, False):
      window = None
    return {'windows': _no_windows([window] * known['num_layers'])}

  def write(config):
    window = _only_window(config)
    switched = {'use_sliding_window': window is not None} if switch else {}
    return switched | {'sliding_window': window}

  return Row(read, write)


def _decode_types(layers):
  def decode(value):
    good = isinstance(value, list) and len(value) == layers
    if not good or not all(kind in (_SLIDING, _FULL) for kind in value):
      raise ValueError(f'{layers} times {_SLIDING!r} or {_FULL!r}')
    return value

  return decode


def by_layer(
  default: int,
  pattern: Callable[[int, dict[str, Any]], bool],
  switch: bool = False,
  sizes: tuple[tuple[str, int], ...] = (),
) -> Row:
  """Layers whose type says whether they have the window.

  Args:
    default: of `sliding_window`.
    pattern: (layer, sizes) -> whether it has one, for files without the types.
    switch: whether `use_sliding_window` must be true for any to have it.
    sizes: attributes that the pattern looks at, and their defaults.
  """

  def read(rest, known):
    layers = known['num_layers']
    window = take(rest, 'sliding_window', size, default, null=None)
    given = {name: take(rest, name, size, usual) for name, usual in sizes}
    if switch and not take(rest, 'use_sliding_window', flag, False):
      window = None
    types = take(rest, 'layer_types', _decode_types(layers), None)
    if types is None:
      types = [_SLIDING if pattern(i, given) else _FULL for i in range(layers)]
      if switch and window is None:
        types = [_FULL] * layers
    if window is None and _SLIDING in types:
      raise ValueError(
        f'layer_types has {_SLIDING!r}, but there is no sliding_window'
      )
    windows = [window if kind == _SLIDING else None for kind in types]
    return {'windows': _no_windows(windows)}

  def write(config):
    window = _only_window(config)
    switched = {'use_sliding_window': window is not None} if switch else {}
    # A file without a window would get the default.
    return switched | {
      'sliding_window': default if window is None else window,
      'layer_types': _write_types(config),
    }

  return Row(read, write)
