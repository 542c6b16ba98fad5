"""Fast paths of what the core defines: a folder per device, in it a file for each of the core's; see fast_path.py."""
