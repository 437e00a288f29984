"""Hooks of MkDocs: the navigation is that of docs/README.md, and links to files that are no pages become text."""

import posixpath
import re

INDEX = "docs/README.md"


def pages_of(folder, files):
    """All pages of a folder, its README first."""
    found = sorted(f.src_uri for f in files.documentation_pages() if posixpath.dirname(f.src_uri) == folder)
    readme = folder + "/README.md"
    return [readme] + [page for page in found if page != readme]


def on_files(files, config):
    """Each section of the index is a tab. A page that is the README of a folder stands for the folder."""
    with open(posixpath.join(config["docs_dir"], INDEX), encoding="utf-8") as index:
        text = index.read()
    nav = [{"Home": ["README.md", INDEX]}]
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, rest = section.partition("\n")
        entries = []
        for line in re.findall(r"^- (.*)$", rest, flags=re.M):
            for name, target in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", line):
                page = posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), target))
                folder = posixpath.dirname(page)
                if page.endswith("/README.md") and folder.startswith("docs/"):
                    entries.append({name: pages_of(folder, files)})
                else:
                    entries.append({name[0].upper() + name[1:]: page})
        nav.append({title: entries})
    config["nav"] = nav
    return files


def on_page_markdown(markdown, page, config, files):
    """A link to source code, which is no page of the site, becomes its text."""

    def link(match):
        target = match.group(2).partition("#")[0]
        if not target or "://" in target:
            return match.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        return match.group(0) if files.get_file_from_path(path) else match.group(1)

    return re.sub(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)", link, markdown)
