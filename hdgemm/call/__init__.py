"""One call of linear algebra: operands, options, session, recorder, unchanged inputs."""
