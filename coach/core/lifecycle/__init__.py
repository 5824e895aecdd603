"""The life of a job: which step comes next, with how much money and on which nodes. The reducer is its centre."""
