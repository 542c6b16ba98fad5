"""The lessons lie in course/, each in one file with its solutions and checks; `tinymp course` is the command.

from tinymp.course import check      # in a lesson's notebook
check(my_function)                   # right, or what is wrong with it
"""

from .checking import check
from .data import digits, words
