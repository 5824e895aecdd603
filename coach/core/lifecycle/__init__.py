"""A job's lifecycle: which step comes next, with how much money and on which nodes. The reducer decides it."""
