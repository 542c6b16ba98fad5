"""Rules, schedules and clipping beyond those that a first training needs. Each is loaded when it is first named."""
