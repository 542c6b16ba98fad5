"""Generated pages match the source; the README's code runs."""

import pathlib
import runpy

ROOT = pathlib.Path(__file__).parent.parent


def test_precision_page_has_not_drifted():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "precision.md").read_text() == generated, "run: python docs/generate.py"
