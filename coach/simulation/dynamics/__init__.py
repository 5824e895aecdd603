"""How a simulated job trains: its speed, its learning curve, what lies between its epochs."""
