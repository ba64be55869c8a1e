"""What can be read and written by rectangles: arrays, files."""
