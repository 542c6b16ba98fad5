"""Generated pages match the source; the README's code runs; its links lead somewhere."""

import pathlib
import re
import runpy

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_precision_page_has_not_drifted():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "precision.md").read_text() == generated, "run: python docs/generate.py"


def test_readme_code_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert "APPLIED" in capsys.readouterr().out


def test_readme_links():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
