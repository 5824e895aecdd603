"""How a simulated job trains: its speed, its learning curve and its overheads."""
