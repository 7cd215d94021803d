"""Hooks that add results, which pages link to, to the site.

Pages link to files of the checkout by relative paths, which a code host shows.
Results that are pages or figures become part of the site. Other links lead to
`repo_url` of mkdocs.yml; without such an address their text stays.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r'(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)')


def _place(uri: str, link: str) -> str:
  """Returns the path in the checkout that a page of the site links to."""
  page = uri if (ROOT / uri).exists() else f'docs/{uri}'
  return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def on_files(files, config):
  """Adds linked results to the files of the site."""
  for page in list(files.documentation_pages()):
    for found in LINK.finditer(page.content_string):
      path = _place(page.src_uri, found[3])
      shown = re.fullmatch(r'results/.*\.(md|png|svg)', path)
      new = files.get_file_from_path(path) is None
      if shown and new and (ROOT / path).exists():
        files.append(File(path, str(ROOT), config.site_dir, True))
  return files


def on_page_markdown(markdown, page, config, files):
  """Leads links to where the site or the repository has their files."""

  def led(found: re.Match) -> str:
    mark, words, link, part = found.groups()
    path = _place(page.file.src_uri, link)
    uri = path.removeprefix('docs/')
    if not (ROOT / path).exists():
      return found[0]  # A dead link, of which mkdocs warns.
    if files.get_file_from_path(uri):
      here = posixpath.dirname(page.file.src_uri) or '.'
      return f'{mark}[{words}]({posixpath.relpath(uri, here)}{part or ""})'
    if config.repo_url:
      return f'{mark}[{words}]({config.repo_url}/blob/HEAD/{path})'
    return words

  return LINK.sub(led, markdown)
