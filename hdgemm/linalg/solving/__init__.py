"""Solutions with stored triangles, in groups of columns; refinement; whole systems."""
