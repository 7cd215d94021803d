"""What a plan is: the values of an experiment, checked and frozen."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specjax import checkpoints
from specjax.bench.config import Mesh, Prompts, SamplingValues
from specjax.checkpoints import Description
from specjax.models.config import TransformerConfig
from specjax.types import LoadedDrafter, Rule


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedDrafter:
  """A drafter to run.

  Attributes:
    name: in rows; one that drafts for another is called `staged.inner`.
    field: of the config that named it.
    path_field: that its path comes from.
    load: full name of its load function, and
    read: that function.
    describe: what the same module tells of it without reading weights, and
    remembers: bytes a row that it keeps beside the cache of a model of its own,
      for the target's sizes; None where nothing.
    path: of its weights, likewise; empty where it has none.
    options: further arguments: one that drafts for this one is planned, too.
    stored: the options as rows have them.
    gammas: draft lengths.
    rules: it is judged by, by full name.
  """

  name: str
  field: str
  path_field: str
  load: str
  read: Callable[..., LoadedDrafter]
  describe: Callable[..., Description | None] | None
  remembers: Callable[..., int] | None
  path: str
  options: Mapping[str, Any]
  stored: Mapping[str, Any]
  gammas: tuple[int, ...]
  rules: Mapping[str, Rule]

  def levels(self) -> list['PlannedDrafter']:
    """This one and those that draft for it in turn."""
    inner = (v for v in self.options.values() if isinstance(v, PlannedDrafter))
    return [self, *(level for one in inner for level in one.levels())]

  def remembered(self, target: TransformerConfig) -> int:
    """Bytes a row that all these keep beside caches, for a target's sizes."""
    return sum(
      one.remembers(target, **one.options)
      for one in self.levels()
      if one.remembers is not None
    )

  @property
  def draft(self) -> str | None:
    """Names of the models that draft, the largest first; None without any."""
    paths = [one.path for one in self.levels() if one.path]
    return ' + '.join(map(checkpoints.title_of, paths)) or None

  @property
  def draft_revision(self) -> str | None:
    """Their commits on the Hub, likewise; None where none comes from there."""
    paths = [one.path for one in self.levels() if one.path]
    commits = [checkpoints.revision_of(path) for path in paths]
    return ' + '.join(c or '-' for c in commits) if any(commits) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """What is run, and where; fields are called as those of `Experiment`.

  Attributes:
    target: directory of the target; of a model of the Hub, its snapshot.
    dtype: of it, as it was asked for.
    drafters: by name.
    gammas: asked of every drafter; empty where each has its own.
    batch: of `batches`, the one that is decoded now; the largest at first.
    batches: prompts decoded together, each in its turn.
    results: folder of rows and summary.
    settings: that the folder belongs to.
  """

  name: str
  target: str
  dtype: str
  drafters: Mapping[str, PlannedDrafter]
  gammas: tuple[int, ...]
  temperatures: tuple[float, ...]
  sampling: SamplingValues
  prompts: Prompts
  prompt: str
  max_new_tokens: int
  batch: int
  batches: tuple[int, ...]
  seed: int
  mesh: Mesh
  timed: bool
  results: str
  quick: bool
  settings: Mapping[str, Any]

  @property
  def rules(self) -> tuple[str, ...]:
    """The full names of all rules that drafters are judged by."""
    every = (rule for one in self.drafters.values() for rule in one.rules)
    return tuple(dict.fromkeys(every))

  def levels(self) -> list[PlannedDrafter]:
    """The drafters, and all that draft for them."""
    return [one for each in self.drafters.values() for one in each.levels()]

  def draft_lengths(self) -> Iterator[tuple[str, int]]:
    """Every draft length, and how errors call it."""
    for one in self.levels():
      shared = self.gammas and one.name in self.drafters
      field = 'gammas' if shared else f'gamma of the drafter {one.name}'
      yield from ((field, gamma) for gamma in one.gammas)
