"""How jobs share a cluster: marginal utility, capacity, progressive filling."""
