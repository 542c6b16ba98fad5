"""The lessons of the course, each in one file with its solutions and checks; tinymp/course has what reads them."""
