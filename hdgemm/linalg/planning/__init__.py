"""Plans of factorisations, solves and passes over rows: pure functions of shapes and rates."""
