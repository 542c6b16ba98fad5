"""Breadth beyond what a first training needs. Each is loaded when it is first named."""
