"""Additions to mkdocs for this site (mkdocs.yml): pages of source and of the reference, formulas without JavaScript.

A page may link to any file of the repository, as it is read there: on the site such a link leads to a page that shows
the file. Each of its lines has an address: `source/tinymp/precision.py.html#L-100`.
"""

import ast
import html
import json
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

import browser
from tinymp.lab.explain import explain

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = {  # pages of the site that lie elsewhere in the repository
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "course.md": "course/README.md",
    "data.md": "DATA.md",
}
PAGES = {path: uri for uri, path in MADE.items()} | {"README.md": "index.md"}
COMMENTS = {".py": "#", ".toml": "#", ".cu": "//", ".cuh": "//", ".h": "//", ".cpp": "//"}
SHOWN = {*COMMENTS, "", ".ipynb", ".md", ".txt", ".json", ".mplstyle", ".cff"}  # others are copied
CACHE, SHAPES = "__pycache__", {"div": "block", "span": "inline"}
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
STRINGS = r'(?P<s>"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')'
WORDS = rf"\b(?P<k>{'|'.join([*keyword.kwlist, 'if', 'for', 'const', 'void', 'template', 'struct'])})\b"
WEIGHTS = {  # of pages in the search, where not 1; the search also takes "op" for the beginning of "optimizer"
    "questions.md": 1.5,
    "changelog.md": 0.3,
    "results/": 0.3,
    "source/course/03": 4,
    "source/course/": 0.8,
}
origins = dict(MADE)  # pages that are made here, and the files that they show


def address(path: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if path in PAGES or (path.startswith("docs/") and not path.endswith(".py")):
        return PAGES.get(path, path.removeprefix("docs/"))
    return f"source/{path}" + (".md" if Path(path).suffix in SHOWN else "")


def targets(page: File, links: Iterator[re.Match]) -> Iterator[tuple[re.Match, str]]:
    """Each link of a page, and the file of the repository to which it leads, for those that lead to one."""
    for link in links:
        path = normpath(join(dirname(origins.get(page.src_uri, f"docs/{page.src_uri}")), link[1]))
        if not path.startswith("..") and (ROOT / path).exists():
            yield link, path


def shown(path: str) -> str:
    """The page of a file or a folder, but for the file's lines, which `on_page_content` adds."""
    file = ROOT / path
    lesson = path.startswith("course/") and file.suffix == ".ipynb"  # the search finds it, by its own title
    title, index = ("", "") if lesson else (f"title: {path}\n", "search: {exclude: true}\n")
    page = f"---\n{title}hide: [navigation, toc]\n{index}---\n\n" + (f"# {path}\n\n" if title else "")
    if file.is_dir():
        page += "\n".join(f"- [{p.name}]({file.name}/{p.name})" for p in sorted(file.iterdir()) if p.name != CACHE)
    for cell in json.loads(file.read_text("utf-8"))["cells"] if file.suffix == ".ipynb" else []:
        fence = "~~~~" if cell["cell_type"] == "code" else ""
        page += f"{fence and '~~~~python'}\n{''.join(cell['source'])}\n{fence}\n\n"
        if lesson and browser.there and not fence and cell["source"][0].startswith("# "):  # below its title
            page += f'<a class="md-button" href="../../{browser.address(file.name)}">Open in the browser</a>\n\n'
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                page += f"![What the cell draws](data:image/png;base64,{''.join(picture).strip()})\n\n"
    return page


def listed(module: str) -> list[str]:
    """The names in a module's __all__, which grows by +=."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text("utf-8")).body
    ends = {ast.Assign: lambda node: node.targets[0], ast.AugAssign: lambda node: node.target}
    found = [node.value for node in body if type(node) in ends and ast.unparse(ends[type(node)](node)) == "__all__"]
    return [name for names in found for name in ast.literal_eval(names)]


def exported(package: str, only: list[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """(module, names) that a package exports, in the order of its __init__.py."""
    folder = ROOT / package.replace(".", "/")
    if not folder.is_dir():
        yield package, []
    body = ast.parse((folder / "__init__.py").read_text("utf-8")).body if folder.is_dir() else []
    late = [n for block in body if isinstance(block, ast.If) for n in block.body]  # imported when first used
    for node in [*body, *late]:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            names = [a.name for a in node.names if not a.asname and a.name[0] != "_" and a.name in (only or [a.name])]
            module = f"{package.rsplit('.', node.level - 1)[0]}.{node.module}"
            names = listed(module) if names == ["*"] else names
            if names:
                yield from exported(module, names) if (ROOT / module.replace(".", "/")).is_dir() else [(module, names)]


def reference(name: str) -> str:
    """The page of a package: what it exports, by module. mkdocstrings leaves out what the module does not define."""
    page = f"# {name if name in ('mp', 'examples.paper') else f'mp.{name}'}\n"
    for module, names in exported({"mp": "tinymp", "examples.paper": name}.get(name, f"tinymp.{name}")):
        options = f"{{heading: {module.split('.')[-1]}{f', members: {names}' if names else ''}}}"
        page += f"\n::: {module}\n    options: {options}\n"
    return page


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made here, and the files that pages show from elsewhere."""
    for uri, path in MADE.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    for name in config.extra["reference"]:
        files.append(File.generated(config, f"reference/{name}.md", content=reference(name)))
    linked = {p for page in files.documentation_pages() for _, p in targets(page, LINK.finditer(page.content_string))}
    for path in sorted({"tinymp", *linked}):
        within = [p.relative_to(ROOT).as_posix() for p in (ROOT / path).rglob("*") if CACHE not in p.parts]
        for one in (path, *within):
            if (uri := address(one)).startswith("source/") and uri not in origins:
                origins[uri] = one
                text = {"content": shown(one)} if uri.endswith(".md") else {"abs_src_path": str(ROOT / one)}
                files.append(File.generated(config, uri, **text))
    return files


def answered(asked: re.Match) -> str:
    """Questions of docs/questions.md with what `tinymp explain` says to the first."""
    found = explain(asked[1])
    to = '<a href="source/{}"><code>{}</code></a>'
    lines = [to.format(line.replace(":", ".html#L-"), name) for line, name in found.read.items()]
    rule, without, source = (html.escape(text) for text in found.topic[:3])
    return f"{asked[0]}\n\n{rule}\n\nWithout it: {without}\n\nRead {', '.join(lines)}. Source: {source}.\n\n"


def to_run(lesson: re.Match) -> str:
    """A lesson of the syllabus, and a link with which it runs in the browser."""
    return f'{lesson[0]}<br><small>▸ <a href="{browser.address(lesson[3])}">open in the browser</a></small>'


def on_post_build(config: Any) -> None:
    """The lessons in a browser, where JupyterLite is installed."""
    if browser.there:
        browser.build(Path(config.site_dir))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository become links to the pages that show them; questions are answered."""
    weight = next((WEIGHTS[start] for start in WEIGHTS if page.file.src_uri.startswith(start)), 1)
    page.meta.setdefault("search", {"boost": weight})
    if page.file.src_uri == "course.md" and browser.there:
        markdown = re.sub(r"(?m)^(\| \d+ \| )\[(.*?)\]\((.*?)\)", to_run, markdown)
    if re.match("results/(table|figure|formats)", page.file.src_uri):
        page.meta["hide"] = ["toc"]  # their tables are wide
    if page.file.src_uri == "questions.md":
        markdown = re.sub(r"^## (.*?\?).*$", answered, markdown, flags=re.M)
    for link, path in targets(page.file, reversed(list(LINK.finditer(markdown)))):
        to = relpath(address(path), dirname(page.file.src_uri) or ".") + (link[2] or "")
        markdown = f"{markdown[: link.start()]}]({to}){markdown[link.end() :]}"
    return markdown


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Formulas as MathML; the lines of a file."""
    for found in set(re.findall(r'(<(span|div) class="arithmatex">\\[([](.*?)\\[])]</\2>)', content, re.S)):
        content = content.replace(found[0], convert(html.unescape(found[2]), display=SHAPES[found[1]]))
    file = ROOT / origins.get(page.file.src_uri, ".")
    if page.file.src_uri.startswith("source/") and file.is_file() and file.suffix != ".ipynb":
        text = html.escape(file.read_text("utf-8"), quote=False)
        if file.suffix in COMMENTS:
            tokens = rf"{STRINGS}|(?P<c1>{COMMENTS[file.suffix]}.*)|{WORDS}"
            text = re.sub(tokens, lambda found: f'<span class="{found.lastgroup}">{found[0]}</span>', text)
        lines = (f'<a id="L-{i}" href="#L-{i}">{i:>5}</a>  {line}' for i, line in enumerate(text.split("\n"), 1))
        content += '<div class="highlight source"><pre><code>' + "\n".join(lines) + "</code></pre></div>"
    return content
