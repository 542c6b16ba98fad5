"""The lessons of the course, each in one file with its solutions and checks; course/grader reads them."""
