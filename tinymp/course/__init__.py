"""Reads and grades the lessons of the course, with the code in course/grader."""

from typing import Any

from ..lab.shipped import home, stand_in


def __getattr__(name: str) -> Any: ...  # for type checkers


stand_in(__name__, home("course") / "course" / "grader")
