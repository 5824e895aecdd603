"""Policies that choose anew, every round of some minutes, which jobs run: those that schedulers of 2019 to 2023 compare."""
